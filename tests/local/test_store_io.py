"""A session's state straight on a store's folder."""

from __future__ import annotations

from pathlib import Path

from looseleaf.checkpoint.manifest import RegionRef
from looseleaf.dirty_tracker import hash128
from looseleaf.ids import SessionId
from looseleaf.local.store_io import StoreIO
from looseleaf.units import REGION_BYTES


def test_regions_map_as_they_were_put_those_of_zeros_too(tmp_path: Path) -> None:
    io = StoreIO(tmp_path, SessionId("s-1"))
    contents = [b"a" * REGION_BYTES, bytes(REGION_BYTES), bytes(REGION_BYTES), b"b" * REGION_BYTES, bytes(5_000)]
    refs = [RegionRef(hash128(data), len(data)) for data in contents]
    assert io.have_regions(refs) == [0, 1, 2, 3, 4]
    io.put_regions((ref, memoryview(data)) for ref, data in zip(refs, contents, strict=True))
    assert io.have_regions(refs) == []
    mapped = io.map_regions(refs)
    assert bytes(mapped.buffer) == b"".join(contents)
    mapped.close()
    io.close()
    assert (tmp_path / "regions" / "regions-0000.bin").stat().st_size == 2 * REGION_BYTES
