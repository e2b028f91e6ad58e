"""The routes that load, swap, roll back and unload models."""
