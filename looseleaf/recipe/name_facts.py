"""What is recorded about each variable without loading it: the object pass's input (design §3, unit headers)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from looseleaf.checkpoint.manifest import Manifest
    from looseleaf.ids import UnitId

# Devices that the memory of one unit may lie on: the host and its GPUs.
DEVICES_PER_UNIT_MAX = 128

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
    `payloads`: by payload id, so that what two variables share counts once; ids below zero stand for memory that has
    none. `flag`: the value, if `has_flag`; of a torch.device its string.
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


def facts_of_root(manifest: Manifest, unit_id: UnitId) -> NameFacts:
    """Facts of the variable whose value is unit `unit_id`, over all units that it reaches. Reads headers only."""
    reached = [unit_id, *sorted(manifest.reachable_units([unit_id]) - {unit_id})]
    headers = {unit: manifest.units[unit].header for unit in reached}
    payload_ids = sorted({payload for header in headers.values() for payload in header.payloads})
    entries = {payload: manifest.payloads[payload] for payload in payload_ids}
    payloads: dict[int, Payload] = {i: Payload(entry.device, entry.size_bytes) for i, entry in entries.items()}
    for unit, header in headers.items():
        for index, (device, size_bytes) in enumerate(sorted(header.device_bytes.items())):
            named = sum(entries[i].size_bytes for i in header.payloads if entries[i].device == device)
            if size_bytes > named:
                payloads[_inner_id(unit, index)] = Payload(device, size_bytes - named)
    root = headers[unit_id]
    return NameFacts(
        kind=root.kind,
        type_name=root.type_name,
        type_module=root.type_module,
        global_names=frozenset(name for header in headers.values() for name in header.global_names),
        modules=frozenset(module for header in headers.values() for module in header.modules),
        payloads=payloads,
        flag=root.flag,
        has_flag=root.has_flag,
    )


def _inner_id(unit_id: int, device_index: int) -> int:
    """Stands for small memory inside a unit's pickle, which has no payload id: below zero, the same for each name."""
    return -1 - unit_id * DEVICES_PER_UNIT_MAX - device_index
