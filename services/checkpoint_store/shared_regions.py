"""Takes regions straight out of a host arena on the store's own machine, without a stream and its copies."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from looseleaf.errors import InvalidArgument, PreconditionFailed, Unavailable
from looseleaf.services.checkpoint_store.regions import Region, RegionUpload
from looseleaf.services.checkpoint_store.store import Store
from looseleaf.services.checkpoint_store.turns import Turns
from looseleaf.services.checkpoint_store.usage import blocks_of
from looseleaf.units import REGION_BYTES
from looseleaf.v1 import shared_regions_pb2 as pb
from looseleaf.v1.shared_regions_pb2_grpc import SharedRegionServiceServicer

# A method of the service that runs blocking calls: `Service.run_blocking`.
RunBlocking = Callable[..., Awaitable[Any]]

REGIONS_MAX: Final = 1_024
SEGMENTS_MAX: Final = 64
# Calls at once; each holds one region in memory. What comes beyond waits for its turn within its deadline; so many.
CALLS_MAX: Final = 4
CALLS_WAITING_MAX: Final = 256
# What the arena's memory files are called in /proc.
ARENA_LINK: Final = "/memfd:looseleaf-arena"
# Errors of a machine that lets nobody look there, or has no such process or file.
NOT_SHARED_ERRORS: Final = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.ESRCH})


class SharedRegionServicer(SharedRegionServiceServicer):
    """Reads nothing but memory files of a host arena, and keeps of them only what has the hash that was announced."""

    def __init__(self, store: Store, run_blocking: RunBlocking, waiting_max: int = CALLS_WAITING_MAX) -> None:
        self._store = store
        self._blocking = run_blocking
        self.takes = Turns("takes of regions from memory", CALLS_MAX, waiting_max)

    async def TakeRegions(self, request: pb.TakeRegionsRequest, context: Any) -> pb.TakeRegionsResponse:
        """See the proto.

        Raises PreconditionFailed `MEMORY_NOT_SHARED`, CapacityExceeded `STORE_BUSY`, InvalidArgument `TOO_MANY_NAMED`
        or `SEGMENT_UNKNOWN`, Unavailable `STORE_IO`, and as `RegionUpload`; then nothing of the request need be stored.
        """
        if len(request.regions) > REGIONS_MAX or len(request.segments) > SEGMENTS_MAX:
            text = f"a request takes at most {REGIONS_MAX} regions of {SEGMENTS_MAX} segments; ask in parts"
            raise InvalidArgument("TOO_MANY_NAMED", text, named_max=REGIONS_MAX)
        async with self.takes:
            stored = await self._blocking(self._take, request)
        return pb.TakeRegionsResponse(stored=stored)

    def _take(self, request: pb.TakeRegionsRequest) -> int:
        size_bytes = sum(blocks_of(min(item.region.length_bytes, REGION_BYTES)) for item in request.regions)
        upload = self._store.regions.begin_upload(self._store.tenants.key(request.tenant), size_bytes)
        try:
            with _opened(request.pid, request.segments) as fds:
                _copy(fds, request.regions, upload)
            return upload.finish()
        except BaseException:
            upload.abort()
            raise


def _copy(fds: Sequence[int], regions: Sequence[pb.SharedRegion], upload: RegionUpload) -> None:
    # One buffer, region by region: it stays in the processor's cache between the read, the hash and the write.
    buffer = memoryview(bytearray(REGION_BYTES))
    for item in regions:
        if item.segment >= len(fds):
            raise InvalidArgument("SEGMENT_UNKNOWN", f"a region lies in segment {item.segment} of {len(fds)}")
        region = Region(item.region.region_id, item.region.length_bytes)
        region.check()
        data = buffer[: region.length_bytes]
        # Short at the end of the file only: then the upload refuses the bytes.
        count = os.preadv(fds[item.segment], [data], item.offset_bytes)
        upload.add([(region, data[:count])])


@contextmanager
def _opened(pid: int, segments: Sequence[pb.MemorySegment]) -> Iterator[list[int]]:
    """The daemon's memory files, opened for reading; raises as `TakeRegions`."""
    with ExitStack() as opened:
        fds = []
        for segment in segments:
            fds.append(_open(f"/proc/{pid}/fd/{segment.fd}", segment.inode))
            opened.callback(os.close, fds[-1])
        yield fds


def _open(path: str, inode: int) -> int:
    try:
        # Looked at before it is opened: opening a device or a pipe may do something.
        if not os.readlink(path).startswith(ARENA_LINK):
            raise _not_shared("it is no host arena")
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno in NOT_SHARED_ERRORS:
            raise _not_shared(why) from error
        # Of this store and this moment, such as too many open files: the memory may well be shared.
        text = f"the store could not open the daemon's memory: {why}; nothing was stored, retry"
        raise Unavailable("STORE_IO", text, action="open", errno=error.errno or 0) from error
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_ino != inode:
        os.close(fd)
        raise _not_shared("it is another machine's")
    return fd


def _not_shared(why: str) -> PreconditionFailed:
    return PreconditionFailed("MEMORY_NOT_SHARED", f"the store cannot read the daemon's memory: {why}; send the bytes")
