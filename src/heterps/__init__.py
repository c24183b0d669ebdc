"""heterps trains large sparse models on the cheapest mix of machines that is fast enough.

    profile = heterps.profile(model, batch)                                  time of each layer on each resource
    plan = heterps.plan(profile, cluster, throughput=20_000, samples=1e9)    the cheapest resources that are fast enough
    run = heterps.train(job)                                                 the job, from data to report
    run = heterps.train(model=module, data=frame, label="click")             the same, of what is in memory
    scores = heterps.load(run.folder).predict(frame)                         what the trained model says of samples
    heterps.save(model, "model/"); heterps.load("model/", into=Net())        weights and rows, whole or not at all

`heterps.Trainer` is for your own training loop; `heterps.nn` and `heterps.ps` are the modules and tables under it, and
`heterps.sync` has the policies that synchronise workers. `register_scheduler`, `register_format`, `register_policy` and
`register_device` extend heterps from outside.

Packages, each of which imports only those after it (docs/architecture.md):

    cli, ui             the command line, and runs in a browser
    launch, serving     where processes run, and trained models in use
    report, sim         what people look at, and jobs on a simulated clock
    training            the job while it runs
    planning, checkpoint, profiling    the cheapest plan, saved state, and how long layers take
    model, nn, lookups  models and their layers, embeddings on tables, the keys of a batch
    data, ps, sync      samples, parameters, policies
    wire, config        messages, and the job as one tree of settings

Small modules: offers (prices), catalogue (known devices), devices, plugins (registries), yamlfile, validation, errors,
processes, threads, background, temporary (folders), hashing and arrays (types).

Read first: config/job.py, then the files that docs/architecture.md names.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from heterps import nn, ps, sync
    from heterps.config import Cluster, Job, load_cluster, load_job, register_policy
    from heterps.data.bags import bags
    from heterps.data.file import DataFile
    from heterps.data.formats import register_format
    from heterps.devices import DeviceKind, register_device
    from heterps.launch import train
    from heterps.planning import plan
    from heterps.planning.schedulers import register_scheduler
    from heterps.profiling.profile import load_profile
    from heterps.profiling.profiler import profile
    from heterps.serving.load import load
    from heterps.serving.saved import save
    from heterps.training.model.trainer import Trainer
    from heterps.training.run.observer import Observer
    from heterps.training.run.trackers import MLflowObserver, TensorBoardObserver

_HOMES = {
    "Cluster": "heterps.config",
    "DataFile": "heterps.data.file",
    "DeviceKind": "heterps.devices",
    "Job": "heterps.config",
    "MLflowObserver": "heterps.training.run.trackers",
    "Observer": "heterps.training.run.observer",
    "TensorBoardObserver": "heterps.training.run.trackers",
    "Trainer": "heterps.training.model.trainer",
    "bags": "heterps.data.bags",
    "load": "heterps.serving.load",
    "load_cluster": "heterps.config",
    "load_job": "heterps.config",
    "load_profile": "heterps.profiling.profile",
    "plan": "heterps.planning",
    "profile": "heterps.profiling.profiler",
    "register_device": "heterps.devices",
    "register_format": "heterps.data.formats",
    "register_policy": "heterps.config",
    "register_scheduler": "heterps.planning.schedulers",
    "save": "heterps.serving.saved",
    "train": "heterps.launch",
}
_PACKAGES = ("nn", "ps", "sync")

__all__ = [
    "Cluster", "DataFile", "DeviceKind", "Job", "MLflowObserver", "Observer", "TensorBoardObserver", "Trainer",
    "bags", "load", "load_cluster", "load_job", "load_profile", "nn", "plan", "profile", "ps", "register_device",
    "register_format", "register_policy", "register_scheduler", "save", "sync", "train",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import names when they are first used: planning needs no torch, and the command line starts quickly."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _PACKAGES:
        return import_module(f"heterps.{name}")
    raise AttributeError(f"module 'heterps' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
