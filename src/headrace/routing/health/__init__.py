"""Which endpoints take requests, and with what weight."""
