"""Name a model that was given in Python, so that every process of a run can build it. Nothing is pickled.

a name                                      stays as it is: deepfm, package.module:factory
a class or function of a module             package.module:Name
one of the script that runs                 /path/to/script.py:Name
a module object, a lambda, what a notebook or another function defines    python:Name, in this process only
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import nn

from heterps.errors import ModelError
from heterps.model.build import HELD, HERE

Given = str | nn.Module | type[nn.Module] | Callable[..., nn.Module]


@contextmanager
def name_model(model: Given, *, in_this_process: bool) -> Iterator[str]:
    """Yield the name of a model for `Model.factory`, which is good until the end.

    A module object is copied whenever the run builds its model: it stays as it is, and its weights are the initial
    ones. Raises ModelError where other processes must build the model, and cannot.
    """
    if isinstance(model, str):
        yield model
        return
    if not callable(model):
        raise ModelError(
            f"a model is a torch.nn.Module, its class, a function that makes it, or a name; got {model!r}."
        )
    if not isinstance(model, nn.Module) and (path := _import_path(model)) is not None:
        yield path
        return
    shown = _shown(model)
    if not in_this_process:
        raise ModelError(
            f"{shown} exists in this process only, and other processes must build the model too. Write a class or a "
            "function that makes it at the top level of a file, and pass that one; or train with launcher='inline'."
        )
    name = f"{HERE}:{shown}"
    if name in HELD:
        raise ModelError(f"{shown} is being trained in this process already. Wait for the end of that run.")
    HELD[name] = (lambda: _copied(model)) if isinstance(model, nn.Module) else model
    try:
        yield name
    finally:
        del HELD[name]


def _import_path(factory: Any) -> str | None:
    """The path by which another process imports a class or function; None where it cannot."""
    name, module = getattr(factory, "__qualname__", ""), sys.modules.get(getattr(factory, "__module__", ""))
    if module is None or getattr(module, name, None) is not factory:
        return None
    if module.__name__ != "__main__":
        return f"{module.__name__}:{name}"
    if module.__spec__ is not None:  # python -m package.module
        return f"{module.__spec__.name}:{name}"
    file = getattr(module, "__file__", None)
    return f"{Path(file).resolve()}:{name}" if file is not None and Path(file).is_file() else None


def _shown(model: Any) -> str:
    name: str = getattr(model, "__qualname__", type(model).__qualname__)
    return name.rpartition(".")[2]


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:  # the user's own code
        raise ModelError(
            f"{type(module).__name__} cannot be copied: {type(error).__name__}: {error}. Pass its class, or a function "
            "that makes it."
        ) from error
