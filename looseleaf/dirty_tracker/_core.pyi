"""The compiled host side; see the functions of the same names in this package for the contracts."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, final

from typing_extensions import Buffer

BUILT_WITH_CUDA: bool
HASH_BYTES: int
HASH_THREADS_MAX: int

def simd_level() -> str: ...
def populate_read_available() -> bool: ...
def fingerprint_schedules() -> list[str]: ...
def region_fingerprints(buffer: Buffer, region_bytes: int, secret: bytes, schedule: str, threads: int) -> bytes: ...
def region_hashes(buffer: Buffer, region_bytes: int, seed: int, threads: int) -> bytes: ...
def hash128(buffer: Buffer, seed: int) -> bytes: ...
def changed_hashes(new_hashes: Buffer, old_hashes: Buffer) -> list[int]: ...
def compare_regions(new: Buffer, old: Buffer, region_bytes: int) -> list[int]: ...
def pagemap_support() -> tuple[str, str]: ...
def region_tables(
    payloads: Sequence[tuple[Buffer, bytes, tuple[bytes, int, int] | None]],
    region_bytes: int,
    seed: int,
    threads: int,
    pagemap: Pagemap | None,
) -> list[tuple[bytes, list[int], int]]: ...
def map_many(parts: Sequence[tuple[int, int, int]], counts: Sequence[int]) -> list[MappedRegions]: ...
def copy_into(dst: Buffer, dst_offset: int, src: Buffer, src_offset: int, length: int) -> None: ...
@final
class Pagemap:
    """The page tables of the process that opened it, read by `method`, "scan" or "read".

    Raises Forbidden (`SYSTEM_CALL_REFUSED`) after the process has given up its uid, InvalidArgument
    (`PAGEMAP_METHOD_UNKNOWN`).
    """

    @staticmethod
    def open(method: str) -> Pagemap: ...
    @staticmethod
    def open_file(path: str, method: str) -> Pagemap: ...
    @property
    def is_usable(self) -> bool:
        """False in a forked child, and when somebody has closed the descriptor."""
    def written_regions(self, address: int, size_bytes: int, region_bytes: int) -> list[int]:
        """Of a range inside one private file mapping. Raises PreconditionFailed (`CLOSED`) if not usable."""

@final
class MappedRegions:
    """Runs of files (usually arena slots) mapped side by side as one private, writable buffer.

    `parts` are (fd, offset, length): each offset is a multiple of the page size, and so is the length of every part but
    the last. The fds are not needed afterwards. Writes make private copies of the touched pages; they never reach the
    files. Supports the buffer protocol (writable, bytes) and `with`. No parts map an empty buffer at address 0.

    Raises InvalidArgument (`PART_EMPTY`, `PART_UNALIGNED`, `PART_OUTSIDE_FILE`, `FILE_KIND_REFUSED`, `FD_NOT_OPEN`),
    CapacityExceeded (`OUT_OF_MEMORY`: the process may have too many memory areas), Forbidden (`SYSTEM_CALL_REFUSED`).
    Everything but `close` and `closed` raises PreconditionFailed (`CLOSED`) after `close`.
    """

    def __init__(self, parts: Sequence[tuple[int, int, int]]) -> None: ...
    @property
    def address(self) -> int:
        """Address of the first byte; fixed until the memory is unmapped."""
    @property
    def size_bytes(self) -> int:
        """Sum of the parts' lengths."""
    @property
    def map_count(self) -> int:
        """Memory areas that the mapping takes; neighbouring parts of one fd share one."""
    @property
    def buffer(self) -> memoryview:
        """A new writable view; while one lives, `close` only postpones the unmapping."""
    @property
    def closed(self) -> bool: ...
    def populate(self) -> None:
        """Brings every page into the page tables for reading, so that later reads take no faults; copies nothing."""
    def close(self) -> None:
        """Refuses further use and unmaps, as soon as no view of the buffer lives. May be called twice."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...

@final
class Memfd:
    """A shared memory segment and its descriptor. Supports the buffer protocol and `with`.

    Everything but `close` and `closed` raises PreconditionFailed (`CLOSED`) after `close`.
    """

    @staticmethod
    def create(name: str, size_bytes: int) -> Memfd:
        """A new segment of `size_bytes` zeros, mode 0600: another uid cannot re-open a handed-out fd for writing.

        Its size is sealed: a peer that got a writable fd cannot cut it while it is mapped here.
        `name` is shown in /proc only. Raises InvalidArgument (`SIZE_OUT_OF_RANGE`) for less than 1 byte.
        """
    @staticmethod
    def open_fd(fd: int, size_bytes: int, writable: bool) -> Memfd:
        """Maps the first `size_bytes` of the segment behind `fd`, which is duplicated: the caller still owns `fd`.

        Raises InvalidArgument (`SIZE_OUT_OF_RANGE`, `FILE_KIND_REFUSED`, `FD_NOT_OPEN`) and, for a writable mapping of
        a read-only fd, Forbidden (`SYSTEM_CALL_REFUSED`).
        """
    @property
    def fd(self) -> int:
        """The segment's descriptor; this object owns it."""
    @property
    def address(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def writable(self) -> bool: ...
    @property
    def buffer(self) -> memoryview:
        """A new view of the shared memory; while one lives, `close` only postpones the unmapping."""
    @property
    def closed(self) -> bool: ...
    def readonly_fd(self) -> int:
        """A new descriptor of the same memory that cannot write; the caller closes it."""
    def punch_hole(self, offset: int, length: int) -> None:
        """Frees the memory of [offset, offset + length), page multiples; it then reads as zeros, here and elsewhere.

        Reading a hole through any mapping takes memory again, as writing does.
        """
    def close(self) -> None:
        """Closes the descriptor and unmaps, as soon as no view of the buffer lives. May be called twice."""
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None: ...
