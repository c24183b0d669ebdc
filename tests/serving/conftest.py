"""A run that all tests of serving share."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from shop import JOB, shop_table

from heterps.launch import train


@pytest.fixture(scope="session")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of JOB, with its data beside it: train.parquet, test.parquet."""
    folder = tmp_path_factory.mktemp("shop")
    pq.write_table(shop_table(640, 1), folder / "train.parquet", row_group_size=200)
    pq.write_table(shop_table(300, 2, new_ids=5), folder / "test.parquet", row_group_size=70)
    return train_job(folder, JOB)


def train_job(folder: Path, job: str, run: str = "run") -> Path:
    """Train a job whose data is in `folder`; return the folder of the run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        (folder / "job.yaml").write_text(job)
        return folder / train("job.yaml", run).folder
