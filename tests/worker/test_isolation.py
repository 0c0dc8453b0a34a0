"""What zygotes and workers have of their host; what only root may do is tried where the tests run as root."""

from __future__ import annotations

import ctypes
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

from looseleaf.dirty_tracker.written import pagemap_support
from looseleaf.environment import Environment
from looseleaf.protocol.confinement import CONFINEMENT_VARIABLE, Confinement
from looseleaf.protocol.control import ControlSocket
from looseleaf.services.worker_daemon.memory_groups import MemoryGroups
from looseleaf.subreaper import become_subreaper
from looseleaf.units import MIB, REGION_BYTES
from looseleaf.worker import isolation, zygote_node
from looseleaf.worker.probe import run_probe
from looseleaf.worker.zygote_forks import fork_grandchild

ROOT_ONLY = pytest.mark.skipif(os.geteuid() != 0, reason="only root may run a process as another user")
NOBODY = 65534
PR_GET_DUMPABLE = 3

MakeWorker = Callable[..., Any]


def in_child(look: Callable[[], Any]) -> Any:
    """What `look` gives in a forked process, as plain values."""
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write_fd, json.dumps(look()).encode())
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd) as pipe:
        text = pipe.read()
    os.waitpid(pid, 0)
    assert text, "the forked process failed"
    return json.loads(text)


def dumpable() -> int:
    return int(ctypes.CDLL(None).prctl(PR_GET_DUMPABLE, 0, 0, 0, 0))


def looks_of(worker: Any, expressions: str, setup: str) -> Any:
    reply = worker.run(f"import json\n{setup}\nprint(json.dumps([{expressions}]))")
    assert reply["status"] == "ok", reply
    return json.loads(worker.text())


def test_zygote_is_closed_to_others_of_its_user() -> None:
    def look() -> Any:
        isolation.isolate_zygote()
        return [dumpable(), os.getcwd(), os.umask(0), resource.getrlimit(resource.RLIMIT_CORE)[0]]

    assert in_child(look) == [0, "/", 0o077, 0]


HANGS = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\ntime.sleep(1000)"


def ended_by(work: Callable[[], Any]) -> int:
    """The signal that ends a forked process at `work`; 0 if none does."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("role", ["probe", "node"])
def test_process_that_hangs_in_an_import_ends_without_a_daemon(
    role: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hangs_here.py").write_text(HANGS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(zygote_node, "IMPORT_LIMIT_S", 0.01)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    inherited: Any = SimpleNamespace(shell=SimpleNamespace(builtin_trap=nullcontext()), environment_id="")
    as_role = {
        "probe": lambda: run_probe(theirs.fileno(), ["hangs_here"], limit_s=0.01),
        "node": lambda: zygote_node._serve(ControlSocket(theirs), inherited, Environment("", ()), ["hangs_here"]),
    }  # fmt: skip
    with ours, theirs:
        assert ended_by(as_role[role]) == -signal.SIGALRM


def test_process_that_leaves_the_network_says_whether_it_could() -> None:
    def look() -> Any:
        before = os.readlink("/proc/self/ns/net")
        has_left = isolation.leave_the_network()
        return [has_left, os.readlink("/proc/self/ns/net") != before]

    has_left, has_changed = in_child(look)
    assert has_left is has_changed


def test_forked_process_is_never_of_its_zygotes_group() -> None:
    def look() -> Any:
        become_subreaper()
        os.setsid()
        read_fd, write_fd = os.pipe()

        def enter() -> NoReturn:
            # Before it can have a session of its own.
            os.write(write_fd, str(os.getpgrp()).encode())
            os.setsid()
            os.write(write_fd, b" alone")
            os._exit(0)

        pid = fork_grandchild(enter)
        os.waitpid(pid, 0)
        group, alone = os.read(read_fd, 100).decode().split()
        return [int(group) != os.getpgrp(), alone]

    assert in_child(look) == [True, "alone"]


def test_limit_of_imports_is_gone_once_a_process_serves() -> None:
    def look() -> Any:
        isolation.end_after(1000)
        before = signal.getitimer(signal.ITIMER_REAL)[0]
        isolation.end_after(0)
        return [before > 0, signal.getitimer(signal.ITIMER_REAL)]

    assert in_child(look) == [True, [0, 0]]


def test_real_zygote_stands_in_the_root_folder(bare_zygote: Any) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may look into a zygote")
    pid = bare_zygote.process.pid
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    assert "Umask:\t0077" in Path(f"/proc/{pid}/status").read_text()


def test_worker_is_its_own_again_and_goes_first_when_memory_ends(make_worker: MakeWorker, bare_zygote: Any) -> None:
    wanted = Confinement(open_files=300)
    worker = make_worker(zygote=bare_zygote, **{CONFINEMENT_VARIABLE: wanted.text()})
    setup = "import ctypes, os, resource"
    looks = (
        "ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), int(open('/proc/self/oom_score_adj').read()), "
        "resource.getrlimit(resource.RLIMIT_NOFILE), os.getpgrp() == os.getsid(0) == os.getpid(), "
        f"{CONFINEMENT_VARIABLE!r} in os.environ"
    )
    assert looks_of(worker, looks, setup) == [1, isolation.WORKER_OOM_SCORE, [300, 300], True, False]


@ROOT_ONLY
def test_worker_gives_up_its_user_for_good_and_can_still_save_by_pages(
    make_worker: MakeWorker, bare_zygote: Any
) -> None:
    wanted = Confinement(uid=NOBODY, gid=NOBODY, groups=(NOBODY,), home="/nonexistent", user="nobody")
    worker = make_worker(zygote=bare_zygote, **{CONFINEMENT_VARIABLE: wanted.text()})
    setup = """
import os
from looseleaf.dirty_tracker import written
def refused(change):
    try:
        change()
    except PermissionError:
        return True
"""
    looks = (
        "os.getresuid(), os.getresgid(), os.getgroups(), os.environ['HOME'], os.environ['USER'], "
        "refused(lambda: os.setresuid(0, 0, 0)), refused(lambda: os.setgroups([0])), "
        "refused(lambda: open('/etc/shadow').read()), sorted(os.listdir('/proc/self/fd')) != [], "
        "written._kept is not None and written._kept.is_usable"
    )
    expected = [[NOBODY] * 3, [NOBODY] * 3, [NOBODY], "/nonexistent", "nobody", True, True, True, True, True]
    assert looks_of(worker, looks, setup) == expected
    assert worker.saved["version"] >= 1


@ROOT_ONLY
def test_worker_of_another_user_saves_only_pages_that_were_written(make_worker: MakeWorker) -> None:
    """The warm zygote's: it has torch, and the restored memory is the arena's."""
    first = make_worker()
    size_bytes = 4 * REGION_BYTES
    first.run(f"import numpy\nkept = numpy.arange({size_bytes // 8})")
    wanted = Confinement(uid=NOBODY, gid=NOBODY, home="/", user="nobody")
    second = make_worker(first.store, prepare=False, **{CONFINEMENT_VARIABLE: wanted.text()})
    assert second.prepare(["kept"])["mapped_bytes"] == size_bytes
    cell = """
import os
from looseleaf.dirty_tracker import written
kept[0] = 7
pages = [restored.written() for restored in written._restored.values()]
print(os.getuid(), kept[:2].tolist(), int(kept[-1]), pages)
del pages, written
"""
    second.run(cell, count=2)
    read = [0] if pagemap_support()[0] else [0, 1, 2, 3]
    assert second.text() == f"{NOBODY} [7, 1] {size_bytes // 8 - 1} [{read}]\n"
    assert (second.saved["dirty_regions"], second.saved["total_regions"]) == (1, 4)


def test_worker_that_cannot_be_confined_does_not_run(bare_zygote: Any, capfd: pytest.CaptureFixture[str]) -> None:
    wanted = Confinement(cgroup="/proc/no_such_group/cgroup.procs")
    pid, sock = bare_zygote.fork(**{CONFINEMENT_VARIABLE: wanted.text()})
    with sock:
        assert sock.recv(1) == b""
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 70
    assert "no_such_group" in capfd.readouterr().err


def test_worker_of_a_control_group_is_ended_with_its_limit_and_the_others_are_not(
    make_worker: MakeWorker, bare_zygote: Any
) -> None:
    groups = MemoryGroups(256 * MIB)
    group = groups.make(f"test-{os.getpid()}")
    if group is None:
        pytest.skip("this process may make no control groups with a limit of memory")
    try:
        other = make_worker(zygote=bare_zygote)
        wanted = Confinement(cgroup=group.processes)
        worker = make_worker(zygote=bare_zygote, **{CONFINEMENT_VARIABLE: wanted.text()})
        kills = group.guard.kills()
        assert str(worker.pid) in Path(group.processes).read_text().split()
        worker.begin(f"x = b'x' * {1024 * MIB}")
        worker.ended.result(60)
        assert worker.end() == -signal.SIGKILL
        told = group.guard.explain(kills, group.peak_bytes())
        assert told.startswith(": the system ran out of memory (limit 256.0 MiB, it had used up to 2")
        assert looks_of(other, "1", "") == [1]
    finally:
        groups.drop(group)


def test_worker_gets_what_no_zygote_may_see(make_worker: MakeWorker, bare_zygote: Any) -> None:
    worker = make_worker(zygote=bare_zygote, prepare=False)
    worker.link.send_event("environment", {"variables": [(b"MY_TOKEN", b"secret"), (b"A_KEY", b"\xff")]})
    worker.prepare()
    looks = "os.environ['MY_TOKEN'], list(os.environb[b'A_KEY'])"
    assert looks_of(worker, looks, "import os") == ["secret", [255]]


TITLED = """
import json, sys
from pathlib import Path
from looseleaf.worker import isolation
sys.modules["setproctitle"] = None  # An import of it fails.
before = len(Path("/proc/self/cmdline").read_bytes())
isolation.set_title("{letter}" * {count})
shown = Path("/proc/self/cmdline").read_bytes()
print(json.dumps([before, len(shown), shown.rstrip(b"\\0").decode(), Path("/proc/self/comm").read_text()]))
"""


@pytest.mark.parametrize("count", [7, 100_000])
def test_title_without_setproctitle_is_what_ps_shows(count: int) -> None:
    # In a process of its own: the one of these tests may have been given a title by setproctitle already.
    code = TITLED.format(letter="x", count=count)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after, shown, name = json.loads(done.stdout)
    assert after == before
    assert shown == ("x" * count)[: before - 1]
    assert name == f"{('x' * count)[:15]}\n"


HOSTILE = """
import gc, os, signal, sys
os.chdir({folder!r})
os.umask(0)
gc.enable()
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGPIPE):
    signal.signal(number, lambda *_: None)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
signal.set_wakeup_fd(os.pipe2(os.O_NONBLOCK)[1])
sys.path.insert(0, {folder!r})
"""


def test_package_that_changes_its_process_and_is_deleted_leaves_zygote_and_workers_as_they_are(
    start_zygote: Callable[..., Any], make_worker: MakeWorker, tmp_path: Path
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "hostile_one.py").write_text(HOSTILE.format(folder=str(folder)))
    (folder / "imported_later.py").write_text("")
    root = str(Path(__file__).resolve().parents[2])
    zygote = start_zygote("hostile_one", PYTHONPATH=f"{folder}{os.pathsep}{root}")
    assert [item["name"] for item in zygote.first["imports"]] == ["hostile_one"]
    if os.geteuid() == 0:
        assert os.readlink(f"/proc/{zygote.process.pid}/cwd") == "/"
    # As when somebody deletes the environment that a host works with.
    shutil.rmtree(folder)
    worker = make_worker(zygote=zygote)
    looks = (
        "[name for name in ('SIGTERM', 'SIGUSR1', 'SIGCHLD') if signal.getsignal(getattr(signal, name)) "
        "is not signal.SIG_DFL], signal.getsignal(signal.SIGPIPE) is signal.SIG_IGN, signal.set_wakeup_fd(-1), "
        "sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), gc.isenabled()"
    )
    assert looks_of(worker, looks, "import gc, signal") == [[], True, -1, [], True]
    [failed] = worker.prepare(imports=["imported_later", "hostile_one"])["failed_imports"]
    assert failed["error"] == "ModuleNotFoundError: No module named 'imported_later'"
