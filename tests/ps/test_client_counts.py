"""What a client counts of its traffic: bytes by kind, and what de-duplication, coding and merging saved."""

from __future__ import annotations

import numpy as np
import pytest
from servers import DIM, make_tables, remote_client

from heterps.ps import Adagrad
from heterps.ps.client.counts import ClientCounts
from heterps.ps.client.remote import RemoteClient
from heterps.ps.client.session import Options
from heterps.ps.keys.dedup import make_lookup
from heterps.ps.protocol.messages import Coding

KEYS = np.array([7, 7, 7, 9, 11], np.uint64)  # three distinct
TABLES = make_tables(Adagrad(), Adagrad())


def step(client: RemoteClient) -> ClientCounts:
    """Pull and push rows and the dense table once."""
    lookup = make_lookup(KEYS, client.num_shards)
    pulls = [client.pull("rows", lookup), client.pull_dense("dense")]
    for pulled in pulls:
        pulled.result()
    pushes = [client.push("rows", lookup, np.ones((5, DIM), np.float32))]
    pushes.append(client.push_dense("dense", np.ones(10, np.float32)))
    for pushed in pushes:
        pushed.result()
    return client.counts


@pytest.mark.parametrize("num_servers", [1, 3])
def test_bytes_are_told_by_kind(num_servers: int) -> None:
    with remote_client(num_servers, TABLES) as client:
        counts = step(client)
    assert counts.keys_bytes == 2 * 3 * 8, "distinct keys, pulled and pushed"
    assert counts.rows_bytes == counts.row_gradients_bytes == 3 * 4 * DIM
    assert counts.dense_bytes == counts.dense_gradients_bytes == 10 * 4
    assert counts.deduplication_saved_bytes == 2 * 2 * (8 + 4 * DIM), "two keys less in a pull and in a push"
    assert counts.compression_saved_bytes == counts.other_bytes == 0


def test_coding_saves_what_frames_would_have_taken_less_what_they_take() -> None:
    with remote_client(1, TABLES, options=Options(codings={"rows": Coding("fp16"), "dense": Coding("bf16")})) as client:
        counts = step(client)
    assert counts.rows_bytes == counts.row_gradients_bytes == 3 * 2 * DIM
    assert counts.compression_saved_bytes == 2 * 3 * 2 * DIM + 2 * 10 * 2
    assert counts.deduplication_saved_bytes == 4 * (8 + 4 * DIM), "as if nothing were rounded"


def test_calls_that_travel_together_are_one_request() -> None:
    with remote_client(1, TABLES, options=Options(linger_s=60.0)) as client:
        assert (client.counts.calls, client.counts.requests) == (0, 0)
        counts = step(client)
    assert (counts.calls, counts.requests) == (4, 2), "the two pulls went together, and the two pushes"


def test_a_piece_of_a_batch_asks_for_the_keys_of_all_of_it_and_saves_what_the_batch_saves() -> None:
    lookup = make_lookup(KEYS)
    counts = ClientCounts()
    counts.repeated(lookup._replace(inverse=lookup.inverse[:1]), DIM)
    assert counts.deduplication_saved_bytes == 2 * (8 + 4 * DIM)
