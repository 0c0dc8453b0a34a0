from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Zygote = Any

# A zygote forbids others to look into it (worker/isolation.py).
looks_inside = pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into a zygote")


def ask(zygote: Zygote, message: dict[str, Any], fds: list[int] | None = None) -> dict[str, Any]:
    zygote.control.send(message, fds or [])
    return zygote.control.recv(60)[0]


def test_zygote_ready_tells_imports_and_one_thread(zygote: Zygote) -> None:
    assert [item["name"] for item in zygote.first["imports"]] == ["numpy", "torch", "matplotlib.pyplot", "pandas"]
    assert all(item["seconds"] > 0 for item in zygote.first["imports"])
    assert zygote.first["failed"] == []
    assert zygote.first["threads"] == 1
    assert zygote.first["pid"] == zygote.process.pid


def test_zygote_ping_after_forks_still_has_one_thread(zygote: Zygote, make_worker: Callable[..., Any]) -> None:
    make_worker()
    pong = ask(zygote, {"t": "PING"})
    assert (pong["t"], pong["threads"], pong["pid"]) == ("PONG", 1, zygote.process.pid)
    assert "torch" in pong["imports"]


@looks_inside
def test_zygote_holds_no_fd_but_its_own_four(zygote: Zygote, make_worker: Callable[..., Any]) -> None:
    make_worker()
    fds = {int(name) for name in os.listdir(f"/proc/{zygote.process.pid}/fd")}
    assert len(fds) == 4
    assert {0, 1, 2} < fds


def test_zygote_leaves_no_children_behind(zygote: Zygote, make_worker: Callable[..., Any]) -> None:
    make_worker()
    pid = zygote.process.pid
    assert Path(f"/proc/{pid}/task/{pid}/children").read_text().split() == []


@looks_inside
def test_zygote_loads_no_grpc(bare_zygote: Zygote) -> None:
    maps = Path(f"/proc/{bare_zygote.process.pid}/maps").read_text()
    assert "looseleaf" in maps
    assert "grpc" not in maps


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"t": "DANCE", "id": 5}, "UNKNOWN_MESSAGE"),
        ({"t": "FORK", "id": 5, "v": 1, "title": "x"}, "FDS_MISSING"),
        ({"t": "FORK", "id": 5, "v": 2, "title": "x"}, "PROTOCOL_VERSION"),
        ({"t": "FORK", "id": 5}, "FIELD_MALFORMED"),
    ],
)
def test_zygote_bad_request_is_refused_and_the_next_is_served(
    bare_zygote: Zygote, message: dict[str, Any], text: str
) -> None:
    reply = ask(bare_zygote, message)
    assert (reply["t"], reply["id"]) == ("ERR", 5)
    assert text in reply["text"]
    assert ask(bare_zygote, {"t": "PING"})["t"] == "PONG"


def test_zygote_fork_with_an_env_that_is_no_text_is_refused(bare_zygote: Zygote) -> None:
    fds = [0, 0, 1, 2]
    reply = ask(bare_zygote, {"t": "FORK", "id": 5, "v": 1, "title": "x", "env": {"A": 1}}, fds)
    assert "FIELD_MALFORMED" in reply["text"]


@pytest.mark.parametrize("data", [b"\xc1", b"\x93\x01\x02\x03", b"\x80"])
def test_zygote_malformed_datagram_is_refused_and_the_next_is_served(bare_zygote: Zygote, data: bytes) -> None:
    with socket.socket(fileno=os.dup(bare_zygote.control.fileno())) as sock:
        sock.send(data)
    assert "MESSAGE_MALFORMED" in bare_zygote.control.recv(60)[0]["text"]
    assert ask(bare_zygote, {"t": "PING"})["t"] == "PONG"


def test_zygote_ignores_interrupts(bare_zygote: Zygote) -> None:
    os.kill(bare_zygote.process.pid, signal.SIGINT)
    assert ask(bare_zygote, {"t": "PING"})["t"] == "PONG"


def test_zygote_control_closed_exits_cleanly(start_zygote: Callable[..., Zygote]) -> None:
    assert start_zygote().close() == 0


def test_zygote_package_that_fails_is_reported_and_the_others_are_there(
    start_zygote: Callable[..., Zygote], tmp_path: Path
) -> None:
    (tmp_path / "broken_package.py").write_text("raise RuntimeError('half installed')")
    (tmp_path / "leaving_package.py").write_text("import sys; sys.exit('no license')")
    zygote = start_zygote("no_such_package,broken_package,leaving_package,json", PYTHONPATH=_with(tmp_path))
    assert [item["name"] for item in zygote.first["imports"]] == ["json"]
    failed = {item["name"]: item["error"] for item in zygote.first["failed"]}
    assert failed["broken_package"] == "RuntimeError: half installed"
    assert failed["leaving_package"] == "SystemExit: no license"
    assert "No module named" in failed["no_such_package"]


def test_zygote_package_that_starts_a_thread_is_fatal_and_named(
    start_zygote: Callable[..., Zygote], tmp_path: Path
) -> None:
    (tmp_path / "starts_thread.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='pest').start()"
    )
    zygote = start_zygote("json,starts_thread", PYTHONPATH=_with(tmp_path))
    assert zygote.first["t"] == "ERR"
    assert "starts_thread" in zygote.first["text"]
    assert "pest" in zygote.first["text"]
    assert zygote.process.wait(60) == 3


def test_zygote_package_that_spoils_it_when_it_is_used_is_fatal_and_the_last_one_named(
    start_zygote: Callable[..., Zygote], tmp_path: Path
) -> None:
    (tmp_path / "starts_late.py").write_text(
        "import random, signal, threading\nread = random.getstate\ndef getstate():\n"
        " name = 'in time' if signal.getitimer(signal.ITIMER_REAL)[0] else 'endless'\n"
        " threading.Thread(target=threading.Event().wait, daemon=True, name=name).start()\n return read()\n"
        "random.getstate = getstate"
    )
    zygote = start_zygote("json,starts_late", PYTHONPATH=_with(tmp_path))
    assert (zygote.first["t"], zygote.first["verdict"], zygote.first["culprit"]) == ("ERR", "threads", "starts_late")
    assert "the rehearsal after importing starts_late" in zygote.first["text"]
    # A use that never ends would be ended, as an import would.
    assert "in time" in zygote.first["text"]
    assert zygote.process.wait(60) == 3


def test_zygote_package_that_loads_grpc_is_fatal_and_named(start_zygote: Callable[..., Zygote], tmp_path: Path) -> None:
    (tmp_path / "grpc.py").write_text("")
    (tmp_path / "speaks_grpc.py").write_text("import grpc")
    zygote = start_zygote("speaks_grpc", PYTHONPATH=_with(tmp_path))
    assert "FORBIDDEN_MODULE" in zygote.first["text"]
    assert "speaks_grpc" in zygote.first["text"]
    assert zygote.process.wait(60) == 3


def test_zygote_without_thread_variables_refuses_to_serve(start_zygote: Callable[..., Zygote]) -> None:
    zygote = start_zygote("", OMP_NUM_THREADS="2")
    assert "OMP_NUM_THREADS" in zygote.first["text"]
    assert zygote.process.wait(60) == 3


def test_zygote_answers_requests_in_order(bare_zygote: Zygote) -> None:
    for number in range(20):
        bare_zygote.control.send({"t": "DANCE", "id": number})
    assert [bare_zygote.control.recv(60)[0]["id"] for _ in range(20)] == list(range(20))


def _with(path: Path) -> str:
    return os.pathsep.join([str(path), str(Path(__file__).resolve().parents[2])])
