"""What `benchmarks.engine` compares: one process each, which loads its model once and then answers commands."""
