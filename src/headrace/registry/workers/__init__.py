"""The worker processes of a version, each kept running."""
