"""The growth of a model's tables: distinct ids of each table against samples, counted in a part of the job's data."""

from __future__ import annotations

from heterps.config import Job
from heterps.data.distinct import DistinctCounter
from heterps.data.growth import fit_growth, worth_a_point
from heterps.data.reader import open_reader
from heterps.lookups import prepared
from heterps.model.build import build_model
from heterps.nn import embeddings
from heterps.profiling.profile import Profile, TableGrowth
from heterps.profiling.servers import INDEX_BYTES, ReadyRows
from heterps.ps.protocol.specs import TableSpec
from heterps.ps.table.sparse import SparseTable

SAMPLES = 200_000
"""Number of samples that are looked at, if there are more."""


def with_growth(profile: Profile, job: Job) -> Profile:
    """Return the profile with the growth of the job's tables. Data of very few batches leaves it as it is."""
    model = build_model(job.model, job.data.columns, job.seed)
    modules = [(module, module.table_specs(name, job.optimizers.sparse)) for name, module in embeddings(model)]
    specs = {spec.name: spec for _, of_module in modules for spec in of_module}
    client = ReadyRows(list(specs.values()))
    for module, of_module in modules:
        module.bind(client, [spec.name for spec in of_module])
    counters = {name: DistinctCounter() for name in specs}
    points: dict[str, list[tuple[int, int]]] = {name: [] for name in specs}
    samples = 0
    for batch, _ in open_reader(job).read():
        slots = prepared(batch.slots)
        samples += len(batch)
        for module, _ in modules:
            for table, part in module.parts(slots):
                counters[table].add(part.lookup.unique)
        for table, counter in counters.items():
            if worth_a_point(samples, points[table]):
                points[table].append((samples, counter.count))
        if samples >= SAMPLES:
            break
    found = [_growth(specs[table], of_table) for table, of_table in points.items()]
    known = tuple(growth for growth in found if growth is not None)
    return profile.model_copy(update={"version": 2, "tables": known}) if len(known) == len(specs) else profile


def _growth(spec: TableSpec, points: list[tuple[int, int]]) -> TableGrowth | None:
    fitted = fit_growth(points)
    if fitted is None:
        return None
    table = SparseTable(spec.dim, spec.optimizer, spec.seed, spec.init_scale)
    return TableGrowth(
        name=spec.name,
        row_bytes=table.row_bytes + INDEX_BYTES,
        coefficient=fitted.coefficient,
        exponent=fitted.exponent,
        error=fitted.error,
        exponent_error=fitted.exponent_error,
        samples=fitted.samples,
    )
