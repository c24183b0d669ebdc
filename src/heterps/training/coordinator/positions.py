"""Where a run is in its data: as leases, which workers take, and as the position of a single reader, which inline has.

checkpoint   "leases"    which batches are done, in whatever order        --> any launcher with workers
             "order"     the fingerprint of the data that they number
             "position"  the next batch, where all before it are done     --> inline too
             "is_over"   all epochs are done, and by its name in the
             "train"     job, of which data                               --> the run may go on with other data
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from heterps.config import Job
from heterps.data.leases import Leases
from heterps.data.reader import Position, Reader


def first_leases(job: Job, reader: Reader, position: Position = Position()) -> Leases:
    """The leases of a run that begins, or that a single reader left at `position`."""
    start = (position.epoch, position.samples // job.data.batch_size)
    return Leases(job.data.epochs, reader.num_batches, start=start, **_manner(job, reader))


def restored_leases(job: Job, reader: Reader, progress: Mapping[str, Any]) -> Leases:
    """The leases of a run that goes on from a checkpoint. DataError where its data has changed since."""
    if begins_other_data(job, reader, progress):
        return first_leases(job, reader)
    position = progress.get("position", {})
    reader.checked(Position(order=progress.get("order", position.get("order", ""))))
    if "leases" in progress:
        return Leases.from_state(progress["leases"], job.data.epochs, **_manner(job, reader))
    return first_leases(job, reader, Position(**progress["position"]))


def begins_other_data(job: Job, reader: Reader, progress: Mapping[str, Any]) -> bool:
    """Whether a run that was done with its data goes on with other data, from its first row.

    Its job must name other data. Files that have grown or were written anew have rows that the run may know.
    """
    is_named = "train" in progress and progress["train"] != _train(job)
    return bool(progress.get("is_over")) and is_named and not reader.has_order(progress["order"])


def lease_progress(leases: Leases, reader: Reader) -> dict[str, Any]:
    """What a checkpoint says of the leases; with a position where that can be told."""
    progress: dict[str, Any] = {"leases": leases.state(), "order": reader.order, "is_over": leases.is_over}
    if not leases.has_holes and (position := _position(reader, *leases.first)) is not None:
        progress["position"] = asdict(position)
    return progress


def checkpoint_progress(
    job: Job, leases: Leases, reader: Reader, state: Mapping[str, Any], usd: float | None
) -> dict[str, Any]:
    """What a checkpoint says of a run besides its model: where it is, its `state`, what was paid, fitted features."""
    features = job.data.columns.model_dump(mode="json", include={"features"})["features"]
    place = {**lease_progress(leases, reader), "train": _train(job)}
    return {**place, **state, "usd": usd, **({"features": features} if features else {})}


def _train(job: Job) -> Any:
    return job.data.model_dump(mode="json", include={"train"})["train"]


def _position(reader: Reader, epoch: int, number: int) -> Position | None:
    """Where a batch starts, if that can be told; the end of an epoch is the start of the next."""
    if reader.num_batches is not None and number >= reader.num_batches:
        return Position(epoch + 1, order=reader.order)
    return reader.position_of(epoch, number)


def _manner(job: Job, reader: Reader) -> dict[str, Any]:
    in_rounds = job.sync.in_rounds or not job.has_workers
    return {"run": 1 if in_rounds else reader.batches_per_block, "ordered": in_rounds}
