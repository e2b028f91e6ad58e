"""Model files: where they come from and what is in them. Knows nothing of running a model."""
