"""How a step turns predictions into tokens."""
