"""What a host lets its workers have; control groups for real where this process may make some."""

from __future__ import annotations

import asyncio
import os
import pwd
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any

import pytest
from daemon_fakes import SESSION, within

from looseleaf.errors import InvalidArgument, PreconditionFailed
from looseleaf.ids import Epoch, new_worker_id
from looseleaf.protocol.confinement import CONFINEMENT_VARIABLE, Confinement
from looseleaf.services.worker_daemon import worker_process
from looseleaf.services.worker_daemon.limits import Confiner, WorkerUser
from looseleaf.services.worker_daemon.memory_groups import MemoryGroups
from looseleaf.services.worker_daemon.process_memory import own_memory_bytes, used_memory_bytes
from looseleaf.services.worker_daemon.scrubbed_env import scrubbed
from looseleaf.services.worker_daemon.state_requests import StateOwner
from looseleaf.services.worker_daemon.worker_process import WorkerLimits, WorkerProcess
from looseleaf.units import GIB, MIB

NOBODY = "nobody"


async def fork(parts: Any, confiner: Confiner) -> tuple[WorkerProcess, Any]:
    limits = WorkerLimits(5.0, 5.0, confiner)
    requests = parts.requests(StateOwner(SESSION, Epoch(1)))
    worker = await WorkerProcess.fork(new_worker_id(), parts.forker, {}, requests, parts.reaper, limits)
    return worker, parts.forker.workers[-1]


def groups_under(root: Path, limit_bytes: int = 64 * MIB, *, version: int = 2, handed_down: str = "") -> MemoryGroups:
    """As a system whose files lie under `root` would have them."""
    (root / "proc" / "self").mkdir(parents=True)
    line = "0::/svc/daemon\n" if version == 2 else "4:memory:/svc/daemon\n"
    (root / "proc" / "self" / "cgroup").write_text(line)
    mount = root / "sys" / "fs" / "cgroup" / ("" if version == 2 else "memory")
    (mount / "svc" / "daemon").mkdir(parents=True)
    if handed_down:
        (mount / handed_down / "cgroup.subtree_control").write_text("cpu memory\n")
    return MemoryGroups(limit_bytes, root)


@pytest.mark.parametrize(
    ("version", "handed_down", "where"),
    [(1, "", "memory/svc/daemon"), (2, "svc/daemon", "svc/daemon"), (2, "svc", "svc"), (2, "", None)],
)
def test_group_is_made_where_its_limit_counts(
    tmp_path: Path, version: int, handed_down: str, where: str | None
) -> None:
    group = groups_under(tmp_path, version=version, handed_down=handed_down).make("w-1")
    if where is None:
        assert group is None
        return
    assert group is not None
    assert group.folder == tmp_path / "sys" / "fs" / "cgroup" / where / "looseleaf-own-w-1"
    assert (group.folder / ("memory.limit_in_bytes" if version == 1 else "memory.max")).read_text() == str(64 * MIB)


def test_group_whose_last_process_lingers_is_removed_later(tmp_path: Path) -> None:
    groups = groups_under(tmp_path, handed_down="svc")
    first = groups.make("w-1")
    assert first is not None
    # A folder with files is as one whose last process is not quite gone.
    groups.drop(first)
    assert groups._left == [first]
    for file in first.folder.iterdir():
        file.unlink()
    first.folder.rmdir()
    assert groups.make("w-2") is not None
    assert groups._left == []


def test_groups_that_a_killed_daemon_left_go_with_the_first_new_one(tmp_path: Path) -> None:
    groups = groups_under(tmp_path, handed_down="svc")
    parent = tmp_path / "sys" / "fs" / "cgroup" / "svc"
    for name in ("looseleaf-own-w-8", "looseleaf-own-w-9", "looseleaf-other-w-7"):
        (parent / name).mkdir()
    # As one that has a process still: it cannot be removed.
    (parent / "looseleaf-own-w-9" / "cgroup.procs").write_text("1\n")
    assert groups.make("w-1") is not None
    names = {path.name for path in parent.glob("looseleaf-*")}
    assert names == {"looseleaf-own-w-1", "looseleaf-own-w-9", "looseleaf-other-w-7"}


def test_group_ends_a_process_that_takes_more_and_tells_limit_and_peak() -> None:
    groups = MemoryGroups(64 * MIB)
    group = groups.make(f"test-{uuid.uuid4().hex[:8]}")
    if group is None:
        pytest.skip("this process may make no control groups with a limit of memory")
    try:
        kills = group.guard.kills()
        code = f"open({group.processes!r}, 'w').write('0'); b'x' * {512 * MIB}"
        done = subprocess.run([sys.executable, "-IS", "-c", code], check=False, capture_output=True, timeout=60)
        assert done.returncode == -signal.SIGKILL, done.stderr
        assert group.guard.kills() == (kills or 0) + 1
        assert 32 * MIB < group.peak_bytes() <= 64 * MIB
        text = group.guard.explain(kills, group.peak_bytes())
        assert text.startswith(": the system ran out of memory (limit 64.0 MiB, it had used up to ")
    finally:
        groups.drop(group)
    assert not group.folder.exists()


async def test_worker_over_its_memory_is_ended_by_the_daemon_where_the_system_does_not(
    parts: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(worker_process, "MEMORY_LOOK_S", 0.001)
    used = [GIB]
    monkeypatch.setattr(worker_process, "used_memory_bytes", lambda _pid, _limit: used[0])
    confiner = Confiner(memory_bytes=2 * GIB, groups=groups_under(tmp_path))
    worker, far = await fork(parts, confiner)
    assert (await within(worker.prepare({"version": 1})))["pid"] == 1
    used[0] = 3 * GIB
    how = await within(asyncio.shield(worker.lost))
    assert "it used more memory than" in how and "(limit 2.0 GiB, it had used up to 3.0 GiB)" in how
    assert far.signals == [signal.SIGKILL]


async def test_worker_of_a_group_is_told_it_and_gives_it_back(parts: Any, tmp_path: Path) -> None:
    asked: list[dict[str, str]] = []
    fork_plainly = parts.forker.fork

    async def note(title: str, env: dict[str, str], fds: list[int]) -> int:
        asked.append(env)
        return int(await fork_plainly(title, env, fds))

    parts.forker.fork = note
    groups = groups_under(tmp_path, handed_down="svc")
    worker, _far = await fork(parts, Confiner(memory_bytes=64 * MIB, open_files=50, groups=groups))
    wanted = Confinement.parse(asked[0][CONFINEMENT_VARIABLE])
    folder = Path(wanted.cgroup).parent
    assert (wanted.open_files, folder.name) == (50, f"looseleaf-own-{worker.facts.worker_id}")
    await worker.end()
    # Ordinary folders cannot be removed with their files; to be tried again is all that one can see here.
    assert [group.folder for group in groups._left] == [folder]


async def test_secrets_of_the_environment_go_past_the_zygote_to_workers_of_the_same_user(parts: Any) -> None:
    asked = parts.forker
    # What the environment has need not be text.
    worker, far = await fork(parts, Confiner(withheld={"MY_TOKEN": "secret", "A_KEY": os.fsdecode(b"\xff")}))
    await within(worker.prepare({"version": 1}))
    assert [message["variables"] for message in far.told] == [[[b"MY_TOKEN", b"secret"], [b"A_KEY", b"\xff"]]]
    nobody = WorkerUser(65534, 65534, (), "/", NOBODY)
    worker, far = await fork(parts, Confiner(nobody, withheld={"MY_TOKEN": "secret"}))
    await within(worker.prepare({"version": 1}))
    assert far.told == []
    assert asked.workers == [*asked.workers[:-1], far]


async def test_worker_that_cannot_be_told_its_environment_is_ended(
    parts: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_worker: WorkerProcess, kind: str, _body: Any) -> None:
        raise InvalidArgument("MESSAGE_NOT_PLAIN", kind)

    monkeypatch.setattr(WorkerProcess, "send_event", refuse)
    with pytest.raises(InvalidArgument, match="environment"):
        await fork(parts, Confiner(withheld={"MY_TOKEN": "secret"}))
    assert parts.forker.workers[-1].signals == [signal.SIGKILL]


def test_environment_of_zygotes_has_no_secrets_and_no_settings_of_services() -> None:
    environ = {
        "PATH": "/bin", "HOME": "/h", "HF_TOKEN": "t", "aws_secret_access_key": "s", "LOOSELEAF_DAEMON_STORE": "x",
        "LOOSELEAF_KERNEL_TOKEN": "k", "LOOSELEAF_KERNEL_ENDPOINT": "e",
    }  # fmt: skip
    kept, withheld = scrubbed(environ)
    assert sorted(kept) == ["HOME", "LOOSELEAF_KERNEL_ENDPOINT", "PATH"]
    assert sorted(withheld) == ["HF_TOKEN", "aws_secret_access_key"]


def test_user_of_workers_is_found_by_name_and_number() -> None:
    own = pwd.getpwuid(os.geteuid())
    assert WorkerUser.find("") is WorkerUser.find(own.pw_name) is WorkerUser.find(str(own.pw_uid)) is None
    with pytest.raises(PreconditionFailed, match="WORKER_USER_REFUSED.*nobody-of-that-name"):
        WorkerUser.find("nobody-of-that-name")
    other = next((row for row in pwd.getpwall() if row.pw_uid not in (0, os.geteuid())), None)
    if other is None:
        pytest.skip("this host has no other user")
    if os.geteuid() != 0:
        with pytest.raises(PreconditionFailed, match="WORKER_USER_REFUSED.*root"):
            WorkerUser.find(other.pw_name)
        return
    found = WorkerUser.find(other.pw_name)
    assert found is not None
    assert (found.uid, found.gid, found.home, found.name) == (
        other.pw_uid, other.pw_gid, other.pw_dir, other.pw_name,
    )  # fmt: skip
    assert other.pw_gid in found.groups


def test_own_memory_of_a_process_that_has_ended_is_nothing() -> None:
    assert own_memory_bytes(os.getpid()) > MIB
    assert own_memory_bytes(2**22 + 1) == 0


FAMILY = f"""
import os, sys
shared = bytearray(b"x" * {64 * MIB})
if os.fork() == 0:
    os.setsid()
    own = bytearray(b"x" * {32 * MIB})
    print("ready", flush=True)
sys.stdin.read()
"""


def test_memory_of_a_worker_counts_its_cells_processes_and_what_they_share_once() -> None:
    with subprocess.Popen(
        [sys.executable, "-IS", "-c", FAMILY], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"ready\n"
        alone = own_memory_bytes(parent.pid)
        # Below the limit a bound is enough, which has the shared part twice.
        assert used_memory_bytes(parent.pid, GIB) >= 160 * MIB > alone
        assert 96 * MIB <= used_memory_bytes(parent.pid, 64 * MIB) < 150 * MIB
    assert used_memory_bytes(parent.pid, 0) == 0


def test_group_of_a_worker_that_outlives_its_daemon_is_found_by_the_next(tmp_path: Path) -> None:
    groups = groups_under(tmp_path, handed_down="svc")
    made = groups.make("w-1")
    assert made is not None
    next_daemon = Confiner(memory_bytes=1, groups=MemoryGroups(64 * MIB, tmp_path))
    assert next_daemon.confined("w-1").group == made and next_daemon.confined("w-2").group is None
    assert Confiner().confined("w-1").group is None


@pytest.mark.parametrize(("mode", "may"), [(0o700, False), (0o711, True), (0o710, False), (0o755, True)])
def test_user_may_enter_only_folders_that_it_may_pass(tmp_path: Path, mode: int, may: bool) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    folder.chmod(mode)
    stranger = WorkerUser(os.getuid() + 4242, os.getgid() + 4242, (), "/", "stranger")
    owner = WorkerUser(os.getuid(), os.getgid(), (), "/", "owner")
    passable = stranger.may_enter(tmp_path)
    assert stranger.may_enter(folder) is (passable and may) and owner.may_enter(folder)
    assert not owner.may_enter(folder / "absent")
