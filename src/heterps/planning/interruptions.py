"""What it costs a job that a spot unit is taken back, in seconds of the whole job.

    back to a checkpoint     |noticed|all start again|work since the checkpoint once more|
    replaced, in rounds      |noticed|start-up of another unit|start of a worker|           all others wait
    replaced, otherwise      |pause|                                                        the others go on

Runs replace workers that are lost (`workers.replacements`), and servers where each has a mirror (`servers.replicas`).
Without rounds the throughput of one worker is missing until another is there. That is not part of this, since it is a
share of the whole that grows with neither the units nor the time of the job; what its start-up costs is (market.py).
"""

from __future__ import annotations

from heterps.config import Cluster, PolicyConfig

NOTICED_S = 15.0
"""Seconds until a machine that is gone is missed."""
ROLLBACK_S = NOTICED_S + 60 + 300
"""Seconds of a return to the last of checkpoints every 10 minutes, half of which is trained again on average."""
WORKER_S = 7.0
"""Seconds from the order of a worker until it takes part in a round (benchmarks/faults: 6.8 at worst)."""
PAUSE_S = 1.3
"""Longest pause of the others without rounds (benchmarks/faults: asp 0.1, ssp:3 0.9, dssp:3:12 1.3)."""


def lost_s(
    cluster: Cluster, name: str, sync: PolicyConfig | None, *, replaces: bool = True, mirrored: bool = False
) -> float:
    """Seconds that a job loses when a spot unit of the resource `name` is taken back.

    replaces  whether lost workers are replaced while the others go on
    mirrored  whether servers have mirrors
    """
    resource = cluster.resources[name]
    if resource.spot is not None and resource.spot.lost_s is not None:
        return resource.spot.lost_s
    if sync is None or not replaces or (name == cluster.server_resource and not mirrored):
        return ROLLBACK_S
    return NOTICED_S + resource.startup_s + WORKER_S if sync.in_rounds else PAUSE_S
