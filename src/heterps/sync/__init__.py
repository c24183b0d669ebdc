"""Synchronisation policies: they decide when a worker may start its next iteration.

policy = make_policy("dssp", workers=["a", "b"], lower=3, spread=12)
policy.on_push("a", now=1.0)      # the workers that may now start an iteration

policy     inputs, events, the common base         rounds     BSP, backup workers
clocks     who is slowest and fastest              stale      ASP, SSP
make       policies by name                        dynamic    DSSP, with its predictors
trace      record and replay                       literal    DSSP as it was printed
staleness  how many updates a gradient has missed  shares     batches fitted to workers

Read first: policy.py, then stale.py.
"""

from heterps.config.policy_words import parse_policy
from heterps.config.sync import ASP, BSP, DSSP, SSP, PolicyConfig
from heterps.sync.make import make_policy
from heterps.sync.policy import Event, Policy
from heterps.sync.staleness import Staleness
from heterps.sync.trace import record, replay

__all__ = [
    "ASP", "BSP", "DSSP", "SSP", "Event", "Policy", "PolicyConfig", "Staleness", "make_policy", "parse_policy",
    "record", "replay",
]  # fmt: skip
