"""The tables of a model: those of its embeddings, and those of its dense parameters.

SparseEmbedding "items"                     --> sparse table `items`
SparseSequence "history", table="items"     --> the same table: the rows of an item are learned from both
all other parameters                        --> dense table `dense`, and one for each group of optimizers
tables and parameters that are frozen       --> tables of the same kinds that are pulled and not pushed to
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from torch import nn

from heterps.config import Never, Optimizers, Tables, Tiers
from heterps.errors import ConfigError, ModelError
from heterps.lookups import RowUse, joined_gradients
from heterps.nn.embedding import embeddings
from heterps.ps.client.interface import RowClient
from heterps.ps.protocol.specs import DENSE, DenseSpec, TableSpec, TableSpecs


def model_tables(
    model: nn.Module,
    optimizers: Optimizers = Optimizers(),
    *,
    tables: Tables = Tables(),
    tiers: Tiers | None = None,
    seed: int = 0,
) -> TableSpecs:
    """The specs of all tables of a model: those of its embeddings, and DENSE with its other parameters.

    Other parameters that are in groups of `optimizers` have a table for each group. The same arguments give the same
    specs in every process of a job, so servers create what workers ask for.
    """
    if not isinstance(optimizers, Optimizers):
        raise ConfigError(
            "optimizers must be heterps.config.Optimizers(sparse=Adagrad(lr=0.05), dense=Adam(lr=0.001)), of "
            f"optimizers of heterps.ps, which step where the parameters are; got one of {type(optimizers).__module__}."
        )
    schedule = optimizers.sparse_schedule or optimizers.schedule
    sparse = _each_once(
        _in_group(spec, optimizers)
        for name, module in embeddings(model)
        for spec in module.table_specs(name, optimizers.sparse, seed, schedule=schedule, tables=tables)
    )
    if tiers is not None:
        whole = sum(spec.dim for spec in sparse)
        sparse = [replace(spec, tiers=tiers.share(spec.dim, whole)) for spec in sparse]
    parameters = {name: parameter.numel() for name, parameter in model.named_parameters() if parameter.requires_grad}
    dense = {DENSE: DenseSpec(DENSE, 0, *optimizers.of_dense(None))}
    for name, size in parameters.items():
        table, group = dense_name(name, optimizers), optimizers.group_of(name)
        empty = DenseSpec(table, 0, *optimizers.of_dense(group), is_frozen=optimizers.freezes(name))
        known = dense.setdefault(table, empty)
        dense[table] = replace(known, size=known.size + size)
    _check_patterns(optimizers, [spec.name for spec in sparse] + list(parameters))
    return TableSpecs(tuple(sparse), tuple(dense.values()))


def dense_name(parameter: str, optimizers: Optimizers) -> str:
    """The name of the dense table of a parameter: those of each group of optimizers, and frozen ones, are apart."""
    group = optimizers.group_of(parameter)
    table = DENSE if group is None else f"{DENSE}@{group + 1}"
    return f"{table}-frozen" if optimizers.freezes(parameter) else table


def _each_once(specs: Iterable[TableSpec]) -> list[TableSpec]:
    """The specs of different tables; ModelError where modules that share a table disagree about it."""
    tables: dict[str, TableSpec] = {}
    for spec in specs:
        known = tables.setdefault(spec.name, spec)
        if differing := [field for field in vars(spec) if getattr(spec, field) != getattr(known, field)]:
            raise ModelError(
                f"modules that share the table {spec.name} must agree about it, but differ in {', '.join(differing)}: "
                f"{differing[0]} is {getattr(known, differing[0])} in one and {getattr(spec, differing[0])} in another."
            )
    return list(tables.values())


def _in_group(spec: TableSpec, optimizers: Optimizers) -> TableSpec:
    optimizer, schedule = optimizers.of_table(spec.name, spec.optimizer, spec.schedule)
    spec = replace(spec, optimizer=optimizer, schedule=schedule)
    return replace(spec, is_frozen=True, admission=Never()) if optimizers.freezes(spec.name) else spec


def _check_patterns(optimizers: Optimizers, names: Sequence[str]) -> None:
    """ConfigError where a pattern matches nothing, most probably misspelled, or where nothing is left to train."""
    patterns = [("groups", group.match) for group in optimizers.groups]
    for field, pattern in patterns + [("freeze", pattern) for pattern in optimizers.freeze]:
        if not any(fnmatchcase(name, pattern) for name in names):
            raise ConfigError(
                f"optimizers.{field}: {pattern} matches no table or parameter of the model, which has "
                f"{', '.join(names[:20])}{', ...' if len(names) > 20 else ''}"
            )
    if optimizers.freeze and all(optimizers.freezes(name) for name in names):
        raise ConfigError("optimizers.freeze: every table and parameter is frozen, so there is nothing to train.")


def bind_tables(model: nn.Module, client: RowClient, frozen: Collection[str] = ()) -> None:
    """Let the embeddings of `model` take their rows from `client`, which must have the tables of `model_tables`.

    Rows of `frozen` tables get no gradients.
    """
    for name, module in embeddings(model):
        module.bind(client, module.names_in(name), frozen)


def push_gradients(model: nn.Module) -> None:
    """Push the gradients of all embeddings of `model`, one optimizer step a row, and return when they are applied."""
    uses: dict[RowClient, list[RowUse]] = {}
    for _, module in embeddings(model):
        uses.setdefault(module.client_to_push, []).extend(module.take_uses())
    futures = [
        client.push(*gradients)
        for client, of_client in uses.items()
        for gradients in joined_gradients(of_client, client.num_shards)
    ]
    for future in futures:
        future.result()
