"""One file a step; each says what it follows."""
