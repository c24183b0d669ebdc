"""What a sparse table knows besides its rows: counts, and the metadata that a checkpoint keeps of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

from msgspec import Meta
from msgspec.json import encode
from numpy.typing import NDArray

from heterps.ps.ops import base
from heterps.ps.protocol.frames import Frames, MetadataInfo, pack_metadata, unpack_metadata
from heterps.ps.protocol.messages import Count
from heterps.ps.protocol.roster import Roster
from heterps.ps.shard.shard import Shard
from heterps.ps.table.metadata import TableCounters, TableMetadata, unstack
from heterps.ps.table.tiers import TierCounts, TieredTable
from heterps.wire import Limits, Malformed


class CountRows(base.Read, frozen=True, tag="count_rows"):
    """How many rows and bytes the shard of a sparse table has."""

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        table = shard.sparse[self.table]
        tiers = table.counts if isinstance(table, TieredTable) else None
        return Counted(len(table), table.num_bytes, table.counters(), tiers, to.counts.latency.total_s), []


class Counted(base.Result, frozen=True, tag="counted"):
    """Counts of the shard of a sparse table; `tiers` where it has them.

    served_s  seconds that the server has spent on messages of all tables
    """

    num_rows: Count
    num_bytes: Count
    counters: TableCounters
    tiers: TierCounts | None = None
    served_s: Annotated[float, Meta(ge=0)] = 0.0

    @classmethod
    def total(cls, shards: Iterable[Counted]) -> Counted:
        """Return the counts of all shards of a table."""
        shards = list(shards)
        tiers = [shard.tiers for shard in shards if shard.tiers is not None]
        return cls(
            sum(shard.num_rows for shard in shards),
            sum(shard.num_bytes for shard in shards),
            TableCounters.total([shard.counters for shard in shards]),
            TierCounts.total(tiers) if tiers else None,
            sum(shard.served_s for shard in shards) / len(shards) if shards else 0.0,
        )


class ReadStats(base.Op, frozen=True, tag="read_stats"):
    """The figures of the whole server, whatever the table."""

    tables = "any"

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        return StatsTold(), [encode(to.stats())]


class StatsTold(base.Result, frozen=True, tag="stats_told"):
    """The figures of a server (a frame): the JSON of server/stats.ServerStats."""


class ReadMetadata(base.Read, frozen=True, tag="read_upkeep"):
    """What the shard of a sparse table knows besides its rows."""

    def run(self, shard: Shard, to: base.Serving) -> base.Answer:
        infos, frames = pack_metadata(shard.sparse[self.table].export_metadata())
        return Metadata(shard.pieces.num_pushes(self.table), infos), frames


class Metadata(base.Result, frozen=True, tag="kept"):
    """Metadata (frames) of the shard of a sparse table that has seen `num_pushes`."""

    num_pushes: Count
    arrays: MetadataInfo


class Resume(base.Push, frozen=True, tag="resume"):
    """Metadata (frames) for the shard of a sparse table that has seen `num_pushes`."""

    num_pushes: Count
    arrays: MetadataInfo

    def prepare(self, frames: Frames, shard: Shard, limits: Limits) -> base.Work:
        metadata = unpack_metadata(self.arrays, frames)
        try:
            shard.sparse[self.table].check_metadata(metadata)
        except ValueError as error:
            raise Malformed(f"table {self.table}: {error}") from None
        resume = partial(shard.resume, num_pushes=self.num_pushes, metadata=metadata)
        return self.once(shard, 0, lambda source: resume(source, self.table, self.sequence))


class ReadStatsCall(base.Ask[StatsTold]):
    """The figures of all servers, each as JSON, by the number of the server."""

    def __init__(self, table: str) -> None:
        super().__init__(ReadStats(table), StatsTold)

    def read(self, result: StatsTold, frames: Frames) -> bytes:
        return bytes(frames.take())

    def result(self) -> list[bytes]:
        return [told for _, told in sorted(self._answers.items())]


class ReadMetadataCall(base.Ask[Metadata]):
    """What the shards of a sparse table know besides their rows, and the least number of pushes that they have seen."""

    def __init__(self, table: str, after: int) -> None:
        super().__init__(ReadMetadata(table, after), Metadata)

    def read(self, result: Metadata, frames: Frames) -> tuple[int, TableMetadata]:
        return result.num_pushes, unpack_metadata(result.arrays, frames)

    def result(self) -> tuple[int, list[TableMetadata]]:
        parts = [part for _, part in sorted(self._answers.items())]
        return min(num_pushes for num_pushes, _ in parts), [metadata for _, metadata in parts]


@dataclass(eq=False)
class ResumeCall(base.Call):
    """Gives the shards of now the metadata that any number of shards had."""

    table: str
    metadata: Mapping[str, NDArray[Any]]
    num_pushes: int
    sequence: int

    def build(self, number: int, roster: Roster) -> base.Built:
        metadata = unstack(self.metadata, roster.num_shards)[number]
        assert metadata is not None
        infos, frames = pack_metadata(metadata)
        return base.Built(Resume(self.table, self.sequence, self.num_pushes, infos), frames)


OPS, RESULTS = (CountRows, ReadStats, ReadMetadata, Resume), (Counted, StatsTold, Metadata)
