"""Read selected batches by (epoch, number), prepared ahead on a thread, for workers that lease some batches only.

    expect(0, 7) ---> [ wanted: (0, 7) (0, 8) (0, 12) ] --[1]--.        one batch at a time:
                                                               v
    get(0, 7)    <--- [ made: at most `depth` ]  <--[4]-- prepare <--[3]-- rows <--[2]-- where does it start?
         |                                                                          (arithmetic; else decode on)
         '--[5]--> a batch that was not expected, or waits for space, is made next

Batches are exactly those of `Reader.read`. Only wanted batches are gathered. Blocks without a wanted batch are not
decoded, unless the schema may skip rows. Then the number of rows of a block is unknown, and a batch is found by
decoding on from the blocks that were read before.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

from heterps.data.batch import Batch
from heterps.data.pick import BatchRows
from heterps.data.prefetch import OwnsThread, start_thread
from heterps.data.reader import Blocks, Position, Reader
from heterps.errors import PeerLost

Key = tuple[int, int]
"""The epoch, and the number of a batch in it, from 0."""

BLOCKS_KEPT = 2
"""Number of decoded blocks in memory: the current one, and the next, or one to return to after a batch of another."""


class BatchStream(OwnsThread):
    """Gives any batch of any epoch, as `prepare` gathers it; up to `depth` expected batches are made ahead of use.

    With a depth of 0 there is no thread: a batch is made when it is asked for or looked at, by its caller.

    The reader belongs to the stream until it is closed. An exception of decoding or of `prepare` is raised by `get` of
    that batch; other batches are not affected. After `close` (or the end of the `with` block, or when the object is
    garbage collected) the thread has ended.
    """

    def __init__(self, reader: Reader, depth: int, prepare: Callable[[BatchRows], Batch]) -> None:
        if depth < 0:
            raise ValueError(f"depth must be at least 0, got {depth}")
        self._state = _StreamState(reader, depth, prepare)
        self._close = start_thread(self, self._state.close, self._state.run) if depth else self._state.close

    def expect(self, epoch: int, number: int) -> None:
        """Announce that this batch will be asked for, after those announced before."""
        if self._state.depth:
            self._state.want((epoch, number))

    def read_ahead(self, epochs: int) -> None:
        """Decode each block while the one before it is used: all batches of so many epochs are asked for, in order.

        With 0 epochs they are not, as where others get some of them, and a block is decoded ahead only if it has the
        batch that is `announced`.
        """
        self._state.epochs_in_order = epochs if self._state.depth else 0

    def announce(self, epoch: int, number: int) -> None:
        """Say at which batch of another block the caller will go on: that block is decoded ahead, once a call."""
        if self._state.depth:
            self._state.announced = epoch, number

    def forget_before(self, epoch: int, number: int) -> None:
        """Drop expected batches before this one that were not asked for: they went to other workers."""
        self._state.forget_before((epoch, number))

    def get(self, epoch: int, number: int, deadline_s: float) -> Batch | None:
        """Wait for a batch and return it; None if the epoch has fewer. A second call makes the batch again.

        Raises PeerLost if it is not ready within `deadline_s` seconds; it is still being made then.
        """
        key = epoch, number
        return self._state.take(key, deadline_s) if self._state.depth else self._state.take_now(key)

    def peek(self, epoch: int, number: int) -> Batch | None:
        """The batch that `get` will return, if it is made already or, without a thread, made now; else None."""
        if not self._state.depth and (epoch, number) not in self._state.made:
            self._state.make_now((epoch, number))
        with self._state.changed:
            made = self._state.made.get((epoch, number))
            return made if isinstance(made, Batch) else None

    def num_batches(self, epoch: int) -> int | None:
        """Number of batches of an epoch; None while it is unknown."""
        with self._state.changed:
            return self._state.num_batches(epoch)


class _StreamState:
    """The state that both threads share. The thread does not refer to the stream, whose deletion ends the thread."""

    def __init__(self, reader: Reader, depth: int, prepare: Callable[[BatchRows], Batch]) -> None:
        self.reader = reader
        self.changed = threading.Condition()  # guards what is below, and the reader's epochs
        self.depth, self.epochs_in_order = depth, 0
        self.announced: Key | None = None
        self._prepare = prepare
        self._blocks = Blocks(reader, BLOCKS_KEPT)  # used by the thread only
        self._wanted: deque[Key] = deque()
        self._urgent: set[Key] = set()  # wanted batches that a caller waits for
        self._making: Key | None = None
        self.made: dict[Key, Batch | BaseException] = {}
        self._ends: dict[int, int] = {}  # epoch to its number of batches
        self._closed = False

    # --- the caller --------------------------------------------------------------------------------------------------

    def want(self, key: Key) -> None:
        with self.changed:
            if key not in self._wanted and key not in self.made and key != self._making:
                self._wanted.append(key)
                self.changed.notify_all()

    def take(self, key: Key, deadline_s: float) -> Batch | None:
        with self.changed:
            self._hurry(key)
            self.changed.wait_for(lambda: self._closed or key in self.made or self._is_behind(key), deadline_s)
            where = f"batch {key[1]} of epoch {key[0]}"
            if self._closed:
                raise PeerLost(f"{where} cannot be read: its stream of batches is closed")
            if self._is_behind(key):
                return None
            if key not in self.made:
                raise PeerLost(
                    f"{where} was not read and prepared within {deadline_s:g} s: the data is too slow for this "
                    "deadline, or its storage does not answer"
                )
            return self._pop(key)

    def take_now(self, key: Key) -> Batch | None:
        """Return a batch that the caller makes, unless it has done so; None if the epoch has fewer."""
        if key not in self.made:
            self.make_now(key)
        with self.changed:
            return self._pop(key) if key in self.made else None

    def make_now(self, key: Key) -> None:
        """Make a batch in this thread."""
        made: Batch | BaseException | None
        try:
            made = self.make(*key)
        except BaseException as error:
            made = error
        self._put(key, made)

    def _pop(self, key: Key) -> Batch:
        made = self.made.pop(key)
        self.changed.notify_all()  # there is space for the next
        if isinstance(made, BaseException):
            raise made
        return made

    def forget_before(self, key: Key) -> None:
        with self.changed:
            self._wanted = deque(other for other in self._wanted if other >= key)
            for other in [other for other in self.made if other < key]:
                del self.made[other]
            self.changed.notify_all()

    def _hurry(self, key: Key) -> None:  # [5]
        if key in self.made or key == self._making or self._is_behind(key):
            return
        if key in self._wanted:
            self._wanted.remove(key)
        self._wanted.appendleft(key)
        self._urgent.add(key)
        self.changed.notify_all()

    def _is_behind(self, key: Key) -> bool:
        return key[0] in self._ends and key[1] >= self._ends[key[0]]

    def num_batches(self, epoch: int) -> int | None:
        if epoch not in self._ends:
            num_rows = self.reader.epoch(epoch).num_rows
            if num_rows:
                self._ends[epoch] = -(-num_rows // self.reader.batch_size)
        return self._ends.get(epoch)

    def close(self) -> None:
        with self.changed:
            self._closed = True
            self._wanted.clear()
            self.made.clear()
            self.changed.notify_all()

    # --- the thread --------------------------------------------------------------------------------------------------

    def run(self) -> None:
        while (key := self._next()) is not None:
            self.make_now(key)
        self._blocks.close()

    def _next(self) -> Key | None:
        """Wait for a wanted batch [1]; None once closed."""
        with self.changed:
            self.changed.wait_for(lambda: self._closed or self._can_go_on())
            if self._closed:
                return None
            self._making = self._wanted.popleft()
            self._urgent.discard(self._making)
            return self._making

    def _can_go_on(self) -> bool:
        return bool(self._wanted) and (self._wanted[0] in self._urgent or len(self.made) < self.depth)

    def _put(self, key: Key, made: Batch | BaseException | None) -> None:
        with self.changed:
            self._making = None
            if made is not None and not self._closed:
                self.made[key] = made  # [4]
            self.changed.notify_all()

    def make(self, epoch: int, number: int) -> Batch | None:
        position = self._find(epoch, number)
        if position is None:
            return None
        found = self._blocks.batch(position)
        assert found is not None, f"batch {number} of epoch {epoch} is known to be there"
        rows, after = found
        self._read_ahead(after)
        return self._prepare(rows)  # [3]

    def _read_ahead(self, at: Position) -> None:
        """Begin to decode the block that is needed after the one in which the next batch starts, if it is known."""
        if not self.epochs_in_order:
            announced, self.announced = self.announced, None  # else it would be decoded again when it is over
            with self.changed:
                there = None if announced is None else self.reader.position_of(*announced)
            if there is not None:
                self._blocks.read_ahead(there.epoch, there.block)
            return
        block = at.block + (at.row > 0)
        if at.epoch < self.epochs_in_order and block < len(self.reader.epoch(at.epoch).blocks):
            self._blocks.read_ahead(at.epoch, block)
        elif at.epoch + 1 < self.epochs_in_order:
            self._blocks.read_ahead(at.epoch + 1, 0)

    def _find(self, epoch: int, number: int) -> Position | None:
        """Find the start of a batch [2]; None if the epoch has fewer, which is known from then on."""
        row = number * self.reader.batch_size
        while True:
            with self.changed:
                gap = self.reader.epoch(epoch).gap(row)
                if gap is None:
                    if self.reader.epoch(epoch).num_rows == 0:
                        raise self.reader.no_rows()
                    end = self.num_batches(epoch)
                    return None if end is not None and number >= end else self.reader.position_of(epoch, number)
            self._blocks.rows(epoch, gap)
