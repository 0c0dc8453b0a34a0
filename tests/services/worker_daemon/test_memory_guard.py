"""What the system's counters say of a process that was killed."""

from __future__ import annotations

from pathlib import Path

import pytest

from looseleaf.services.worker_daemon.memory_guard import MemoryGuard
from looseleaf.units import GIB


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


V2 = {"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.events": "low 0\noom 3\noom_kill 2\n",
      "sys/fs/cgroup/a/b/memory.max": f"{16 * GIB}\n"}  # fmt: skip
# In a container the group's own path is not there.
INSIDE = {"proc/self/cgroup": "0::/docker/xyz\n", "sys/fs/cgroup/memory.events": "oom_kill 2\n",
          "sys/fs/cgroup/memory.max": "max\n"}  # fmt: skip
V1 = {"proc/self/cgroup": "4:cpu,memory:/c\n0::/\n", "sys/fs/cgroup/memory/c/memory.oom_control": "oom_kill 2\n",
      "sys/fs/cgroup/memory/c/memory.limit_in_bytes": f"{2**63 - 4096}\n"}  # fmt: skip
MACHINE = {"proc/self/cgroup": "0::/\n", "proc/vmstat": "pgfault 9\noom_kill 2\n"}


@pytest.mark.parametrize(
    ("system", "limit_bytes"), [(V2, 16 * GIB), (INSIDE, 0), (V1, 0), (MACHINE, 0)],
    ids=["v2", "inside", "v1", "vmstat"],
)  # fmt: skip
def test_guard_reads_the_groups_counter_and_limit(tmp_path: Path, system: dict[str, str], limit_bytes: int) -> None:
    for name, text in system.items():
        write(tmp_path, name, text)
    guard = MemoryGuard.find(tmp_path)
    assert (guard.kills(), guard.limit_bytes()) == (2, limit_bytes)
    told = guard.explain(1, 3 * GIB)
    assert told.startswith(": the system ran out of memory")
    assert ("as far as the machine's counters tell" in told) is (system is MACHINE)
    assert guard.explain(2, 3 * GIB) == " (it had used up to 3.0 GiB)"


def test_guard_names_limit_and_peak(tmp_path: Path) -> None:
    for name, text in V2.items():
        write(tmp_path, name, text)
    told = MemoryGuard.find(tmp_path).explain(0, 15 * GIB)
    assert told == ": the system ran out of memory (limit 16.0 GiB, it had used up to 15.0 GiB)"


def test_guard_without_counters_only_guesses(tmp_path: Path) -> None:
    guard = MemoryGuard.find(tmp_path)
    assert guard.kills() is None and guard.limit_bytes() == 0
    assert "often the system ran out of memory" in guard.explain(None, 0)
    # One that came later counts nothing of before.
    write(tmp_path, "proc/vmstat", "oom_kill 2\n")
    assert "often" in MemoryGuard.find(tmp_path).explain(None, GIB)
