"""Samples for workers: batches of a reader, cut to what each worker takes, and back again if it dies.

reader   |------ batch ------|------ batch ------|--last--|        the last one of an epoch has what is left
workers  |--w0--|--w1--|-w2--|-w1--|--w0--|-w2---|--w1----|        nobody's batch goes over a border
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from heterps.data.batch import Batch
from heterps.data.reader import Position, Reader
from heterps.lookups import slice_slots


class Supply:
    """Hands out every sample of every batch once, in order.

    batch_size  samples of each batch, but for the last ones of epochs
    """

    def __init__(self, batches: Iterator[Batch], batch_size: int) -> None:
        self._batches, self._batch_size = batches, batch_size
        self._batch: Batch | None = None
        self._used = 0  # samples of that batch
        self._returned: deque[Batch] = deque()

    def take(self, num_samples: int) -> Batch | None:
        """The next `num_samples`, or as many as are left of the reader's batch; None at the end.

        Of a smaller batch it is a smaller part, as real workers divide it. Batches that were given back come first.
        """
        if self._returned:
            return self._returned.popleft()
        if self._batch is None or self._used == len(self._batch):
            self._batch, self._used = next(self._batches, None), 0
        if self._batch is None:
            return None
        part = -(-num_samples * len(self._batch) // self._batch_size)
        first, self._used = self._used, min(self._used + part, len(self._batch))
        return _part(self._batch, first, self._used)

    def give_back(self, batch: Batch) -> None:
        """Returns a batch that nobody has trained on: the next `take` hands it out."""
        self._returned.append(batch)


def _part(batch: Batch, first: int, last: int) -> Batch:
    if last - first == len(batch):
        return batch
    return Batch(batch.dense[first:last], slice_slots(batch.slots, first, last), batch.label[first:last])


def read_epochs(reader: Reader, num: int) -> Iterator[Batch]:
    for epoch in range(num):
        for batch, _ in reader.read(Position(epoch=epoch)):
            yield batch
