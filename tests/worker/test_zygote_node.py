"""Zygotes that zygotes fork: what they import, refuse and leave alone (import-cache study §2.6, §6)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = str(Path(__file__).resolve().parents[2])
FIXTURES = {
    "tail_one": "import json\nVALUE = 1",
    "tail_two": "import tail_one\nVALUE = tail_one.VALUE + 1",
    "starts_thread": "import threading as t\nt.Thread(target=t.Event().wait, daemon=True, name='pest').start()",
    "starts_thread_when_used": (
        "import random, signal, threading\nread = random.getstate\ndef getstate():\n"
        " name = 'in time' if signal.getitimer(signal.ITIMER_REAL)[0] else 'endless'\n"
        " threading.Thread(target=threading.Event().wait, daemon=True, name=name).start()\n return read()\n"
        "random.getstate = getstate"
    ),
    "leaves_socket": "import socket\nPAIR = socket.socketpair()",
    "has_no_server": "raise ConnectionRefusedError('license')",
    "raises": "raise RuntimeError('half installed')",
    "leaves": "import sys; sys.exit('no license')",
    "forks_on": (
        "import os\npid = os.fork()\nif pid:\n os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)\n"
        " open(__file__ + '.pid', 'w').write(str(pid))"
    ),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory, zygote_class: type[Any]) -> Iterator[Any]:
    """A zygote without packages, in whose path the fixtures' modules are."""
    folder = tmp_path_factory.mktemp("packages")
    for name, text in FIXTURES.items():
        (folder / f"{name}.py").write_text(text)
    process = zygote_class("tail_one", PYTHONPATH=os.pathsep.join([str(folder), REPOSITORY]))
    process.folder = folder
    yield process
    assert process.close() == 0


@pytest.fixture
def fork_node(base: Any) -> Iterator[Callable[..., Any]]:
    """Forks nodes from `base`, or from `parent`; those that still live are ended with the test."""
    made: list[Any] = []

    def fork(*imports: str, parent: Any = base) -> Any:
        made.append(parent.fork_node(*imports))
        return made[-1]

    yield fork
    for node in made:
        node.control.close()
        try:
            os.waitpid(node.pid, 0)
        except ChildProcessError:
            continue


def ask(zygote: Any, message: dict[str, Any]) -> dict[str, Any]:
    zygote.control.send(message)
    return zygote.control.recv(60)[0]


def test_base_says_each_import_before_it_begins(base: Any) -> None:
    assert base.importing == ["tail_one"]
    assert {"tail_one", "IPython.core.pylabtools"} <= set(base.first["modules"])
    assert base.first["private_bytes"] > 0


def test_node_imports_more_and_its_workers_have_all(fork_node: Callable[..., Any], make_worker: Any) -> None:
    node = fork_node("tail_two")
    assert node.importing == ["tail_two"]
    assert [item["name"] for item in node.first["imports"]] == ["tail_two"]
    assert (node.first["t"], node.first["threads"], node.first["pid"]) == ("READY", 1, node.pid)
    assert "tail_two" in node.first["modules"] and node.first["private_bytes"] > 0
    worker = make_worker(zygote=node)
    assert worker.hello["zygote_imports"] == ["tail_one", "tail_two"]
    worker.run("import sys; print('tail_two' in sys.modules)")
    assert worker.text() == "True\n"
    stat = ask(node, {"t": "STAT", "id": 3})
    assert stat["id"] == 3 and min(stat["private_bytes"], stat["pss_bytes"]) > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into a zygote")
def test_node_holds_its_four_fds_and_no_child_and_is_nobody_elses(base: Any, fork_node: Callable[..., Any]) -> None:
    node = fork_node("tail_two")
    assert len(os.listdir(f"/proc/{node.pid}/fd")) == 4
    assert Path(f"/proc/{node.pid}/task/{node.pid}/children").read_text() == ""
    # A child of the daemon: the death of its parent zygote is none of its business.
    assert f"PPid:\t{os.getpid()}\n" in Path(f"/proc/{node.pid}/status").read_text()


def test_dead_middle_node_leaves_its_child_and_its_worker_at_work(
    fork_node: Callable[..., Any], make_worker: Any
) -> None:
    middle = fork_node("tail_two")
    leaf = fork_node("wave", parent=middle)
    worker = make_worker(zygote=middle)
    os.kill(middle.pid, signal.SIGKILL)
    os.waitpid(middle.pid, 0)
    worker.run("print(1 + 1)")
    assert worker.text() == "2\n"
    later = make_worker(zygote=leaf)
    assert later.hello["zygote_imports"] == ["tail_one", "tail_two", "wave"]


def test_module_installed_in_the_same_instant_as_the_last_is_found(base: Any, make_worker: Any) -> None:
    # Its folder was looked through when the zygote imported from it.
    times = base.folder.stat()
    (base.folder / "put_there_later.py").write_text("")
    os.utime(base.folder, ns=(times.st_atime_ns, times.st_mtime_ns))
    worker = make_worker(zygote=base)
    worker.run("import put_there_later; print('there')")
    assert worker.text() == "there\n"


def test_node_whose_import_brings_folders_of_its_own_is_built(base: Any, fork_node: Callable[..., Any]) -> None:
    (base.folder / "vendored" / "inner-1.dist-info").mkdir(parents=True)
    text = f"import sys; sys.path.insert(0, {str(base.folder / 'vendored')!r})"
    (base.folder / "brings_folders.py").write_text(text)
    assert fork_node("brings_folders").first["t"] == "READY"


@pytest.mark.parametrize(
    ("name", "verdict", "said"),
    [
        ("starts_thread", "threads", "pest"), ("starts_thread_when_used", "threads", "in time"),
        ("leaves_socket", "fds", "socket"), ("raises", "error", "half installed"),
        ("has_no_server", "passing", "license"),
        ("leaves", "error", "no license"), ("no_such_module", "error", "No module named"),
    ],
)  # fmt: skip
def test_node_that_may_not_serve_names_the_import_and_ends(
    fork_node: Callable[..., Any], name: str, verdict: str, said: str
) -> None:
    node = fork_node("tail_two", name)
    assert node.importing == ["tail_two", name]
    assert (node.first["t"], node.first["verdict"], node.first["culprit"]) == ("ERR", verdict, name)
    assert said in node.first["text"]
    assert node.close() == 3


def test_import_that_forks_makes_no_second_zygote(base: Any, fork_node: Callable[..., Any]) -> None:
    node = fork_node("forks_on")
    # The process that went on has ended; what is left of it is a child that nobody waited for.
    assert (node.first["t"], node.first["verdict"]) == ("ERR", "children")
    assert node.close() == 3
    assert os.waitpid(int((base.folder / "forks_on.py.pid").read_text()), 0)[1] == 0


def test_node_is_not_built_on_another_environment(base: Any, tmp_path: Path, start_zygote: Callable[..., Any]) -> None:
    (tmp_path / "tail_new.py").write_text("")
    (tmp_path / "a-1.dist-info").mkdir()
    zygote = start_zygote("", PYTHONPATH=os.pathsep.join([str(tmp_path), REPOSITORY]))
    (tmp_path / "b-1.dist-info").mkdir()
    node = zygote.fork_node("tail_new")
    assert node.first["t"] == "ERR" and "ENVIRONMENT_CHANGED" in node.first["text"]
    assert node.importing == [] and node.first["culprit"] == ""
    assert node.close() == 3


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "kernel"}, {"imports": ["os; evil"]}, {"imports": "json"}, {"imports": ["a..b"]}, {"imports": [1]}],
)
def test_fork_that_is_malformed_is_refused(base: Any, wrong: dict[str, Any]) -> None:
    base.control.send({"t": "FORK", "id": 5, "v": 1, "title": "x", **wrong}, [0, 0, 1, 2])
    reply = base.control.recv(60)[0]
    assert (reply["t"], reply["id"]) == ("ERR", 5) and "FIELD_MALFORMED" in reply["text"]
