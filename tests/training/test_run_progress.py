"""RunProgress: samples, seconds and intervals of a run, and when a checkpoint is due; resumed runs go on counting."""

from __future__ import annotations

import json

import numpy as np

from heterps.config import Checkpoint, Data, Job
from heterps.training.run.progress import RunProgress, Scores


def a_job(**checkpoint) -> Job:
    every = Checkpoint(**{"every_minutes": None, **checkpoint})
    return Job(data=Data(train="unread.parquet"), checkpoint=every, metrics_every_samples=20)


def scores(*labels: int) -> Scores:
    return Scores(np.linspace(-1, 1, len(labels), dtype=np.float32), np.array(labels, np.float32))


MORE = {"epoch": 0, "rows": 5, "table_bytes": 7}


def test_an_interval_is_over_after_its_samples_and_its_line_says_how_fast_it_was():
    progress = RunProgress(a_job())
    progress.add(15, [scores(0, 1)], 1.0, 0.5)
    assert not progress.interval_is_over
    progress.add(15, [scores(1), scores(0, 0)], 3.0, 0.5)
    assert progress.interval_is_over
    told = progress.close_interval(dict(MORE))
    assert (told["samples"], told["seconds"], told["samples_per_s"], told["rows"]) == (30, 3.0, 10.0, 5)
    assert not progress.interval_is_over
    progress.add(20, [scores(1, 0)], 5.0, 0.5)
    assert progress.close_interval(dict(MORE))["samples_per_s"] == 10.0


def test_an_interval_that_took_no_time_has_no_speed():
    progress = RunProgress(a_job())
    progress.add(20, [scores(0, 1)], 0.0, 0.5)
    assert progress.close_interval(dict(MORE))["samples_per_s"] is None


def test_metrics_of_the_whole_run_have_the_open_interval_in_them():
    progress = RunProgress(a_job())
    progress.add(20, [scores(0, 1)], 1.0, 0.5)
    progress.close_interval(dict(MORE))
    progress.add(2, [scores(0, 1)], 2.0, 0.5)
    once = RunProgress(a_job())
    once.add(22, [scores(0, 1), scores(0, 1)], 2.0, 0.5)
    assert progress.train_metrics().fields() == once.interval.fields()


def test_a_checkpoint_is_due_by_samples_or_by_minutes():
    by_samples, by_time = RunProgress(a_job(every_samples=30)), RunProgress(a_job(every_minutes=1.0))
    for progress in (by_samples, by_time):
        progress.add(29, [], 59.0, 0.5)
        assert not progress.save_is_due
        progress.add(1, [], 60.0, 0.5)
        assert progress.save_is_due
        progress.saved()
        assert not progress.save_is_due
        progress.add(29, [], 119.0, 0.5)
        assert not progress.save_is_due
    assert not RunProgress(a_job(every_samples=None)).save_is_due


def test_a_resumed_run_goes_on_where_it_was():
    progress = RunProgress(a_job(every_samples=30))
    progress.add(20, [scores(0, 1)], 1.0, 0.5)
    progress.close_interval(dict(MORE))
    progress.add(15, [scores(0, 1, 1)], 2.0, 0.5)
    state = json.loads(json.dumps(progress.state()))
    progress.add(5, [scores(1)], 3.0, 0.5)
    progress.close_interval(dict(MORE))  # lost with what the checkpoint has not
    again = RunProgress(a_job(every_samples=30))
    again.restore(35, state)
    assert (again.samples, again.seconds, again.restarts) == (35, 2.0, 0)
    assert not again.save_is_due
    assert again.interval_started == 20
    again.add(5, [scores(1)], 3.0, 0.5)
    assert again.interval_is_over
    assert again.train_metrics().fields() == progress.train_metrics().fields()
    assert again.close_interval(dict(MORE))["samples_per_s"] == 10.0


def test_metrics_that_are_not_defined_are_null():
    progress = RunProgress(a_job())
    progress.add(1, [scores(1)], 1.0, 0.5)
    assert progress.interval.fields()["auc"] is None


def test_the_samples_of_the_next_checkpoint_are_known_ahead():
    progress = RunProgress(a_job(every_samples=50))
    assert progress.save_at == 50
    progress.add(60, [scores(0, 1)], 1.0, 0.5)
    assert progress.save_is_due
    progress.saved()
    assert progress.save_at == 110
    assert RunProgress(a_job(every_minutes=1.0)).save_at is None, "minutes decide"
