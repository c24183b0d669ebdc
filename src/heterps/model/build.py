"""Build the module of a job's `model`: by the name of a zoo model, or by the import path of the user's factory.

deepfm                      a model of the zoo
package.module:factory      a function or class of a module that can be imported
path/to/script.py:factory   one of a script, which is imported as a module: its main part must be guarded
python:Name                 an object of this process, for as long as it is held
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from contextvars import ContextVar
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn
from xxhash import xxh3_64_hexdigest

from heterps.config import Model, Schema
from heterps.errors import HeterpsError, ModelError
from heterps.model.zoo import ZOO

HERE = "python"
"""What stands for the module in the names of factories that are objects of this process."""

ONE_AT_A_TIME = threading.Lock()
"""Lock for building models: threads share torch's random generator, so building two at once would mix their numbers."""


HELD: dict[str, Callable[..., Any]] = {}
"""Factories that are objects of this process, by their name in a job."""

_is_importing: ContextVar[str | None] = ContextVar("script that is being imported", default=None)


def imported_script() -> str | None:
    """The script that is being imported for its model, if one is: it must not start a run of its own."""
    return _is_importing.get()


def build_model(model: Model, schema: Schema, seed: int = 0) -> nn.Module:
    """Call the factory with `model.args` and return its module; equal seeds give equal initial weights.

    A factory with parameters `schema` or `seed` is given them. The caller's random state is left unchanged.
    """
    factory = ZOO.get(model.factory) or HELD.get(model.factory) or _imported(model.factory)
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
    module_name, colon, attribute = path.rpartition(":")
    if not colon:
        near = get_close_matches(path, ZOO, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ModelError(
            f"there is no model {path!r} in the zoo: {hint}It has {', '.join(ZOO)}. "
            "A model of your own is named by its import path, package.module:factory."
        )
    if module_name == HERE:
        raise ModelError(
            f"model {path} was an object of the Python process that started its run. Pass it again, as "
            "heterps.train(model=...), or name its class or a function that makes it: package.module:factory."
        )
    module = _script(Path(module_name), path) if module_name.endswith(".py") else _module(module_name, path)
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


def _script(file: Path, path: str) -> Any:
    """Import a script under a name of its own. The script that this process runs is taken as it is."""
    main = sys.modules["__main__"]
    if not file.is_file():
        raise ModelError(f"model {path}: there is no file {file}. It must be on every machine of the run.")
    if (running := getattr(main, "__file__", None)) is not None and file.samefile(running):
        return main
    name = f"heterps_script_{file.stem}_{xxh3_64_hexdigest(str(file.resolve()).encode())}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        if str(file.parent) not in sys.path:
            sys.path.insert(0, str(file.parent))
        token = _is_importing.set(str(file))
        try:
            spec.loader.exec_module(module)
        except Exception as error:  # the user's own code
            del sys.modules[name]
            if isinstance(error, HeterpsError):
                raise
            raise ModelError(
                f"model {path}: importing {file} raised {type(error).__name__}: {error} ({_line_of(error)}). Fix it "
                'first; what only the main process should do belongs under `if __name__ == "__main__":`.'
            ) from error
        finally:
            _is_importing.reset(token)
    return sys.modules[name]


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
