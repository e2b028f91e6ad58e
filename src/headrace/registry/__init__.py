"""Which models are served, in which versions and states, by which processes."""
