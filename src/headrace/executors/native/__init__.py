"""The CPU executor on our own kernels: fast, and the same bits in any batch."""
