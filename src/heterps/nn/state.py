"""ModuleWithRows: the state of a module whose rows are on tables, and what keeps them from being lost unseen.

    state_dict()        parameters, buffers, and `num_rows`: how many rows there are that it does not have
    load_state_dict()   raises where there are fewer rows than that, and names the tables
    pickle              is refused where there are rows
    copy.deepcopy()     a module without tables: replicas, profiles and workers are made so

The reasons are in docs/decisions/0024.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from heterps.errors import ModelError
from heterps.ps.client.interface import RowClient

NUM_ROWS = "num_rows"
"""Name in a `state_dict`, below that of its module, of the numbers of rows of the module's tables."""


class ModuleWithRows(nn.Module):
    """A module with rows in `_tables` of `_client`, both unset before the first use, and `_uses` of them."""

    _client: RowClient | None
    _tables: list[str]
    _uses: dict[int, Any]
    _is_alone: bool  # it made its tables itself

    def names_in(self, name: str) -> list[str]:
        """The names of its tables; `name` is its name in the model."""
        raise NotImplementedError

    @property
    def has_rows(self) -> bool:
        """Whether its tables have rows that were trained or loaded, or may have: those on servers are not asked."""
        return bool(self._num_rows())

    def _num_rows(self) -> list[int]:
        """The number of rows of each of its tables, -1 where servers hold them; empty where none would be missed."""
        counts = [] if self._client is None else [self._client.rows_here(table) for table in self._tables]
        found = [-1 if count is None else count for count in counts]
        return found if any(found) else []

    @property
    def _unbound(self) -> dict[str, Any]:
        return {**self.__dict__, "_client": None, "_tables": [], "_uses": {}, "_is_alone": False}

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy is unbound, since rows are not part of the module."""
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__dict__.update(copy.deepcopy(self._unbound, memo))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """ModelError where the module has rows: pickle, as torch.save(model) uses it, would lose them."""
        if self.has_rows:
            raise ModelError(
                f"a pickle of {type(self).__name__}({self.extra_repr()}), as torch.save(model) makes it, would lose "
                "its rows. Save the model with heterps.save(model, folder), and load it with heterps.load(folder, "
                "into=model)."
            )
        return self._unbound

    def _save_to_state_dict(self, destination: Any, prefix: str, keep_vars: bool) -> None:
        """The numbers of rows stand in the `state_dict` for the rows themselves."""
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if counts := self._num_rows():
            destination[prefix + NUM_ROWS] = torch.tensor(counts)

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Adds an error where the `state_dict` was made with more rows than there are here."""
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        then = state_dict.get(prefix + NUM_ROWS)
        if then is None:
            return
        if prefix + NUM_ROWS in unexpected_keys:
            unexpected_keys.remove(prefix + NUM_ROWS)
        alone = self._client is None or self._is_alone
        tables = self.names_in(prefix.rstrip(".") or "embedding") if alone else self._tables
        needed: list[int] = then.tolist()
        here = self._num_rows() or [0] * len(tables)
        if any(0 <= count < (1 if least < 0 else least) for count, least in zip(here, needed, strict=False)):
            error_msgs.append(
                f"the model was trained with {_counted(tables, needed)}, which a state_dict does not have, and here "
                f"are {_counted(tables, here)}. Save it with heterps.save(model, folder), and load it with "
                "heterps.load(folder, into=model). To keep the weights alone and let the rows begin anew, leave the "
                f"names that end in {NUM_ROWS} out of the state_dict."
            )


def weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a model as its `state_dict` has them, without the numbers of rows in it."""
    counts = {f"{name}.{NUM_ROWS}".lstrip(".") for name, m in model.named_modules() if isinstance(m, ModuleWithRows)}
    return {name: tensor for name, tensor in model.state_dict().items() if name not in counts}


def _counted(tables: Sequence[str], counts: Sequence[int]) -> str:
    known = [f"{count:,} rows in table {table}" for table, count in zip(tables, counts, strict=False) if count >= 0]
    return " and ".join(known) or f"rows in {' and '.join(f'table {table}' for table in tables)} on servers"
