"""Who runs what: the cheapest plan that is fast enough."""

from heterps.planning.api import Comparison, Option, compare, plan

__all__ = ["Comparison", "Option", "compare", "plan"]
