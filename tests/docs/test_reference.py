"""The reference pages are what the models and the command line say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import get_args

import pytest
import typer.main

import heterps
from heterps import errors
from heterps.cli import app
from heterps.config import Job, Optimizer
from heterps.report import prometheus, prometheus_servers

DOCS = Path(__file__).parent.parent.parent / "docs"


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(DOCS)  # its own parts are beside it
    spec = importlib.util.spec_from_file_location("build_reference", DOCS / "build_reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_pages_are_current(builder: ModuleType) -> None:
    assert len(builder.PAGES) == 5
    for page, render in builder.PAGES.items():
        assert page.read_text(encoding="utf-8") == render(), f"docs/reference/{page.name} is stale: run `make docs`"


def test_every_public_name_error_and_metric_is_on_its_page(builder: ModuleType) -> None:
    python, wrong, told = (
        (builder.REFERENCE / name).read_text("utf-8") for name in ("python.md", "errors.md", "metrics.md")
    )
    functions = [name for name in heterps.__all__ if callable(getattr(heterps, name))]
    assert len(functions) > 15
    for name in functions:
        assert f"\n### heterps.{name}\n" in python
    for name, kind in vars(errors).items():
        assert not isinstance(kind, type) or f"`{name}` | {kind.exit_code} |" in wrong
    for name in prometheus.NAMES:
        assert f"| `{name}` | gauge | " in told
    for name in prometheus_servers.NAMES:
        assert f"| `{name.removesuffix('_bucket')}` | " in told


def test_every_command_and_option_is_on_the_page_with_an_example(builder: ModuleType) -> None:
    sections = builder.render_commands().split("\n## ")[2:]  # after the head and the exit codes
    found = builder.commands(typer.main.get_command(app))
    assert len(found) > 5
    for section, (name, command) in zip(sections, found.items(), strict=True):
        assert section.startswith(f"`{name}`")
        assert section.rstrip().split("```")[-2].strip().startswith(name), f"{name} has no example"
        for parameter in command.params:
            assert f"| {parameter.help} |" in section, f"{name}: {parameter.name}"


def test_every_exit_code_is_on_the_page_of_commands(builder: ModuleType) -> None:
    page = builder.render_commands()
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    for code in {0, 130, 143, *(kind.exit_code for kind in kinds)}:
        assert f"\n| {code} | " in page


def test_every_field_at_every_depth_is_on_the_page_with_its_meaning(builder: ModuleType) -> None:
    page = builder.render()
    models = [model for _, model in builder._walk("", Job)]
    assert len(models) > 10
    for model in models:
        for name, field in model.model_fields.items():
            if name != "kind":
                assert field.description, f"{model.__name__}.{name} has no description"
                assert re.search(rf"^\| `{name}` \|.*\| {re.escape(field.description)} \|$", page, re.MULTILINE), name


def test_only_optimizers_are_called_optimizers(builder: ModuleType) -> None:
    page = builder.render()
    kinds = [optimizer.model_fields["kind"].default for optimizer in get_args(Optimizer)]
    assert re.findall(r"## Optimizer `kind: (\w+)`", page) == kinds
    resource = page[page.index("## `cluster.resources.<name>`") :].partition("\n## ")[0]
    assert "| `kind` | text or null | `null` | The offer" in resource


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
