"""What changes which versions there are, and which one is active. One change of a model a time."""
