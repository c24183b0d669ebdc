"""Leases and positions: one says to the other where a run is."""

from __future__ import annotations

import pytest
from tiny import write_tiny

from heterps.config import load_job
from heterps.data.reader import Position, Reader
from heterps.training.coordinator.positions import first_leases, lease_progress, restored_leases


@pytest.fixture
def job(tiny_job, tmp_path):
    write_tiny(tmp_path / "train.parquet", 160)
    return load_job(tiny_job)


@pytest.fixture
def reader(job):
    return Reader(job.data.train, job.data.columns, batch_size=16, shuffle=False, seed=0)


def test_batches_done_in_order_are_a_position_from_which_leases_go_on(job, reader):
    leases = first_leases(job, reader)
    for _ in range(3):
        leases.done("a", *leases.take("a"))
    progress = lease_progress(leases, reader)
    assert progress["position"]["samples"] == 48
    by_leases = restored_leases(job, reader, progress)
    by_position = first_leases(job, reader, Position(**progress["position"]))
    assert by_leases.first == by_position.first == (0, 3)


def test_batches_with_holes_have_no_position(job, reader):
    leases = first_leases(job, reader)
    first, second = leases.take("a"), leases.take("b")
    leases.done("b", *second)
    progress = lease_progress(leases, reader)
    assert "position" not in progress
    again = restored_leases(job, reader, progress)
    assert again.take("c") == first
    assert again.take("c") == (0, 2)


def test_the_end_of_an_epoch_is_the_start_of_the_next(job, reader):
    leases = first_leases(job.model_copy(update={"data": job.data.model_copy(update={"epochs": 2})}), reader)
    for _ in range(10):
        leases.done("a", *leases.take("a"))
    position = lease_progress(leases, reader)["position"]
    assert (position["epoch"], position["samples"]) == (1, 0)
