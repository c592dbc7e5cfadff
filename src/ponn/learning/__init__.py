"""Algorithm 1 for every method and size."""
