"""Planning: find the cheapest plan that is fast enough."""

from heterps.planning.api import Option, PlanComparison, compare, plan

__all__ = ["Option", "PlanComparison", "compare", "plan"]
