"""The portable CPU executor on OpenVINO."""
