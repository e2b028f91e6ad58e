"""What the benchmarks share: load, client, the systems under load, and the report."""
