"""The tables of a model whose stages are apart: which there are, and who pushes to them.

    stage 0: embedding, linear a        sparse table `embedding`     pushed to by stage 0
    stage 1: linear b, tied head        dense table  `dense.0`       the parameters of stage 0 alone
             (the weight of a)          dense table  `dense.1`       of stage 1 alone
                                        dense table  `dense.0-1`     that both use

A parameter that no layer uses belongs to the last stage: the model's own loss may use it there. The dense table of a
model in one stage is called `dense`. Parameters of a group of the job's optimizers have tables of their own: those of
the first group are in `dense@1`, or `dense@1.0`, `dense@1.1` and so on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from torch import nn

from heterps.config import Job, Optimizers
from heterps.model.build import build_model
from heterps.model.trace import Layer, Trace, trace_or_whole
from heterps.nn import dense_name, embeddings, model_tables
from heterps.ps.protocol.specs import DENSE, DenseSpec, TableSpecs

Stages = tuple[int, ...]


@dataclass(frozen=True)
class StageTables:
    """All tables of a job; the parameters of each dense one, in order; and the stages that push to each table."""

    tables: TableSpecs
    num_stages: int
    parameters: Mapping[str, tuple[str, ...]]  # by dense table: names in the model
    stages: Mapping[str, Stages]  # by table, sparse or dense

    def of_stage(self, stage: int) -> list[str]:
        """The tables that a stage uses."""
        return [name for name, stages in self.stages.items() if stage in stages]

    def on_servers(self, dense: bool) -> TableSpecs:
        """What servers hold, with or without the `dense` tables."""
        return self.tables if dense else replace(self.tables, dense=())

    @property
    def groups(self) -> list[Stages]:
        """The stages that must be kept in step together, because they push to a table together."""
        groups: list[set[int]] = [{stage} for stage in range(self.num_stages)]
        for stages in self.stages.values():
            joined = {*stages}.union(*(group for group in groups if group & {*stages}))
            groups = [group for group in groups if not group & joined] + [joined]
        return sorted(tuple(sorted(group)) for group in groups)


def stage_tables(job: Job, model: nn.Module, trace: Trace, firsts: Sequence[int]) -> StageTables:
    """The tables of a job's `model`, traced, in stages that begin at the layers `firsts`; the same in every process."""
    whole = model_tables(model, job.optimizers, tables=job.tables, tiers=job.tiers, seed=job.seed)
    return divide_tables(whole, model, trace, firsts, job.optimizers)


def job_tables(job: Job, firsts: Sequence[int] = (0,)) -> TableSpecs:
    """The tables that the servers of a job hold, for stages that begin at layers `firsts`."""
    model = build_model(job.model, job.data.columns, job.seed)
    return stage_tables(job, model, trace_or_whole(model), firsts).on_servers(job.workers.dense == "servers")


def divide_tables(
    whole: TableSpecs, model: nn.Module, trace: Trace, firsts: Sequence[int], optimizers: Optimizers = Optimizers()
) -> StageTables:
    """The tables `whole` of a model, with its dense parameters divided among stages that begin at these layers."""
    stage_of = [sum(layer.index >= first for first in firsts) - 1 for layer in trace.layers]
    stages = _sparse_stages(model, trace, stage_of)
    users = _users(model, trace.layers, stage_of)
    of_group = {spec.name: spec for spec in whole.dense}
    every: list[Stages] = [(stage,) for stage in range(len(firsts))]
    named: dict[str, Stages] = {_dense_name(DENSE, used, len(firsts)): used for used in every}
    like: dict[str, DenseSpec] = dict.fromkeys(named, of_group[DENSE])
    owned: dict[str, list[str]] = {name: [] for name in named}
    sizes: dict[str, int] = dict.fromkeys(owned, 0)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            used = users[name] or (len(firsts) - 1,)
            group = dense_name(name, optimizers)
            table = _dense_name(group, used, len(firsts))
            owned.setdefault(table, []).append(name)
            sizes[table] = sizes.get(table, 0) + parameter.numel()
            named[table], like[table] = used, of_group[group]
    specs = tuple(replace(like[table], name=table, size=size) for table, size in sizes.items() if size)
    return StageTables(
        replace(whole, dense=specs),
        len(firsts),
        {spec.name: tuple(owned[spec.name]) for spec in specs},
        stages | {spec.name: named[spec.name] for spec in specs},
    )


def _dense_name(group: str, stages: Stages, num_stages: int) -> str:
    return group if num_stages == 1 else f"{group}.{'-'.join(map(str, stages))}"


def _sparse_stages(model: nn.Module, trace: Trace, stage_of: Sequence[int]) -> dict[str, Stages]:
    """The stages of every sparse table: those with a layer that calls its module, or a module that holds it."""
    found: dict[str, set[int]] = {}
    for name, module in embeddings(model):
        callers = {
            stage_of[layer.index]
            for layer in trace.layers
            if any(name == called or name.startswith(f"{called}.") for called in layer.modules)
        }
        for table in module.names_in(name):  # modules may share it
            found.setdefault(table, set()).update(callers)
    return {table: tuple(sorted(callers)) or (max(stage_of),) for table, callers in found.items()}


def _users(model: nn.Module, layers: Sequence[Layer], stage_of: Sequence[int]) -> dict[str, Stages]:
    """The stages that use each parameter, under its first name: a weight may have several."""
    first_name = {id(parameter): name for name, parameter in model.named_parameters()}
    canonical = {name: first_name[id(p)] for name, p in model.named_parameters(remove_duplicate=False)}
    users: dict[str, set[int]] = {name: set() for name in first_name.values()}
    for layer in layers:
        for name in layer.parameters:
            users[canonical[name]].add(stage_of[layer.index])
    return {name: tuple(sorted(stages)) for name, stages in users.items()}
