"""Where processes run: in this one, as processes of this machine, as actors of a Ray cluster.

job            `train`: a job from its file to a complete run folder
by_plan        one plan or fleet after the other: replans, restarts
inline  local  ray/                             a fleet each: how workers start, and how messages reach them
run_servers    the servers of a run             server_keeper   those with mirrors
worker_process  server_process                  what runs in the processes that are started

from_python    the job of heterps.train(model=..., data=...)
running_servers  how workers reach servers      server_metrics   what servers tell Prometheus
socket_worker  a worker that speaks over sockets     standby     a worker process in reserve
run_metrics    what runs tell Prometheus
takeover       servers that a killed command left    replanning  is there a better plan for the rest?
trials         short runs of a plan, measured        whole_steps whole steps in this process, measured
overheads      what a launcher costs by itself       learning    profiles corrected by ordinary runs

Read first: job.py, then by_plan.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from heterps.launch.job import FinishedRun, train

__all__ = ["FinishedRun", "train"]


def __getattr__(name: str) -> Any:
    """Import names when they are first used: a process that is started needs a small part of them."""
    if name in __all__:
        from heterps.launch import job

        return getattr(job, name)
    raise AttributeError(f"module 'heterps.launch' has no attribute {name!r}")
