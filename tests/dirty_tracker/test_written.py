"""Written pages of restored memory: whoever writes, and however, its region is a candidate."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.dirty_tracker import (
    MappedRegions,
    Memfd,
    Payload,
    RestoredRegions,
    _core,
    compare_regions,
    dirty_regions,
    region_hashes,
    region_tables,
    written,
    written_regions,
)  # fmt: skip
from looseleaf.errors import InvalidArgument, PreconditionFailed

PAGE_BYTES = mmap.PAGESIZE
REGION_BYTES = 4 * PAGE_BYTES
REGIONS = 16
SIZE_BYTES = REGIONS * REGION_BYTES - 100


class Restored:
    """A restored payload of small regions, and the arena that it came from."""

    def __init__(self) -> None:
        self.arena = Memfd.create("arena", REGIONS * REGION_BYTES)
        np.frombuffer(self.arena, dtype=np.uint32)[:] = np.arange(REGIONS * REGION_BYTES // 4)
        self.mapped = MappedRegions([(self.arena.fd, 0, SIZE_BYTES)])
        self.array = np.frombuffer(self.mapped, dtype=np.uint8)
        self.origin = region_hashes(self.arena.buffer[:SIZE_BYTES], region_bytes=REGION_BYTES)
        self.restored = RestoredRegions(self.mapped, self.origin, region_bytes=REGION_BYTES)

    def written(self) -> list[int]:
        return written_regions(self.mapped, region_bytes=REGION_BYTES)

    def tables(self, last: bytes) -> written.RegionTable:
        """What a save finds; checked against a fingerprint of everything."""
        payload = Payload(self.array, last, self.restored)
        found = region_tables([payload], region_bytes=REGION_BYTES)[0]
        everything = region_hashes(self.array, region_bytes=REGION_BYTES)
        assert found.hashes == everything
        assert found.dirty == dirty_regions(everything, last)
        return found

    def close(self) -> None:
        del self.array
        self.mapped.close()
        self.arena.close()


@pytest.fixture(params=["scan", "read"])
def method(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to find written pages that this kernel has."""
    if request.param == "scan" and written.pagemap_support()[0] != "scan":
        pytest.skip("this kernel has no PAGEMAP_SCAN (Linux 6.7)")
    if written.pagemap_support()[0] is None:
        pytest.skip("the page tables cannot be read here")
    monkeypatch.setattr(written, "pagemap_support", lambda: (request.param, ""))
    return str(request.param)


@pytest.fixture
def state(method: str) -> Iterator[Restored]:
    made = Restored()
    yield made
    made.close()


def write_numpy(state: Restored, at: int) -> None:
    state.array[at] ^= 1


def write_torch(state: Restored, at: int) -> None:
    import torch

    torch.from_numpy(state.array)[at] ^= 1


def write_fused_optimizer(state: Restored, at: int) -> None:
    import torch

    weight = torch.from_numpy(state.array[at // 4 * 4 :][:4].view(np.float32)).requires_grad_()
    optimizer = torch.optim.Adam([weight], lr=1e30, fused=True)
    weight.grad = torch.ones(1)
    optimizer.step()


def write_ctypes(state: Restored, at: int) -> None:
    ctypes.memset(state.mapped.address + at, state.array[at] ^ 1, 1)


def write_read_call(state: Restored, at: int) -> None:
    reader, writer = os.pipe()
    os.write(writer, bytes([state.array[at] ^ 1]))
    assert os.readv(reader, [state.mapped.buffer[at : at + 1]]) == 1
    os.close(reader)
    os.close(writer)


def write_direct_read(state: Restored, at: int) -> None:
    """The device writes into the pinned page, past the page tables' write protection."""
    page = at // PAGE_BYTES * PAGE_BYTES
    target = state.mapped.buffer[page : min(page + PAGE_BYTES, SIZE_BYTES)]
    path = Path(f"direct-{os.getpid()}.bin")
    path.write_bytes(bytes([state.array[page] ^ 1]) * PAGE_BYTES)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        pytest.skip("this file system has no O_DIRECT")
    finally:
        path.unlink()
    try:
        os.readv(fd, [target])
    except OSError:
        pytest.skip("direct reads need whole blocks here")
    finally:
        os.close(fd)


def write_from_thread(state: Restored, at: int) -> None:
    thread = threading.Thread(target=write_numpy, args=(state, at))
    thread.start()
    thread.join()


def write_from_another_process(state: Restored, at: int) -> None:
    memory = os.open(f"/proc/{os.getpid()}/mem", os.O_RDWR)
    os.pwrite(memory, bytes([state.array[at] ^ 1]), state.mapped.address + at)
    os.close(memory)


WRITERS: list[Callable[[Restored, int], None]] = [
    write_numpy, write_torch, write_fused_optimizer, write_ctypes, write_read_call, write_direct_read,
    write_from_thread, write_from_another_process,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_written_regions_any_writer_is_seen(
    state: Restored, write: Callable[[Restored, int], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert state.written() == []
    write(state, 5 * REGION_BYTES + 17)
    assert state.written() == [5]
    assert state.tables(state.origin).dirty == [5]


def test_written_regions_reading_and_populating_leave_it_clean(state: Restored) -> None:
    assert state.written() == []
    assert int(state.array.sum()) > 0
    state.mapped.populate()
    assert state.written() == []
    assert state.tables(state.origin) == (state.origin, [], 0)


def test_written_regions_only_touched_ends_of_a_region_count(state: Restored) -> None:
    for at in (0, REGION_BYTES - 1, 7 * REGION_BYTES, SIZE_BYTES - 1):
        state.array[at] ^= 1
    assert state.written() == [0, 7, REGIONS - 1]


def test_written_regions_old_value_written_again_is_candidate_and_not_dirty(state: Restored) -> None:
    before = state.array[: PAGE_BYTES * 2].copy()
    state.array[: PAGE_BYTES * 2] = before
    found = state.tables(state.origin)
    assert (state.written(), found.dirty, found.hashed_regions) == ([0], [], 1)


def test_written_regions_many_small_writes_are_all_seen(state: Restored) -> None:
    random = np.random.default_rng(7)
    touched = set()
    for at in random.integers(0, SIZE_BYTES, 1000):
        state.array[at] ^= 0x55
        touched.add(int(at) // REGION_BYTES)
    assert set(state.written()) == touched
    state.tables(state.origin)


def test_region_tables_second_and_tenth_save_are_right(state: Restored) -> None:
    last = state.origin
    for save in range(10):
        state.array[(save % 4) * REGION_BYTES + save] ^= 1
        found = state.tables(last)
        assert found.dirty == [save % 4]
        assert found.hashed_regions == min(save + 1, 4)
        last = found.hashes
    assert state.tables(last).dirty == []


def test_region_tables_discarded_writes_show_the_origin_again(state: Restored) -> None:
    """A page that was saved after a write and then given back to the kernel shows the slot, not the last save."""
    state.array[0] ^= 1
    last = state.tables(state.origin).hashes
    libc = ctypes.CDLL(None, use_errno=True)
    address = ctypes.c_void_p(state.mapped.address)
    assert libc.madvise(address, ctypes.c_size_t(PAGE_BYTES), mmap.MADV_DONTNEED) == 0
    assert state.written() == []
    assert state.tables(last).dirty == [0]


def run_in_child(work: Callable[[], bool]) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_written_regions_of_a_forked_child_are_its_own(state: Restored) -> None:
    state.array[0] ^= 1

    def work() -> bool:
        before = state.written()
        state.array[3 * REGION_BYTES] ^= 1
        return before == [0] and state.written() == [0, 3] and state.tables(state.origin).dirty == [0, 3]

    run_in_child(work)
    assert state.written() == [0]
    state.array[9 * REGION_BYTES] ^= 1
    assert state.written() == [0, 9]


def test_written_regions_kept_pagemap_is_not_the_childs(state: Restored) -> None:
    written.keep_pagemap()
    state.array[0] ^= 1

    def work() -> bool:
        state.array[3 * REGION_BYTES] ^= 1
        return state.written() == [0, 3]

    try:
        run_in_child(work)
        assert state.written() == [0]
    finally:
        written.drop_pagemap()


def test_written_regions_of_data_loader_workers_stay_theirs(state: Restored) -> None:
    import torch

    tensor = torch.from_numpy(state.array)

    class Scribbling(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> int:
            tensor[index * REGION_BYTES] ^= 1
            return int(tensor[index * REGION_BYTES])

    loader = torch.utils.data.DataLoader(Scribbling(), batch_size=2, num_workers=2, multiprocessing_context="fork")
    assert sum(len(batch) for batch in loader) == 8
    assert state.written() == []
    tensor[2 * REGION_BYTES] ^= 1
    assert state.tables(state.origin).dirty == [2]


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, SIZE_BYTES - 1), st.integers(1, 3 * PAGE_BYTES)),
            st.tuples(st.just("same"), st.integers(0, SIZE_BYTES - 1), st.integers(1, 2 * PAGE_BYTES)),
            st.tuples(st.just("read"), st.integers(0, SIZE_BYTES - 1), st.integers(1, REGION_BYTES)),
            st.tuples(st.just("discard"), st.integers(0, REGIONS * 4 - 1), st.just(0)),
            st.tuples(st.just("save"), st.just(0), st.just(0)),
        ),
        max_size=12,
    ),
    way=st.sampled_from(["scan", "read"]),
)
def test_region_tables_after_any_history_equal_hashes_of_everything(
    steps: list[tuple[str, int, int]], way: str
) -> None:
    if written.pagemap_support()[0] != "scan":
        way = "read"
    if written.pagemap_support()[0] is None:
        pytest.skip("the page tables cannot be read here")
    state = Restored()
    libc = ctypes.CDLL(None, use_errno=True)
    try:
        last = state.origin
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(written, "pagemap_support", lambda: (way, ""))
            for step, at, length in [*steps, ("save", 0, 0)]:
                part = state.array[at : at + length]
                if step == "write":
                    part += 1
                elif step == "same":
                    part[:] = part.copy()
                elif step == "read":
                    part.sum()
                elif step == "discard":
                    page = ctypes.c_void_p(state.mapped.address + at * PAGE_BYTES)
                    libc.madvise(page, ctypes.c_size_t(PAGE_BYTES), mmap.MADV_DONTNEED)
                else:
                    last = state.tables(last).hashes
                del part
    finally:
        state.close()


def pagemap_file(folder: Path, address: int, entries: list[int]) -> Path:
    """What the kernel's file shows, with chosen entries from `address` on."""
    path = folder / "pagemap"
    with path.open("wb") as file:
        file.seek(address // PAGE_BYTES * 8)
        file.write(struct.pack(f"={len(entries)}Q", *entries))
    return path


PRESENT, SWAPPED, FILE = 1 << 63, 1 << 62, 1 << 61


def test_pagemap_read_swapped_pages_count_and_absent_and_file_pages_do_not(tmp_path: Path) -> None:
    address = 16 * PAGE_BYTES
    entries = [0, SWAPPED, PRESENT | FILE, PRESENT, SWAPPED | FILE, 1 << 55, PRESENT | FILE | 1 << 56, SWAPPED | 77]
    pagemap = _core.Pagemap.open_file(str(pagemap_file(tmp_path, address, entries)), "read")
    assert pagemap.written_regions(address, len(entries) * PAGE_BYTES, PAGE_BYTES) == [1, 3, 7]
    assert pagemap.written_regions(address, len(entries) * PAGE_BYTES, 2 * PAGE_BYTES) == [0, 1, 3]
    # Regions smaller than a page, and a range that starts inside one.
    assert pagemap.written_regions(address + PAGE_BYTES - 10, 20, 10) == [1]
    assert pagemap.written_regions(address + PAGE_BYTES, PAGE_BYTES, PAGE_BYTES // 2) == [0, 1]


def test_pagemap_read_many_pages_in_parts(tmp_path: Path) -> None:
    entries = [PRESENT if index in (0, 8191, 8192, 19_999) else PRESENT | FILE for index in range(20_000)]
    pagemap = _core.Pagemap.open_file(str(pagemap_file(tmp_path, PAGE_BYTES, entries)), "read")
    assert pagemap.written_regions(PAGE_BYTES, 20_000 * PAGE_BYTES, 2 * PAGE_BYTES) == [0, 4095, 4096, 9999]


def test_pagemap_read_past_the_files_end_fails_and_everything_is_hashed(
    tmp_path: Path, state: Restored, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = _core.Pagemap.open_file(str(pagemap_file(tmp_path, 0, [0])), "read")
    monkeypatch.setattr(written, "_pagemap", lambda: short)
    state.array[0] ^= 1
    assert state.tables(state.origin).hashed_regions == REGIONS


def test_region_tables_without_page_tables_hash_everything(state: Restored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(written, "pagemap_support", lambda: (None, "made up"))
    state.array[0] ^= 1
    assert state.written() == list(range(REGIONS))
    assert state.tables(state.origin) == (region_hashes(state.array, region_bytes=REGION_BYTES), [0], REGIONS)


def test_region_tables_of_a_closed_mapping_hash_everything(state: Restored) -> None:
    state.mapped.close()
    assert state.tables(state.origin).hashed_regions == REGIONS


def test_region_tables_mapping_of_other_memory_does_not_count(state: Restored) -> None:
    copy = state.array.copy()
    payloads = [Payload(buffer, state.origin, state.restored) for buffer in (copy, state.array[:-1], state.array)]
    found = region_tables(payloads, region_bytes=REGION_BYTES)
    assert [table.hashed_regions for table in found] == [REGIONS, REGIONS, 0]
    assert found[1].dirty == [REGIONS - 1]


def test_pagemap_descriptor_that_became_another_file_is_not_used(state: Restored) -> None:
    pagemap = _core.Pagemap.open("read")
    (fd,) = [
        fd for fd in map(int, os.listdir("/proc/self/fd"))
        if os.path.exists(f"/proc/self/fd/{fd}") and os.readlink(f"/proc/self/fd/{fd}").endswith("/pagemap")
    ]  # fmt: skip
    other = os.open("/dev/zero", os.O_RDONLY)
    assert pagemap.is_usable
    os.dup2(other, fd)
    os.close(other)
    assert not pagemap.is_usable
    with pytest.raises(PreconditionFailed, match="CLOSED"):
        pagemap.written_regions(state.mapped.address, SIZE_BYTES, REGION_BYTES)


def test_written_regions_malformed_arguments_are_refused(state: Restored) -> None:
    with pytest.raises(InvalidArgument, match="REGION_BYTES_OUT_OF_RANGE"):
        written_regions(state.mapped, region_bytes=0)
    with pytest.raises(InvalidArgument, match="HASH_TABLE_MALFORMED"):
        RestoredRegions(state.mapped, state.origin[16:], region_bytes=REGION_BYTES)
    with pytest.raises(InvalidArgument, match="PAGEMAP_METHOD_UNKNOWN"):
        _core.Pagemap.open("guess")
    state.mapped.close()
    with pytest.raises(PreconditionFailed, match="CLOSED"):
        written_regions(state.mapped)


DROPPED = """
import os, sys
import numpy as np
from looseleaf.dirty_tracker import MappedRegions, Memfd, keep_pagemap, written, written_regions
arena = Memfd.create("arena", 8 << 12)
mapped = MappedRegions([(arena.fd, 0, 8 << 12)])
if sys.argv[1] == "kept":
    keep_pagemap()
else:
    written.pagemap_support()
os.setgroups([]); os.setgid(65534); os.setuid(65534)
np.frombuffer(mapped, dtype=np.uint8)[5 << 12] ^= 1
print(written_regions(mapped, region_bytes=1 << 12))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give up its uid")
@pytest.mark.parametrize(("kept", "expected"), [("kept", [5]), ("fresh", list(range(8)))])
def test_written_regions_after_the_uid_drop(kept: str, expected: list[int]) -> None:
    if written.pagemap_support()[0] is None:
        pytest.skip("the page tables cannot be read here")
    command = [sys.executable, "-c", DROPPED, kept]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == str(expected), done.stderr


def test_region_tables_of_many_payloads_equal_each_alone() -> None:
    random = np.random.default_rng(3)
    arrays = [random.integers(0, 256, size, dtype=np.uint8) for size in (0, 1, 4095, 4096, 70_000, 1_000_003)]
    olds = [region_hashes(array, region_bytes=4096, seed=9) for array in arrays]
    arrays[4][5000] ^= 1
    for threads in (1, 4):
        found = region_tables(
            [Payload(array, old) for array, old in zip(arrays, olds, strict=True)], region_bytes=4096, seed=9,
            threads=threads,
        )  # fmt: skip
        for array, old, table in zip(arrays, olds, found, strict=True):
            assert table.hashes == region_hashes(array, region_bytes=4096, seed=9)
            assert table.dirty == dirty_regions(table.hashes, old)
            assert table.hashed_regions == -(-array.size // 4096)
    assert found[4].dirty == [1]


@pytest.mark.parametrize("last", [b"x", b"x" * 17, bytearray(16), None])
def test_region_tables_malformed_table_is_refused(last: object) -> None:
    with pytest.raises(InvalidArgument, match="HASH_TABLE_MALFORMED"):
        region_tables([Payload(b"abc", last)])  # type: ignore[arg-type]


def test_region_tables_interrupted_stop_with_the_handlers_error() -> None:
    data = np.zeros(8 << 20, dtype=np.uint8)
    payloads = [Payload(data)] * 4000
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        region_tables(payloads * 100, threads=2)
    timer.join()


def test_region_tables_release_the_gil() -> None:
    data = np.zeros(64 << 20, dtype=np.uint8)
    stopped = threading.Event()
    thread = threading.Thread(target=lambda: (region_tables([Payload(data)] * 8, threads=1), stopped.set()))
    thread.start()
    turns = 0
    while not stopped.wait(0):
        turns += 1
    thread.join()
    assert turns > 1
    assert compare_regions(data, data) == []
