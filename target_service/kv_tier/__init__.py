"""Keys and values beyond this process: full blocks of context in a store that all verifiers of a model share."""
