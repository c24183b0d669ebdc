"""Layouts that a job can have, and those that it cannot, with what to do about it."""

from __future__ import annotations

from typing import Any

import pytest
from flow_play import make_layout
from torch import Tensor, nn

from heterps.config import Job
from heterps.errors import ConfigError
from heterps.training.coordinator.scaling import check_layout, scaled


def a_job(**more: Any) -> Job:
    fields: dict[str, Any] = {
        "data": {"train": "unread.parquet", "batch_size": 8},
        "cluster": {
            "resources": {"cpu": {"device": "cpu", "usd_per_hour": 1, "limit": 5}},
            "server_resource": "cpu",
        },
    }
    return Job.model_validate(fields | more)


class OfBatches(nn.Linear):
    def loss(self, output: Tensor, label: Tensor) -> Tensor:
        return (output - label).std()


PLAIN = nn.Linear(1, 1)


@pytest.mark.parametrize(
    ("sync", "counts", "lanes", "model", "text"),
    [
        ("bsp", (3, 1), 2, PLAIN, "2 lanes leave some of the 3 workers"),
        ("asp", (3, 1), 2, PLAIN, "2 lanes leave some of the 3 workers"),
        ("bsp", (1,), 9, PLAIN, "8 samples cannot be divided among 9 lanes"),
        ("bsp+backup:1", (2,), 2, PLAIN, "backup workers are for `heterps simulate`"),
        ("bsp", (2,), 2, OfBatches(1, 1), "OfBatches has a loss of whole batches"),
    ],
)
def test_a_layout_that_cannot_be_is_refused(sync, counts, lanes, model, text):
    with pytest.raises(ConfigError, match=text):
        check_layout(a_job(sync=sync), make_layout(counts, lanes, in_rounds=sync.startswith("bsp")), model)


@pytest.mark.parametrize(
    ("sync", "counts", "lanes", "model"),
    [
        ("bsp", (3, 1), 3, PLAIN),
        ("bsp", (1,), 8, PLAIN),
        ("asp", (1,), 9, PLAIN),
        ("asp", (2,), 2, OfBatches(1, 1)),
        ("bsp", (1,), 1, OfBatches(1, 1)),
    ],
)
def test_a_layout_that_can_be_is_not(sync, counts, lanes, model):
    check_layout(a_job(sync=sync), make_layout(counts, lanes, in_rounds=sync.startswith("bsp")), model)


def test_a_scaled_stage_has_its_first_workers_still_and_the_layout_another_epoch():
    before = make_layout((1, 2), 2, epoch=4)
    after = scaled(a_job(), before, 0, 3, next_number=1)
    assert after.stages[0].workers == ("worker-1.0", "worker-1.1", "worker-1.2")
    assert after.stages[1] == before.stages[1]
    assert after.epoch == 5
    check_layout(a_job(), after, PLAIN)


def test_a_name_that_somebody_had_is_not_given_again():
    """Worker 1.1 left before. Servers would take the pushes of another of its name for repeats."""
    after = scaled(a_job(), make_layout((1, 1), 4), 0, 3, next_number=2)
    assert after.stages[0].workers == ("worker-1.0", "worker-1.2", "worker-1.3")


@pytest.mark.parametrize("sync", ["bsp", "asp", "ssp:2"])
@pytest.mark.parametrize("counts", [(1, 1), (2, 1), (1, 3), (3, 2)])
@pytest.mark.parametrize("count", [1, 2, 3])
def test_every_layout_that_scaling_gives_can_be(sync, counts, count):
    job = a_job(sync=sync, workers={"lanes": 2})
    if count + counts[1] <= 5:
        check_layout(job, scaled(job, make_layout(counts, 3), 0, count, next_number=counts[0]), PLAIN)


def test_there_are_only_as_many_units_as_the_cluster_allows_in_all_stages_together():
    with pytest.raises(ConfigError, match=r"6 units of 'cpu'.*allows 5"):
        scaled(a_job(), make_layout((1, 3), 4), 0, 3, next_number=1)


def test_a_stage_that_is_not_there_is_refused_by_the_number_that_people_use():
    with pytest.raises(ConfigError, match="no stage 3: the plan has 2"):
        scaled(a_job(), make_layout((1, 1), 4), 2, 1, next_number=1)
