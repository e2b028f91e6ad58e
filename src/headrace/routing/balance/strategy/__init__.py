"""How one endpoint is chosen among those that take requests: one file a strategy."""
