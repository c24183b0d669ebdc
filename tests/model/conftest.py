"""Every test of this folder computes on one torch thread."""

from one_thread import one_torch_thread

__all__ = ["one_torch_thread"]
