"""Saves of a GPU's memory bring only what changed to the host; here a virtual GPU's, fingerprinted as a real one's."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from test_restored_memory import ArenaIO, Session

from looseleaf import devices
from looseleaf.checkpoint import device_hashes
from looseleaf.dirty_tracker import dirty_regions, hash128, region_fingerprints
from looseleaf.errors import Conflict, Corrupt, Internal
from looseleaf.units import REGION_BYTES

REGIONS = 5
SIZE_BYTES = REGIONS * REGION_BYTES - 100
REAL_DEVICE_OF = device_hashes.real_device_of


class HostTracker:
    """As `_cuda.DeviceTracker` does, of memory that the host can read."""

    def __init__(self, _index: int, secret: bytes) -> None:
        self.secret = secret

    def tables(self, payloads: Any, last: Any, region_bytes: int) -> list[tuple[bytes, list[int]]]:
        found = []
        for (address, size), known in zip(payloads, last, strict=True):
            memory = (ctypes.c_char * size).from_address(address)
            table = region_fingerprints(memory, self.secret, region_bytes=region_bytes)
            found.append((table, dirty_regions(table, known)))
        return found

    def move_to_host(self, moves: Any) -> None:
        for address, buffer in moves:
            buffer[:] = ctypes.string_at(address, len(buffer))


class Watched:
    """A tracker. `moved`: bytes of each move; `broken`: its calls fail."""

    def __init__(self, tracker: Any) -> None:
        self.tracker = tracker
        self.moved: list[int] = []
        self.broken = False

    def tables(self, *arguments: Any) -> Any:
        if self.broken:
            raise Internal("CUDA_CALL_FAILED", "made up")
        return self.tracker.tables(*arguments)

    def move_to_host(self, moves: Any) -> None:
        self.moved += [len(buffer) for _, buffer in moves]
        self.tracker.move_to_host(moves)


class OnGpu(Session):
    """A session whose tensors lie on a device."""

    def __init__(self, io: ArenaIO, **namespace: Any) -> None:
        super().__init__(io, **namespace)
        self.opened: list[Watched] = []
        opened, kind = self.opened, devices.backend().kind

        def open_one(index: int, secret: bytes) -> Watched:
            assert index == 0
            made = device_hashes._open_cuda(index, secret) if kind == "cuda" else HostTracker(index, secret)
            opened.append(Watched(made))
            return opened[-1]

        self.tracker.device_hashes = device_hashes.DeviceHashes(open_one)

    def moved(self) -> list[int]:
        """Bytes of each region that came to the host since the last question."""
        moved, self.opened[0].moved = self.opened[0].moved, []
        return moved


@pytest.fixture(autouse=True, params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device of this kind. A virtual one's memory is taken for a real one's."""
    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("no NVIDIA GPU, or a torch without CUDA")

    def index_of(storage: Any) -> int | None:
        return None if storage is None or devices.backend().device_of(storage) == "cpu" else 0

    devices.install("worker", request.param, 1)
    devices.attach([0])
    monkeypatch.setattr(device_hashes, "real_device_of", index_of)
    yield
    devices.uninstall()


def content() -> torch.Tensor:
    return torch.arange(SIZE_BYTES, dtype=torch.uint8).cuda()


def check(io: ArenaIO, session: Session) -> None:
    assert bool((Session(io).restored() == session.namespace["value"]).all())


def test_save_of_device_memory_moves_what_changed_also_after_a_restore() -> None:
    io = ArenaIO()
    made = OnGpu(io, value=content(), on_host=torch.zeros(100_000))
    made.save()
    assert sum(made.moved()) == SIZE_BYTES
    for session in (made, OnGpu(io)):
        value = session.namespace["value"] if session is made else session.restored()
        session.save()
        assert session.moved() == []
        value[2 * REGION_BYTES + 9] += 1
        value[-1] += 1
        before = io.put
        session.save()
        assert session.moved() == [REGION_BYTES, REGION_BYTES - 100]
        assert io.put - before == 2
        check(io, session)


class Writer:
    """Writes to a tensor while it is made again."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.tensor = state["tensor"]
        self.tensor[REGION_BYTES] = 77


def test_save_of_device_memory_written_by_code_that_restored_it_moves_that() -> None:
    io = ArenaIO()
    OnGpu(io, value=Writer(content())).save()
    session = OnGpu(io)
    session.restored()
    session.save()
    assert session.moved() == [REGION_BYTES]


def noise(count: int) -> dict[str, torch.Tensor]:
    """So many tensors without two equal regions."""
    generator = torch.Generator().manual_seed(1)
    made = torch.randint(256, (count, SIZE_BYTES), dtype=torch.uint8, generator=generator)
    return {f"value{number or ''}": made[number].clone().cuda() for number in range(count)}


def few_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_hashes, "WINDOW_BYTES_MAX", REGION_BYTES)
    monkeypatch.setattr(device_hashes, "HELD_BYTES_MAX", 2 * REGION_BYTES)
    monkeypatch.setattr(device_hashes, "AGAIN_BYTES_MAX", 2 * REGION_BYTES)


def test_save_of_more_than_the_host_holds_brings_the_rest_again(monkeypatch: pytest.MonkeyPatch) -> None:
    few_are_held(monkeypatch)
    io = ArenaIO()
    session = OnGpu(io, **noise(3))
    session.save()
    # Each once to be hashed; two are held, and the others come again when they are stored.
    assert len(session.moved()) == 3 * REGIONS + 3 * REGIONS - 2
    check(io, session)
    session.save()
    assert session.moved() == []


class StreamingIO(ArenaIO):
    """Takes one region after the other, and only bytes that are what their id says, as a daemon does."""

    refused = 0

    def put_regions(self, items: Any) -> None:
        for ref, data in items:
            if hash128(data) != ref.region_id:
                self.refused += 1
                raise Corrupt("CHECKSUM_MISMATCH", "changed on its way")
            super().put_regions([(ref, data)])


def test_save_keeps_no_more_of_many_tensors_on_the_host_than_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    few_are_held(monkeypatch)
    alive: weakref.WeakSet[bytearray] = weakref.WeakSet()
    most = 0

    class Bytes(bytearray):
        __hash__ = object.__hash__  # type: ignore[assignment]

        def __init__(self, size: int) -> None:
            nonlocal most
            super().__init__(size)
            alive.add(self)
            most = max(most, len(alive))

    monkeypatch.setattr(device_hashes, "bytearray", Bytes, raising=False)
    OnGpu(StreamingIO(), **noise(4)).save()
    # Of twenty: two held, a window of two, and what is stored while the next window is made.
    assert 4 <= most <= 6


def test_save_of_device_memory_that_a_thread_writes_stores_what_it_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    few_are_held(monkeypatch)
    io = StreamingIO()
    session = OnGpu(io, value=torch.zeros(SIZE_BYTES, dtype=torch.uint8).cuda())
    session.save()
    session.namespace["value"] = noise(1)["value"]
    tracker = session.opened[0]
    move = tracker.move_to_host

    def writes_first(moves: Any) -> None:
        session.namespace["value"].add_(1)
        move(moves)

    monkeypatch.setattr(tracker, "move_to_host", writes_first)
    session.save()
    assert io.refused == 1 and Session(io).restored().shape == (SIZE_BYTES,)


def test_save_whose_memory_cannot_be_brought_again_fails_and_the_next_is_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device_hashes, "HELD_BYTES_MAX", 0)
    io = ArenaIO()
    session = OnGpu(io, value=torch.zeros(SIZE_BYTES, dtype=torch.uint8).cuda())
    session.save()
    session.namespace["value"] = content()
    tracker, moves = session.opened[0], []

    def fails_later(asked: Any) -> None:
        moves.append(asked)
        if len(moves) > 1:
            raise Internal("CUDA_CALL_FAILED", "made up")
        tracker.tracker.move_to_host(asked)

    with monkeypatch.context() as patched:
        patched.setattr(tracker, "move_to_host", fails_later)
        with pytest.raises(Internal, match="CUDA_CALL_FAILED"):
            session.save()
    session.save()
    check(io, session)


def test_save_of_device_memory_after_one_that_failed_moves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    io = ArenaIO()
    session = OnGpu(io, value=content())
    session.save()
    session.moved()

    def lost(*_: Any) -> None:
        raise Conflict("MANIFEST_MOVED", "somebody else was first")

    session.namespace["value"][0] += 1
    with monkeypatch.context() as patch:
        patch.setattr(io, "commit", lost)
        with pytest.raises(Conflict):
            session.save()
    assert session.moved() == [REGION_BYTES]
    session.save()
    assert sum(session.moved()) == SIZE_BYTES
    check(io, session)


def test_save_of_device_memory_other_tensor_in_its_place_is_moved_where_it_differs() -> None:
    io = ArenaIO()
    session = OnGpu(io, value=content())
    session.save()
    session.moved()
    other = content()
    other[3 * REGION_BYTES] += 1
    session.namespace["value"] = other
    session.save()
    session.save()
    check(io, session)


def test_save_of_device_memory_whose_tracker_fails_reads_all_and_asks_it_no_more() -> None:
    io = ArenaIO()
    session = OnGpu(io, value=content())
    session.save()
    session.opened[0].broken = True
    for _ in range(2):
        session.namespace["value"][7] += 1
        session.save()
        check(io, session)
    assert len(session.opened) == 1


def test_real_device_of_memory_of_the_host_and_of_virtual_gpus_is_none() -> None:
    for storage in (None, torch.zeros(3).untyped_storage()):
        assert REAL_DEVICE_OF(storage) is None
    assert REAL_DEVICE_OF(content().untyped_storage()) == (0 if devices.backend().kind == "cuda" else None)
