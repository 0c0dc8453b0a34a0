"""Which regions of memory changed since the last save, and the shared memory that their bytes live in.

The Python face of the native extension in `csrc/dirty_tracker`. Any C-contiguous buffer is welcome: bytes, memoryview,
numpy arrays, mappings; numpy itself is not imported here.
"""

from __future__ import annotations

try:
    from looseleaf.dirty_tracker import _core
except ImportError as error:
    raise ImportError(
        "looseleaf's native extension is missing or does not load: install the package, or in a checkout run "
        f"`python setup.py build_ext --inplace` ({error})"
    ) from error

from looseleaf.dirty_tracker.build import build_info
from looseleaf.dirty_tracker.fingerprints import FINGERPRINT_SCHEDULES, SECRET_BYTES, region_fingerprints
from looseleaf.dirty_tracker.hashing import (
    HASH_BYTES,
    HASH_THREADS_MAX,
    compare_regions,
    dirty_regions,
    hash128,
    region_hashes,
)
from looseleaf.dirty_tracker.memory import MappedRegions, Memfd, copy_into, map_many
from looseleaf.dirty_tracker.written import (
    Payload,
    RegionTable,
    RestoredRegions,
    drop_pagemap,
    keep_pagemap,
    note_restored,
    region_tables,
    restored_at,
    written_regions,
)

__all__ = [
    "FINGERPRINT_SCHEDULES",
    "HASH_BYTES",
    "HASH_THREADS_MAX",
    "SECRET_BYTES",
    "MappedRegions",
    "Memfd",
    "Payload",
    "RegionTable",
    "RestoredRegions",
    "build_info",
    "compare_regions",
    "copy_into",
    "dirty_regions",
    "drop_pagemap",
    "hash128",
    "keep_pagemap",
    "map_many",
    "note_restored",
    "region_fingerprints",
    "region_hashes",
    "region_tables",
    "restored_at",
    "written_regions",
]

assert _core.HASH_BYTES == HASH_BYTES
