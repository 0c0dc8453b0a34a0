"""Policies by name: the scheduler's own, and the four that it is compared with, each with its assumptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from looseleaf.errors import InvalidArgument
from looseleaf.sim.policies.looseleaf import LooseLeafPolicy
from looseleaf.sim.policies.modal import ModalPolicy
from looseleaf.sim.policies.naive import NaivePolicy
from looseleaf.sim.policies.notebookos import NotebookOsPolicy
from looseleaf.sim.policies.pinned import PinnedPolicy
from looseleaf.sim.world import Policy, World

_POLICIES: Final[dict[str, Callable[[World], Policy]]] = {
    "looseleaf": LooseLeafPolicy,
    "pinned": PinnedPolicy,
    "notebookos": NotebookOsPolicy,
    "modal": ModalPolicy,
    "naive": NaivePolicy,
}
POLICIES: Final = tuple(_POLICIES)


def make_policy(name: str, world: World) -> Policy:
    """The policy of that name, for one world. Raises InvalidArgument `POLICY_UNKNOWN`."""
    if name not in _POLICIES:
        raise InvalidArgument(
            "POLICY_UNKNOWN", f"There is no policy {name!r}: give {', '.join(_POLICIES)}.", policy=name)
    return _POLICIES[name](world)
