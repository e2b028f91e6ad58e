"""The HTTP side: routes that parse, ask one object and render. Does no model work."""
