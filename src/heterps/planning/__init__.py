"""Planning: find the cheapest plan that is fast enough.

    profile + cluster --cost--> problem --schedulers/ propose, provisioners/ count units--> bills --api--> plan

ask           api (plan, compare), plan (the file), variants (policies, batch sizes), optimum (one problem, varied)
cost          cost (the model of the paper), real (ports, memory, overheads), market (bundles to rent),
              tables (what servers hold), egress (traffic between zones), interruptions (what each costs),
              bill (of one plan), fit (do profile and cluster match?)
prediction    prediction (seconds by term, interval), expected (of rented machines), local (of this machine),
              inline (of one process)
exact search  chains (units sold one by one), offer_chains with unit_values (units in limited offers),
              chain_kernels, labels (of partial plans); kernels (shared loops)
in rounds     rounds (how long one takes), round_stages, round_labels, round_bounds, round_boxes, round_kernels
in lanes      lanes (ASP, SSP, DSSP: how many keep all busy)
search        schedulers/, provisioners/
by trials     trial (what was measured), online (search by trials), correct (a profile, by what was measured)
explain       explain (a plan), infeasible and infeasible_real (why there is none), frontier (cost against speed)

Read first: cost.py, then schedulers/base.py and api.py.
"""

from heterps.planning.api import Option, PlanComparison, compare, plan

__all__ = ["Option", "PlanComparison", "compare", "plan"]
