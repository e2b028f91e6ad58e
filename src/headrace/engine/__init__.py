"""Continuous batching of sequences over paged KV. Knows nothing of HTTP or processes."""
