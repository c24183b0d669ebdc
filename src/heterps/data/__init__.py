"""Where samples come from: sources, readers, keys, prefetch, synthetic data."""
