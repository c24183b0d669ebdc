"""The reference of the job file is what the models say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from heterps.config import Job

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_reference", DOCS / "build_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_page_is_current(builder: ModuleType) -> None:
    assert builder.PAGE.read_text(encoding="utf-8") == builder.render(), (
        "docs/reference/job.md is stale: run `make docs`"
    )


def test_every_field_at_every_depth_is_on_the_page_with_its_meaning(builder: ModuleType) -> None:
    page = builder.render()
    models = [model for _, model in builder._walk("", Job)]
    assert len(models) > 10
    for model in models:
        for name, field in model.model_fields.items():
            if name != "kind":
                assert field.description, f"{model.__name__}.{name} has no description"
                assert re.search(rf"^\| `{name}` \|.*\| {re.escape(field.description)} \|$", page, re.MULTILINE), name


def test_links_lead_to_headings(builder: ModuleType) -> None:
    page = builder.render()
    anchors = {
        re.sub(r"[^a-z0-9_ -]", "", line[3:].lower()).replace(" ", "-")
        for line in page.splitlines()
        if line[:3] == "## "
    }
    links = set(re.findall(r"\]\(#([^)]+)\)", page))
    assert links
    assert links <= anchors


def test_allowed_values_are_put_in_words(builder: ModuleType) -> None:
    page = builder.render()
    assert "| `keep` | whole number >= 2 | `2` |" in page
    assert "| `train` | text or list of text | **required** |" in page
    assert '| `dense_missing` | `fill` or `error` or `skip` | `"fill"` |' in page
    assert "| `seed` | whole number >= 0 and < 2^63 | `0` |" in page
