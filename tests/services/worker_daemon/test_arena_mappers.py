"""Processes that outlive the kernel which started them, and its mappings with them."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_fakes import within

from looseleaf.dirty_tracker import Memfd
from looseleaf.services.worker_daemon.arena_mappers import orphans_gone

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
