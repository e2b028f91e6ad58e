"""Users shared among versions, and which version serves them better. Knows no HTTP, no registry."""
