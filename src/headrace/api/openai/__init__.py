"""OpenAI's API: schema, routes and how chunks become its JSON."""
