"""A package, so that the benchmark of this name is not taken for it."""
