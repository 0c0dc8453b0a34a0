"""Paranoid saves: every region is read, and compared byte by byte with a kept copy of what was saved (design §7).

For people who trust neither page tables nor 128 bits, and for tests, as an oracle. It costs the memory a second time
and two more readings of it at each save.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Mapping
from dataclasses import replace

from looseleaf.checkpoint.manifest import HASH_BYTES
from looseleaf.checkpoint.memory import Block
from looseleaf.checkpoint.payload_hashes import Hashed
from looseleaf.dirty_tracker import compare_regions, dirty_regions, hash128, region_hashes, restored_at
from looseleaf.errors import Corrupt
from looseleaf.ids import PayloadId
from looseleaf.kernel_config import ConfigError, KernelConfig
from looseleaf.units import REGION_BYTES

log = logging.getLogger("looseleaf.checkpoint")


@functools.cache
def is_paranoid() -> bool:
    """`paranoid` in `[kernel]` of the TOML, or `LOOSELEAF_KERNEL_PARANOID`, when first asked; in workers, too."""
    try:
        return bool(KernelConfig.load_one("paranoid"))
    except ConfigError:
        # Whoever starts the process says what is wrong with the file.
        return False


class Shadows:
    """Copies of each payload as this process last saved it. One thread at a time."""

    def __init__(self) -> None:
        self._copies: dict[PayloadId, tuple[bytes, bytearray]] = {}
        # Regions that would have been taken for unchanged, and were not.
        self.missed_regions = 0

    def checked(self, payload_id: PayloadId, block: Block, hashed: Hashed, last: bytes) -> Hashed:
        """`hashed` with everything in it that a look at each byte finds; a region that was missed is logged.

        `last`: ids of the regions in the version before. Raises Corrupt `FINGERPRINT_COLLISION` if a region has other
        bytes than then and the same id: no version can hold it.
        """
        ids = region_hashes(hashed.data)
        self._count_missed(block, dirty_regions(ids, hashed.ids))
        known_ids, copy = self._copies.get(payload_id, (b"", bytearray()))
        if known_ids and known_ids == last and len(copy) == len(hashed.data):
            for index in compare_regions(hashed.data, copy):
                part = slice(index * HASH_BYTES, (index + 1) * HASH_BYTES)
                # If the copy itself is not what was saved, another thread wrote to the memory meanwhile.
                if ids[part] == last[part] == hash128(_region(copy, index)):
                    text = f"two contents of region {index} of a block have the same fingerprint; nothing was saved"
                    raise Corrupt("FINGERPRINT_COLLISION", text, region=index)
        return replace(hashed, ids=ids, dirty=dirty_regions(ids, last))

    def _count_missed(self, block: Block, found: list[int]) -> None:
        restored = restored_at(block.address, block.size_bytes)
        # What another thread wrote since is among the written regions by now.
        written = (restored.written() if restored is not None else None) or []
        missed = [] if restored is None else [index for index in found if index not in set(written)]
        self.missed_regions += len(missed)
        if missed:
            log.error("changed_regions_missed count=%d size_bytes=%d", len(missed), block.size_bytes)

    def publish(self, saved: Mapping[PayloadId, Hashed]) -> None:
        """These were committed; keeps copies of them and of nothing else."""
        before, self._copies = self._copies, {}
        for payload_id, hashed in saved.items():
            _, copy = before.get(payload_id, (b"", bytearray()))
            if len(copy) == len(hashed.data):
                for index in compare_regions(hashed.data, copy):
                    start = index * REGION_BYTES
                    copy[start : start + REGION_BYTES] = _region(hashed.data, index)
            else:
                copy = bytearray(hashed.data)
            self._copies[payload_id] = (hashed.ids, copy)


def _region(data: memoryview | bytearray, index: int) -> memoryview:
    return memoryview(data)[index * REGION_BYTES : (index + 1) * REGION_BYTES]
