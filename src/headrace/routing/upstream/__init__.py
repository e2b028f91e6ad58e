"""An OpenAI-compatible server as a language model: what goes out, comes back, and goes wrong."""
