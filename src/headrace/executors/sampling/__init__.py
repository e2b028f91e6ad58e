"""Sampling in numpy, for executors that give logits alone."""
