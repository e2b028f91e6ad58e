"""A client of HTTP/1.1 for one origin, which hands bodies on as they come. Knows no upstream."""
