"""Saves and restores a small state in a zygote, so that no worker has to do any part of that for the first time.

A worker's first restore would make what libraries make at their first use (IPython's formatters, compiled patterns,
tables of paths), and let the interpreter specialise the code that runs. Either is done again in each worker, and each
page that it writes is copied first. It leaves in the zygote what a first use does, and none of the state.
"""

from __future__ import annotations

import logging
import mmap
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from looseleaf.checkpoint.manifest import RegionRef
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.dirty_tracker import MappedRegions, map_many
from looseleaf.ids import Epoch, ExecutionId, SessionId, Version
from looseleaf.units import KIB, REGION_BYTES

log = logging.getLogger("looseleaf.worker")

# Of 8 calls on CPython specialises a function's code; each round calls most functions several times.
ROUNDS: Final = 3
# Of an array that is a payload of its own.
_PAYLOAD_BYTES: Final = 64 * KIB
_CODE: Final = """
def double(value, *, times=2):
    return [value] * times if settings else value
class Point:
    def __init__(self, x): self.x = x
"""


def rehearse() -> bool:
    """Whether it went well; if not, the log says why and workers are only slower. For a process without other threads.

    What libraries import at their first use should be here already (`zygote_imports.LOADED_LATER`): of the warning
    filters that such an import adds none is left.
    """
    lacking: set[str] = set()
    try:
        with _kept_as_it_is():
            for number in range(ROUNDS):
                lacking |= _round(number)
    except Exception as error:
        log.warning("rehearsal_failed error=%s", type(error).__name__, exc_info=error)
        return False
    if lacking:
        log.warning("rehearsal_incomplete lacking=%s", sorted(lacking))
    return not lacking


def _round(number: int) -> set[str]:
    """What did not move, by name, or by a sentence if it is no variable."""
    io = _Store()
    saved, restored = _tracker(_state(number), io), _tracker({}, io)
    try:
        report = saved.save(ExecutionId("rehearsal"))
        names = [name for name, _ in saved.variables()]
        found = [restored.restore((), version=report.version, soon=names), restored.restore(names)]
    finally:
        for tracker in (saved, restored):
            tracker.process.wait_no_longer()
        io.close()
    lacking = {entry.name for entry in report.unsaved}
    for part in found:
        lacking.update(part.missing, part.problems, (entry.name for entry in part.failed))
    return lacking


def _tracker(namespace: dict[str, Any], io: _Store) -> StateTracker:
    # Whether saves are paranoid a worker's own environment tells, later.
    return StateTracker(
        namespace, io, session_id=SessionId("rehearsal"), epoch=Epoch(1), hidden=lambda name: name.startswith("__"),
        paranoid=False,
    )  # fmt: skip


def _state(number: int) -> dict[str, Any]:
    """Something of each kind that most sessions have; other values in each round."""
    state: dict[str, Any] = {"__name__": "__main__"}
    exec(_CODE, state)  # as a cell: functions and classes of a session
    state["settings"] = {"lr": number / 10, "names": ["a", "b"], "when": (number, None, True)}
    state["point"] = state["Point"](state["settings"])
    state["blob"] = bytes([number]) * KIB
    if (numpy := sys.modules.get("numpy")) is not None:
        state["row"] = numpy.full(8, number)
        state["array"] = numpy.full(_PAYLOAD_BYTES // 8, number / 2)
        state["view"] = state["array"][:16]
    if (pandas := sys.modules.get("pandas")) is not None:
        state["frame"] = pandas.DataFrame({"x": [number, 2.5], "s": ["a", "b"]})
    if (torch := sys.modules.get("torch")) is not None:
        state["tensor"] = torch.full((_PAYLOAD_BYTES // 4,), float(number))
        state["net"] = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
    return state


@contextmanager
def _kept_as_it_is() -> Iterator[None]:
    """A restore here sets what it finds set, but for entries of these two that it does not know the names of."""
    filters, path = list(warnings.filters), list(sys.path)
    try:
        yield
    finally:
        sys.path[:] = path
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]


class _Store:
    """A StateIO in memory, for one version."""

    def __init__(self) -> None:
        self._units: dict[bytes, bytes] = {}
        self._places: dict[bytes, int] = {}
        self._fd = os.memfd_create("rehearsal", os.MFD_CLOEXEC)
        self._manifest = b""

    def close(self) -> None:
        os.close(self._fd)

    def have_regions(self, refs: Sequence[RegionRef], session_bytes: int = 0) -> list[int]:
        return [index for index, ref in enumerate(refs) if ref.region_id not in self._places]

    def put_regions(self, items: Iterable[tuple[RegionRef, memoryview]]) -> None:
        for ref, data in items:
            offset = self._places.setdefault(ref.region_id, len(self._places) * REGION_BYTES)
            os.ftruncate(self._fd, offset + max(REGION_BYTES, mmap.PAGESIZE))
            os.pwrite(self._fd, data, offset)

    def put_units(self, items: Iterable[tuple[bytes, bytes]]) -> None:
        self._units.update(items)

    def commit(self, manifest_bytes: bytes, parent: Version, epoch: Epoch, execution_id: ExecutionId) -> Version:
        self._manifest = bytes(manifest_bytes)
        return Version(parent + 1)

    def manifest(self, version: Version) -> tuple[Mapping[str, Any], bytes | None]:
        return {"version": version, "epoch": 1, "durable_version": 0}, self._manifest

    def fetch_units(self, hashes: Sequence[bytes]) -> dict[bytes, bytes]:
        return {unit_hash: self._units[unit_hash] for unit_hash in hashes}

    def map_regions(self, refs: Sequence[RegionRef]) -> MappedRegions:
        return self.map_many([refs])[0]

    def map_many(self, groups: Sequence[Sequence[RegionRef]]) -> list[MappedRegions]:
        places = [(self._fd, self._places[ref.region_id], ref.length_bytes) for refs in groups for ref in refs]
        return map_many(places, [len(refs) for refs in groups])

    def unmap_regions(self, refs: Sequence[RegionRef]) -> None:
        pass
