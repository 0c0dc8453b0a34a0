"""Objects of torch that are saved whole, although torch's own pickling refuses them or leaves parts out (design §3)."""

from __future__ import annotations

import copyreg
from typing import Any, Final

import torch

_REFUSING: Final = "torch.nn.utils.parametrize"


def reduce_object(value: Any, kind: type) -> Any:
    """As any object by its attributes, where torch would not; None for all others.

    A parametrized module's class was made for it, and is saved by value. An optimizer's `__getstate__` keeps three
    attributes, and loses a subclass's own, LBFGS's parameters, hooks, and the step that a schedule counts.
    """
    own = getattr(kind, "__getstate__", None)
    refused = issubclass(kind, torch.nn.Module) and getattr(own, "__module__", None) == _REFUSING
    if refused or own is torch.optim.Optimizer.__getstate__:
        return copyreg.__newobj__, (kind,), vars(value)  # type: ignore[attr-defined]
    return None
