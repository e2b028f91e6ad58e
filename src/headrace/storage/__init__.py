"""The database that a server keeps its state in. Knows no model, only the tables of who does."""
