"""The paper's provisioner: Newton's method on the real-valued relaxation, then rounding.

With real-valued counts the cost is convex in tau, and its slope (P_fix: the price of stations with one unit)

    g(tau) = P_fix - sum over stations with k > 1 of  p*P*A/(tau-A)^2      (Q and D where communication needs the more)

is 0 at the optimum, or negative up to tau_max. `kernels.newton_tau` draws how whole counts follow from it.
"""

from __future__ import annotations

from heterps.planning.cost import Problem, Schedules
from heterps.planning.provisioners import kernels
from heterps.planning.provisioners.base import Bills, fill_bills


def newton(problem: Problem, schedules: Schedules) -> Bills:
    """Return the bills of counts near the real-valued optimum.

    A schedule is feasible exactly if it is for the exact provisioner, and never cheaper. There is no bound on the extra
    cost, which depends on how much whole counts matter; benchmarks/provisioning measures it.
    """
    return fill_bills(kernels.newton_all, problem, schedules)
