"""What a server remembers over restarts. Decides nothing."""
