"""How the tables came to be what they are. A database at head needs nothing of this."""
