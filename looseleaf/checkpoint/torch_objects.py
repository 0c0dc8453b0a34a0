"""Objects of torch that are saved whole, although torch's own pickling refuses them or leaves parts out (design §3)."""

from __future__ import annotations

import copyreg
import gc
from collections import defaultdict
from collections.abc import Container
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

_REFUSING: Final = "torch.nn.utils.parametrize"


def reduce_object(value: Any, kind: type, heads: Container[int]) -> Any:
    """As any object by its attributes, where torch would not; None for all others. `heads`: see `_reduce_scaler`.

    A parametrized module's class was made for it, and is saved by value. An optimizer's `__getstate__` keeps three
    attributes, and loses a subclass's own, LBFGS's parameters, hooks, and the step that a schedule counts. A loader's
    persistent workers stay behind.
    """
    own = getattr(kind, "__getstate__", None)
    refused = issubclass(kind, torch.nn.Module) and getattr(own, "__module__", None) == _REFUSING
    if own is torch.optim.Optimizer.__getstate__ and id(vars(value)) in heads:
        return copyreg.__newobj__, (kind,), vars(value), None, None, adopt_optimizer  # type: ignore[attr-defined]
    if refused or own is torch.optim.Optimizer.__getstate__:
        return copyreg.__newobj__, (kind,), vars(value)  # type: ignore[attr-defined]
    if has_workers(value):
        return copyreg.__newobj__, (kind,), {**vars(value), "_iterator": NewWorkers()}  # type: ignore[attr-defined]
    if own is torch.amp.GradScaler.__getstate__:
        return _reduce_scaler(value, kind, heads)
    if issubclass(kind, torch.fx.GraphModule):
        # By itself it would be traced again, and have another graph than the one that a person holds.
        return object.__new__, (kind,), vars(value)
    return None


def adopt_optimizer(made: Any, state: dict[str, Any]) -> None:
    """Makes `state` itself the attributes, as others hold the same dict; the class is made ready for its steps."""
    made.__dict__ = state
    torch.optim.Optimizer.__setstate__(made, {})


def _reduce_scaler(value: Any, kind: type, heads: Container[int]) -> Any:
    """A GradScaler with its scale, also in the middle of a step: then it knows its optimizers by their addresses.

    None, so that torch refuses, if it is to know one of them that is not among `heads`, the ids of objects that every
    unit may refer to.
    """
    if not value.is_enabled():
        return copyreg.__newobj__, (kind,), vars(value)  # type: ignore[attr-defined]
    steps = value._per_optimizer_states
    found = [one for one in gc.get_objects() if id(one) in steps and id(one) in heads] if steps else []
    if len(found) < len(steps):
        return None
    state = {**vars(value), "_per_optimizer_states": steps.default_factory}
    pairs = [(one, steps[id(one)]) for one in found]
    return copyreg.__newobj__, (kind,), (state, pairs), None, None, set_scaler  # type: ignore[attr-defined]


def set_scaler(made: Any, state: tuple[dict[str, Any], list[tuple[Any, Any]]]) -> None:
    """Its attributes, and its steps under the new addresses of their optimizers."""
    attributes, pairs = state
    vars(made).update(attributes)
    made._per_optimizer_states = defaultdict(made._per_optimizer_states, {id(one): step for one, step in pairs})


def has_workers(value: Any) -> bool:
    """Whether it is a loader that keeps its worker processes from one epoch to the next, and has started them."""
    return isinstance(value, DataLoader) and value.persistent_workers and value._iterator is not None


class NewWorkers:
    """Stands where a restored loader had its persistent workers, and starts others when it is iterated again."""

    def _reset(self, loader: Any) -> None:
        # A new iterator draws a seed for its workers, which one that goes on would not: it comes from elsewhere.
        generator = loader.generator
        loader.generator = torch.Generator().manual_seed(torch.initial_seed())
        try:
            loader._iterator = loader._get_iterator()
        finally:
            loader.generator = generator
