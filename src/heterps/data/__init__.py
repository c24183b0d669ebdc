"""Training data: sources, readers, keys, prefetch, leases and synthetic data."""
