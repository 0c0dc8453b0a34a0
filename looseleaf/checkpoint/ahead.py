"""What a process has of variables that it will make soon: units' bytes, and payloads mapped and warm (design §5)."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any, Final

from looseleaf.checkpoint.manifest import Manifest, RegionRef
from looseleaf.checkpoint.state_io import StateIO
from looseleaf.dirty_tracker import MappedRegions
from looseleaf.errors import LooseLeafError
from looseleaf.ids import PayloadId
from looseleaf.units import GIB

# What is mapped ahead: with more a preparation that has to bring it from another host would take too long.
AHEAD_BYTES_MAX: Final = 4 * GIB


@dataclass
class Ahead:
    """For the variables `names`: units by their hash, and the memory of payloads that nobody has used yet.

    `regions`: which bytes each mapping shows. What is taken out of `memory` is used up, even if it served nothing: a
    person's code may have seen it. `given_up`: memory that nobody has used nor will, with what it shows, until `unmap`.
    """

    names: set[str] = field(default_factory=set)
    units: Mapping[bytes, bytes] = field(default_factory=dict)
    memory: dict[PayloadId, Any] = field(default_factory=dict)
    regions: dict[PayloadId, Any] = field(default_factory=dict)
    given_up: list[tuple[Any, Sequence[RegionRef]]] = field(default_factory=list)

    def renew(self, manifest: Manifest) -> None:
        """Gives up memory that shows other bytes than the payloads of this version have."""
        payloads = manifest.payloads
        self._keep({
            payload_id: mapped
            for payload_id, mapped in self.memory.items()
            if payload_id in payloads and payloads[payload_id].regions == self.regions[payload_id]
        })  # fmt: skip

    def mapped(self, manifest: Manifest, memory: Mapping[PayloadId, Any]) -> None:
        """`memory` of payloads of this version is what there is now; what is not among it is given up."""
        self._keep(memory)
        self.regions = {payload_id: manifest.payloads[payload_id].regions for payload_id in memory}

    def asked_for(self, names: Collection[str]) -> None:
        """These are made, or are not to be had: with the last of them all of it goes."""
        self.names.difference_update(names)
        if not self.names:
            self._keep({})
            self.units, self.regions = {}, {}

    def unmap(self, io: StateIO) -> None:
        """Unmaps what was given up, and says so: until then the host keeps its slots.

        No child of this process can need it: it was never handed out.
        """
        given_up, self.given_up = self.given_up, []
        for mapped, _ in given_up:
            if isinstance(mapped, MappedRegions):
                mapped.close()
        if refs := [ref for _, regions in given_up for ref in regions]:
            # If it cannot be said, the host keeps them until the connection ends.
            with contextlib.suppress(LooseLeafError):
                io.unmap_regions(refs)

    def _keep(self, memory: Mapping[PayloadId, Any]) -> None:
        self.given_up += [
            (mapped, self.regions[payload_id])
            for payload_id, mapped in self.memory.items()
            if memory.get(payload_id) is not mapped
        ]
        self.memory = dict(memory)


class Warming:
    """Brings mappings into the page tables beside what else goes on, until `stop`; it keeps none of them alive."""

    def __init__(self, memory: Iterable[Any]) -> None:
        self._left = [weakref.ref(mapped) for mapped in memory if isinstance(mapped, MappedRegions)]
        self._stopped = Event()
        self._thread = Thread(target=self._run, name="looseleaf-warming", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Begins no further mapping; the one at work ends by itself, 0.1 s per GiB of it at most."""
        self._stopped.set()

    def join(self, timeout_s: float) -> bool:
        """Waits; whether all was done or stopped in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        for reference in self._left:
            mapped = reference()
            if self._stopped.is_set():
                return
            if mapped is not None:
                # Closed meanwhile, or the kernel refuses: then its pages come as they are touched.
                with contextlib.suppress(LooseLeafError, OSError):
                    mapped.populate()
