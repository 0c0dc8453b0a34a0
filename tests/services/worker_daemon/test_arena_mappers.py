"""Processes that outlive the kernel which started them, and its mappings with them."""

from __future__ import annotations

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from daemon_fakes import within

from looseleaf.dirty_tracker import Memfd
from looseleaf.services.worker_daemon import arena_mappers
from looseleaf.services.worker_daemon.arena_mappers import orphans_gone
from looseleaf.services.worker_daemon.peer_process import PeerProcess

# A kernel that maps the arena and forks a child; the kernel ends with its input, the child with its pipe.
KERNEL = """
import mmap, os, sys
memory = mmap.mmap(int(sys.argv[1]), 4096, mmap.MAP_PRIVATE, mmap.PROT_READ)
if os.fork():
    sys.stdin.buffer.read(1)
    os._exit(0)
print(os.getpid(), os.getppid(), flush=True)
os.read(int(sys.argv[2]), 1)
"""


@pytest.fixture
def arena() -> Iterator[Memfd]:
    with Memfd.create("looseleaf-arena-0", 4096) as memory:
        yield memory


def test_forked_child_of_a_kernel_is_waited_for(arena: Memfd) -> None:
    inode = os.fstat(arena.fd).st_ino
    child_waits, let_end = os.pipe()

    async def while_the_kernel_lives(pid: int) -> None:
        await within(orphans_gone([inode], lambda: [pid]))

    async def after_it() -> None:
        waiting = asyncio.create_task(orphans_gone([inode], list))
        await within(orphans_gone([inode + 1], list))
        # Not where this process adopts orphans: then the child counts as one that it started.
        assert adopted or not waiting.done()
        os.close(let_end)
        await within(waiting)

    with subprocess.Popen(
        [sys.executable, "-c", KERNEL, str(arena.fd), str(child_waits)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, pass_fds=[arena.fd, child_waits],
    ) as kernel:  # fmt: skip
        assert kernel.stdin is not None and kernel.stdout is not None
        child, parent = map(int, kernel.stdout.readline().split())
        assert parent == kernel.pid
        asyncio.run(while_the_kernel_lives(kernel.pid))
        kernel.stdin.close()
        assert kernel.wait(20) == 0
    stat = Path(f"/proc/{child}/stat").read_text()
    adopted = int(stat.rpartition(")")[2].split()[1]) == os.getpid()
    asyncio.run(after_it())
    os.close(child_waits)


async def test_worker_that_process_1_adopted_is_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A daemon that is process 1 cannot tell its workers by their parent, nor one that began during the look."""
    monkeypatch.setattr(arena_mappers, "_mappers", lambda _inodes: iter([70, 71]))
    monkeypatch.setattr(arena_mappers, "_ancestors", lambda _pid: iter(()))
    lives = iter([[70], [70, 71], [70, 71]])
    await within(orphans_gone([1], lambda: next(lives)))


async def test_look_that_finds_no_descriptor_free_is_repeated_and_leaks_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena_mappers, "LOOK_RETRY_S", 0.0)
    mapping = iter([[os.getpid(), 1], [os.getpid(), 1], []])
    monkeypatch.setattr(arena_mappers, "_orphans", lambda _inodes, _live: next(mapping))
    made: list[PeerProcess] = []
    full = iter([False, True, True])

    def of(pid: int) -> PeerProcess:
        if next(full):
            raise OSError(errno.EMFILE, "too many open files")
        made.append(PeerProcess.of(pid))
        return made[-1]

    monkeypatch.setattr(arena_mappers, "PeerProcess", SimpleNamespace(of=of))
    await within(orphans_gone([1], list))
    assert len(made) == 1 and made[0]._fd == -1


def test_process_that_cannot_be_looked_at_for_now_does_not_count_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_args: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr("builtins.open", full)
    with pytest.raises(OSError, match="too many"):
        arena_mappers._maps_any(os.getpid(), frozenset([1]))
