"""Private mappings of runs of slots."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looseleaf.dirty_tracker import MappedRegions, Memfd, compare_regions, copy_into, map_many, region_hashes
from looseleaf.errors import InvalidArgument, PreconditionFailed
from looseleaf.units import REGION_BYTES

PAGE_BYTES = mmap.PAGESIZE


def numbered_segment(pages: int, name: str = "arena") -> Memfd:
    """A segment whose page i holds the byte i+1 throughout."""
    segment = Memfd.create(name, pages * PAGE_BYTES)
    content = np.frombuffer(segment, dtype=np.uint8).reshape(pages, PAGE_BYTES)
    content[:] = np.arange(1, pages + 1, dtype=np.uint8)[:, None]
    return segment


def memory_areas(name: str) -> int:
    with open("/proc/self/maps") as maps:
        return maps.read().count(f"memfd:{name}")


@settings(max_examples=40)
@given(
    slots=st.lists(st.tuples(st.integers(0, 15), st.integers(1, 3)), max_size=8), tail_bytes=st.integers(1, PAGE_BYTES)
)
def test_mapped_regions_any_run_of_slots_shows_them_side_by_side(slots: list[tuple[int, int]], tail_bytes: int) -> None:
    with numbered_segment(18) as arena:
        parts = [(arena.fd, page * PAGE_BYTES, count * PAGE_BYTES) for page, count in slots]
        if parts:
            fd, offset, length = parts[-1]
            parts[-1] = (fd, offset, length - PAGE_BYTES + tail_bytes)
        expected = b"".join(bytes(arena.buffer[offset : offset + length]) for _, offset, length in parts)
        with MappedRegions(parts) as mapped:
            assert mapped.size_bytes == len(expected)
            assert bytes(mapped.buffer) == expected
            mapped.populate()
            assert bytes(mapped.buffer) == expected


def test_mapped_regions_private_writes_never_reach_the_file() -> None:
    with numbered_segment(4) as arena:
        before = bytes(arena.buffer)
        first, second = (MappedRegions([(arena.fd, 0, 4 * PAGE_BYTES)]) for _ in range(2))
        assert not first.buffer.readonly
        first.buffer[:3] = b"new"
        copy_into(first, PAGE_BYTES, b"copied", 0, 6)
        assert bytes(first.buffer[:3]) == b"new"
        assert bytes(arena.buffer) == before == bytes(second.buffer)
        assert compare_regions(first, arena, PAGE_BYTES) == [0, 1]


def test_mapped_regions_readonly_fd_still_gives_a_writable_mapping() -> None:
    with numbered_segment(1) as arena:
        fd = arena.readonly_fd()
        mapped = MappedRegions([(fd, 0, PAGE_BYTES)])
        os.close(fd)
        mapped.buffer[0] = 200
        assert (mapped.buffer[0], arena.buffer[0]) == (200, 1)


def test_mapped_regions_neighbouring_parts_share_one_memory_area() -> None:
    with numbered_segment(6, "neighbours") as arena, numbered_segment(2, "other") as other:
        parts = [(arena.fd, page * PAGE_BYTES, PAGE_BYTES) for page in (0, 1, 2, 4)] + [(other.fd, 0, PAGE_BYTES)]
        areas = memory_areas("neighbours")
        with MappedRegions(parts) as mapped:
            assert mapped.map_count == 3
            assert memory_areas("neighbours") == areas + 2


def test_mapped_regions_address_is_where_the_buffer_is() -> None:
    with numbered_segment(1) as arena, MappedRegions([(arena.fd, 0, PAGE_BYTES)]) as mapped:
        assert np.frombuffer(mapped, dtype=np.uint8).ctypes.data == mapped.address
        assert mapped.address % PAGE_BYTES == 0


def test_mapped_regions_without_parts_is_an_empty_buffer() -> None:
    with MappedRegions([]) as mapped:
        assert (mapped.size_bytes, mapped.address, mapped.map_count) == (0, 0, 0)
        assert bytes(mapped.buffer) == b""
        assert region_hashes(mapped) == b""
        mapped.populate()


def test_mapped_regions_of_whole_regions_hash_as_the_slots_do() -> None:
    with Memfd.create("arena", 3 * REGION_BYTES) as arena:
        np.frombuffer(arena, dtype=np.uint64)[:] = np.arange(3 * REGION_BYTES // 8)
        table = region_hashes(arena)
        with MappedRegions([(arena.fd, 2 * REGION_BYTES, REGION_BYTES), (arena.fd, 0, REGION_BYTES)]) as mapped:
            assert region_hashes(mapped) == table[32:] + table[:16]


def test_mapped_regions_closed_refuses_use_and_keeps_live_views() -> None:
    with numbered_segment(2) as arena:
        mapped = MappedRegions([(arena.fd, 0, 2 * PAGE_BYTES)])
        view = np.frombuffer(mapped, dtype=np.uint8)
        mapped.close()
        mapped.close()
        assert mapped.closed
        assert view[PAGE_BYTES] == 2
        for use in (
            lambda: mapped.buffer, lambda: mapped.address, lambda: mapped.size_bytes, lambda: mapped.map_count,
            mapped.populate, lambda: memoryview(mapped), lambda: region_hashes(mapped),
        ):
            with pytest.raises(PreconditionFailed, match="CLOSED"):
                use()


@pytest.mark.parametrize("keeps_view", [False, True])
def test_mapped_regions_closed_is_unmapped_with_its_last_view(keeps_view: bool) -> None:
    name = f"unmapped-{keeps_view}"
    with numbered_segment(1, name) as arena:
        areas = memory_areas(name)
        mapped = MappedRegions([(arena.fd, 0, PAGE_BYTES)])
        view = mapped.buffer if keeps_view else None
        mapped.close()
        assert memory_areas(name) == areas + keeps_view
        if view is not None:
            view.release()
        assert memory_areas(name) == areas


def test_mapped_regions_dropped_while_a_view_lives_stays_mapped() -> None:
    with numbered_segment(1, "dropped") as arena:
        areas = memory_areas("dropped")
        view = MappedRegions([(arena.fd, 0, PAGE_BYTES)]).buffer
        assert view[0] == 1
        assert memory_areas("dropped") == areas + 1
        del view
        assert memory_areas("dropped") == areas


@pytest.mark.parametrize(
    ("parts", "reason"),
    [
        ([(0, PAGE_BYTES, 0)], "PART_EMPTY"),
        ([(0, 1, PAGE_BYTES)], "PART_UNALIGNED"),
        ([(0, 0, 1), (0, 0, PAGE_BYTES)], "PART_UNALIGNED"),
        ([(0, 0, 3 * PAGE_BYTES)], "PART_OUTSIDE_FILE"),
        ([(0, 2 * PAGE_BYTES, 1)], "PART_OUTSIDE_FILE"),
        ([(0, 2**63, 1)], "PART_OUTSIDE_FILE"),
        ([(-1, 0, PAGE_BYTES)], "FD_NOT_OPEN"),
    ],
)
def test_mapped_regions_malformed_part_is_refused_and_maps_nothing(
    parts: list[tuple[int, int, int]], reason: str
) -> None:
    with numbered_segment(2, "refused") as arena:
        areas = memory_areas("refused")
        real = [(arena.fd if fd == 0 else fd, offset, length) for fd, offset, length in parts]
        with pytest.raises(InvalidArgument) as caught:
            MappedRegions(real)
        assert caught.value.reason == reason
        assert memory_areas("refused") == areas


def test_map_many_equals_each_alone_and_lives_apart() -> None:
    with numbered_segment(6, "many") as arena:
        areas = memory_areas("many")
        groups = [[(0, 2), (2, 1)], [], [(5, 1), (0, 1)], [(4, 1)]]
        parts = [(arena.fd, page * PAGE_BYTES, count * PAGE_BYTES) for group in groups for page, count in group]
        mapped = map_many(parts, [len(group) for group in groups])
        assert [[one.buffer[at] for at in range(0, one.size_bytes, PAGE_BYTES)] for one in mapped] == [
            [1, 2, 3], [], [6, 1], [5]
        ]  # fmt: skip
        assert [one.map_count for one in mapped] == [1, 0, 2, 1]
        mapped[0].buffer[0] = 77
        mapped[0].close()
        assert (mapped[2].buffer[PAGE_BYTES], mapped[3].buffer[0], memory_areas("many")) == (1, 5, areas + 3)


@pytest.mark.parametrize(
    ("second_page", "counts", "reason"),
    [(1, [1], "PARTS_MISCOUNTED"), (1, [2, 1], "PARTS_MISCOUNTED"), (7, [1, 1], "PART_OUTSIDE_FILE")],
)
def test_map_many_malformed_request_maps_nothing(second_page: int, counts: list[int], reason: str) -> None:
    with numbered_segment(2, "miscounted") as arena:
        areas = memory_areas("miscounted")
        with pytest.raises(InvalidArgument, match=reason):
            map_many([(arena.fd, page * PAGE_BYTES, PAGE_BYTES) for page in (0, second_page)], counts)
        assert memory_areas("miscounted") == areas


def test_mapped_regions_of_a_device_file_is_refused() -> None:
    with open("/dev/zero", "rb") as device, pytest.raises(InvalidArgument, match="FILE_KIND_REFUSED"):
        MappedRegions([(device.fileno(), 0, PAGE_BYTES)])


def test_mapped_regions_forked_child_writes_its_own_copy() -> None:
    with numbered_segment(1) as arena, MappedRegions([(arena.fd, 0, PAGE_BYTES)]) as mapped:
        pid = os.fork()
        if pid == 0:
            mapped.buffer[0] = 77
            os._exit(0 if (mapped.buffer[0], arena.buffer[0]) == (77, 1) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        assert mapped.buffer[0] == 1
