"""Build the module of a job's `model`: by the name of a zoo model, or by the import path of the user's factory."""

from __future__ import annotations

import importlib
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn

from heterps.config import Model, Schema
from heterps.errors import HeterpsError, ModelError
from heterps.model.zoo import ZOO

ONE_AT_A_TIME = threading.Lock()
"""Lock for building models: threads share torch's random generator, so building two at once would mix their numbers."""


def build_model(model: Model, schema: Schema, seed: int = 0) -> nn.Module:
    """Call the factory with `model.args` and return its module; equal seeds give equal initial weights.

    A factory with parameters `schema` or `seed` is given them. The caller's random state is left unchanged.
    """
    factory = ZOO.get(model.factory) or _imported(model.factory)
    arguments = _arguments(factory, model, schema, seed)
    with ONE_AT_A_TIME, torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        try:
            module = factory(**arguments)
        except HeterpsError:
            raise
        except Exception as error:  # the user's own code
            raise ModelError(
                f"model {model.factory}: the factory raised {type(error).__name__}: {error} ({_line_of(error)}). "
                "Fix it, or its model.args."
            ) from error
    if not isinstance(module, nn.Module):
        raise ModelError(
            f"model {model.factory}: the factory returned {type(module).__name__}, which is not a torch.nn.Module."
        )
    return module


def _arguments(factory: Callable[..., Any], model: Model, schema: Schema, seed: int) -> dict[str, Any]:
    signature = inspect.signature(factory)
    offered = {"schema": schema, "seed": seed}
    arguments = {name: value for name, value in offered.items() if name in signature.parameters} | model.args
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ModelError(
            f"model {model.factory}: {error}. Its signature is {model.factory.split(':')[-1]}{signature}; "
            f"model.args gave: {', '.join(model.args) or 'nothing'}."
        ) from None
    return arguments


def _imported(path: str) -> Callable[..., Any]:
    module_name, colon, attribute = path.partition(":")
    if not colon:
        near = get_close_matches(path, ZOO, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ModelError(
            f"there is no model {path!r} in the zoo: {hint}It has {', '.join(ZOO)}. "
            "A model of your own is named by its import path, package.module:factory."
        )
    module = _module(module_name, path)
    if not hasattr(module, attribute):
        public = [name for name in vars(module) if not name.startswith("_")]
        near = get_close_matches(attribute, public, n=1)
        hint = f"; did you mean {module_name}:{near[0]}?" if near else f": check the spelling in {module.__file__}."
        raise ModelError(f"model {path}: {module_name} has no {attribute!r}{hint}")
    factory = getattr(module, attribute)
    if not callable(factory):
        raise ModelError(
            f"model {path}: {attribute} is a {type(factory).__name__}, which cannot be called. "
            "Name a function or class that makes the module."
        )
    checked: Callable[..., Any] = factory
    return checked


def _module(name: str, path: str) -> Any:
    """Import a module, with the working directory first in the path, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise ModelError(
                f"model {path}: there is no module {error.name!r}, neither installed nor in {here}. "
                "Run from the folder that holds it, or install its package."
            ) from None
        raise ModelError(f"model {path}: {name} needs {error.name!r}, which is not installed. Install it.") from error
    except (ValueError, TypeError) as error:
        raise ModelError(f"model {path}: {name!r} is not a module name; write package.module:factory.") from error
    except Exception as error:  # the user's own code
        raise ModelError(
            f"model {path}: importing {name} raised {type(error).__name__}: {error} ({_line_of(error)}). Fix it first."
        ) from error


def _line_of(error: BaseException) -> str:
    """Return the place where the error was raised, as file:line."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{frame.filename}:{frame.lineno}"
