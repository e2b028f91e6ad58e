"""Logs and metrics: their names, units and formats."""
