"""`specdec profile`: what each drafter is worth with this target, these prompts and these machines."""
