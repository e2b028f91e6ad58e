"""Whatever computes a batch: plain data in, predictions out."""
