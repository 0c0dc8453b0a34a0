"""What is recorded about each variable without loading it: the object pass's input (design §3, unit headers)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from looseleaf.checkpoint.manifest import Manifest, UnitHeader
    from looseleaf.ids import UnitId

PlainFlag = bool | int | float | str | None


@dataclass(frozen=True, slots=True)
class Payload:
    """One payload that a variable reaches: the device it lives on ("cpu", "cuda:0") and its bytes."""

    device: str
    size_bytes: int

    @property
    def on_gpu(self) -> bool:
        """It lives on a GPU."""
        return self.device not in ("", "cpu")


@dataclass(frozen=True, slots=True)
class NameFacts:
    """One variable, with everything it reaches.

    `kind`: of the root's own unit ("value", "function", "class", "module", "instance" ...).
    `global_names`: names that the code it reaches reads. `modules`: of the classes it reaches, submodules included.
    `payloads`: by payload id, so that what two variables share counts once. `flag`: the value, if `has_flag`.
    """

    kind: str = "value"
    type_name: str = ""
    type_module: str = ""
    global_names: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    payloads: Mapping[int, Payload] = field(default_factory=dict)
    flag: PlainFlag = None
    has_flag: bool = False

    @property
    def device_bytes(self) -> int:
        """Payload bytes on GPUs."""
        return sum(p.size_bytes for p in self.payloads.values() if p.on_gpu)


UNKNOWN_NAME = NameFacts()


def facts_from_manifest(manifest: Manifest) -> dict[str, NameFacts]:
    """Facts of every root of `manifest`, each over all units that it reaches. Reads headers only."""
    return {name: facts_of_root(manifest, unit_id) for name, unit_id in manifest.roots.items()}


def facts_from_headers(
    root: UnitHeader, reached: Iterable[UnitHeader] = (), payloads: Mapping[int, Payload] | None = None
) -> NameFacts:
    """Facts of one variable from its own header and those of the units it reaches, as a live session describes it."""
    headers = [root, *reached]
    return NameFacts(
        kind=root.kind,
        type_name=root.type_name,
        type_module=root.type_module,
        global_names=frozenset(name for header in headers for name in header.global_names),
        modules=frozenset(module for header in headers for module in header.modules),
        payloads=dict(payloads) if payloads is not None else _own_payloads(headers),
        flag=root.flag,
        has_flag=root.has_flag,
    )


def _own_payloads(headers: Iterable[UnitHeader]) -> dict[int, Payload]:
    """Payloads without ids of their own, numbered below zero so that they collide with none of a manifest."""
    found: dict[int, Payload] = {}
    for header in headers:
        for device, size_bytes in sorted(header.device_bytes.items()):
            found[-1 - len(found)] = Payload(device, size_bytes)
    return found


def facts_of_root(manifest: Manifest, unit_id: UnitId) -> NameFacts:
    """Facts of the variable whose value is unit `unit_id`, over all units that it reaches. Reads headers only."""
    others = sorted(manifest.reachable_units([unit_id]) - {unit_id})
    headers = [manifest.units[unit].header for unit in (unit_id, *others)]
    payload_ids = sorted({payload for header in headers for payload in header.payloads})
    entries = {payload: manifest.payloads[payload] for payload in payload_ids}
    payloads: dict[int, Payload] = {i: Payload(entry.device, entry.size_bytes) for i, entry in entries.items()}
    for header in headers:
        for device, size_bytes in sorted(header.device_bytes.items()):
            named = sum(entries[i].size_bytes for i in header.payloads if entries[i].device == device)
            if size_bytes > named:
                # Small memory inside the pickle; numbered below zero, as payloads without ids of their own.
                payloads[-1 - len(payloads)] = Payload(device, size_bytes - named)
    return facts_from_headers(headers[0], headers[1:], payloads)
