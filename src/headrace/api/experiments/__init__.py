"""The routes that compare versions, and that take what users think of answers."""
