"""The tries of one request: judged, repeated elsewhere, moved in the middle."""
