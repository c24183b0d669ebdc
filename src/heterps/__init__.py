"""heterps trains large sparse models on the cheapest mix of machines that is fast enough."""

__version__ = "0.1.0"
