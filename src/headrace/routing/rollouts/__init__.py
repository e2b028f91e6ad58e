"""A candidate takes over from the stable version stage by stage, or is sent back by its numbers."""
