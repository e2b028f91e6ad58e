"""The process that runs one model version, and the channel to it."""
