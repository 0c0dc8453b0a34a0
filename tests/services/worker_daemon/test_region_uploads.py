from __future__ import annotations

from typing import Any

import pytest
from daemon_fakes import Parts, down, region

from looseleaf.errors import CapacityExceeded, LooseLeafError, PreconditionFailed, Unsupported
from looseleaf.services.worker_daemon import region_uploads
from looseleaf.services.worker_daemon.region_uploads import RegionUploads


class Shared:
    """The store's SharedRegionService; `errors` are raised first."""

    def __init__(self, *errors: LooseLeafError) -> None:
        self.errors = list(errors)
        self.taken: list[bytes] = []

    async def TakeRegions(self, request: Any, *, timeout_s: float) -> None:
        if self.errors:
            raise self.errors.pop(0)
        assert request.tenant == "team"
        self.taken += [item.region.region_id for item in request.regions]


async def held(parts: Parts, count: int) -> list[tuple[bytes, int]]:
    for number in range(count):
        key, data = region(number)
        await parts.regions.put(key, memoryview(data), "version")
    return [region(number)[0] for number in range(count)]


def uploads(parts: Parts, shared: Shared) -> RegionUploads:
    store: Any = parts.store
    return RegionUploads(store, shared, parts.regions)


async def test_regions_are_shared_in_parts_and_those_not_here_left_out(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_uploads, "TAKE_REGIONS_MAX", 2)
    keys, shared = await held(parts, 5), Shared()
    await uploads(parts, shared).put([*keys, region(99)[0]])
    assert sorted(shared.taken) == sorted(region_id for region_id, _length in keys) and not parts.store.on_disk


@pytest.mark.parametrize("refusal", [PreconditionFailed("MEMORY_NOT_SHARED", "x"), Unsupported("METHOD_UNKNOWN", "x")])
async def test_store_that_shares_no_memory_gets_a_stream_and_is_not_asked_again(
    parts: Parts, refusal: LooseLeafError
) -> None:
    keys, shared = await held(parts, 3), Shared(refusal)
    sending = uploads(parts, shared)
    await sending.put(keys[:2])
    await sending.put(keys[2:])
    assert parts.store.on_disk == set(keys) and shared.taken == []


@pytest.mark.parametrize("error", [down(), CapacityExceeded("STORE_FULL", "x"), PreconditionFailed("OTHER", "x")])
async def test_store_that_fails_otherwise_is_no_reason_for_a_stream(parts: Parts, error: LooseLeafError) -> None:
    keys, shared = await held(parts, 2), Shared(error)
    sending = uploads(parts, shared)
    with pytest.raises(type(error)):
        await sending.put(keys)
    await sending.put(keys)
    assert len(shared.taken) == 2 and not parts.store.on_disk
    parts.regions.unpin("version")
    assert parts.regions.arena.used_bytes == 0, "an upload keeps nothing pinned"
