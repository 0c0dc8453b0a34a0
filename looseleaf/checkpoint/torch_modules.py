"""Modules that torch itself does not want pickled, although their state is plain (design §3)."""

from __future__ import annotations

import copyreg
from typing import Any, Final

_REFUSING: Final = "torch.nn.utils.parametrize"


def reduce_module(value: Any, kind: type) -> Any:
    """A parametrized module, as any object: its class was made for it and is saved by value. None for all others.

    torch refuses because plain pickle would look such a class up by its name.
    """
    refusal = getattr(kind, "__getstate__", None)
    if getattr(refusal, "__module__", None) != _REFUSING:
        return None
    return copyreg.__newobj__, (kind,), vars(value)  # type: ignore[attr-defined]
