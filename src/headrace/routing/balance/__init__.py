"""Which endpoint gets the next request."""
