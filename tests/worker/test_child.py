"""What a worker is right after the fork, and how it ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Worker = Any
MakeWorker = Callable[..., Any]


def value_of(worker: Worker, expression: str, setup: str = "") -> str:
    """The text of an expression's value."""
    reply = worker.run(f"{setup}\nprint({expression}, end='')")
    assert reply["status"] == "ok", reply
    return worker.text()


def status_field(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{name}:"))


def test_worker_hello_tells_role_pid_and_imports(worker: Worker) -> None:
    hello = dict(worker.hello)
    assert len(hello.pop("environment_id")) == 32
    assert hello == {
        "t": "hello", "v": 1, "role": "worker", "pid": worker.pid,
        "zygote_imports": ["numpy", "torch", "matplotlib.pyplot", "pandas"],
    }  # fmt: skip


def test_worker_is_the_daemons_child_in_a_session_of_its_own(worker: Worker) -> None:
    assert status_field(worker.pid, "PPid") == str(os.getpid())
    assert os.getsid(worker.pid) == worker.pid


def test_worker_has_its_title_and_no_new_privileges(zygote: Any, make_worker: Callable[..., Worker]) -> None:
    worker = make_worker()
    assert Path(f"/proc/{worker.pid}/cmdline").read_bytes().split(b"\0")[0] == b"ll-worker:test"
    assert status_field(worker.pid, "NoNewPrivs") == "1"


def test_worker_signals_are_as_in_a_fresh_process(worker: Worker) -> None:
    assert int(status_field(worker.pid, "SigBlk"), 16) == 0
    ignored = int(status_field(worker.pid, "SigIgn"), 16)
    # Those that libc keeps for itself come from whatever started the tests; no program can set them.
    ours = sum(1 << (number - 1) for number in signal.valid_signals())
    assert ignored & ours == 1 << (signal.SIGPIPE - 1) | 1 << (signal.SIGXFSZ - 1)
    assert value_of(worker, "signal.set_wakeup_fd(-1)", "import signal") == "-1"


def test_worker_inherits_no_fd_of_the_zygote(zygote: Any, worker: Worker) -> None:
    def sockets(pid: int) -> set[str]:
        targets = {os.readlink(f"/proc/{pid}/fd/{name}") for name in os.listdir(f"/proc/{pid}/fd")}
        # The tests' own stderr, which both have, may be a socket too.
        return {target for target in targets if target.startswith("socket:")} - {os.readlink("/proc/self/fd/2")}

    assert not sockets(worker.pid) & sockets(zygote.process.pid)


def test_worker_collector_is_on_and_the_zygotes_objects_stay_frozen(worker: Worker) -> None:
    assert value_of(worker, "gc.isenabled(), gc.get_freeze_count() > 100_000", "import gc") == "True True"


def test_worker_atexit_holds_nothing_of_the_zygote(worker: Worker) -> None:
    assert value_of(worker, "atexit._ncallbacks()", "import atexit") == "0"


def test_worker_environment_is_the_daemons(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(MY_VARIABLE="mine")
    expression = "os.environ['MY_VARIABLE'], [n for n in os.environ if n.endswith('_NUM_THREADS')]"
    text = value_of(worker, expression, "import os")
    assert text == "mine []"


def test_worker_computes_with_the_threads_it_was_given(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(LOOSELEAF_THREADS="2")
    assert value_of(worker, "torch.get_num_threads()", "import torch") == "2"
    assert value_of(make_worker(LOOSELEAF_THREADS="1"), "torch.get_num_threads()", "import torch") == "1"


def test_worker_computes_after_the_fork_without_hanging(make_worker: Callable[..., Worker]) -> None:
    worker = make_worker(LOOSELEAF_THREADS="2")
    source = """
import torch, numpy
a = torch.rand(300, 300, requires_grad=True)
(a @ a).sum().backward()
numpy.ones((300, 300)) @ numpy.ones((300, 300))
print('done')
"""
    assert worker.run(source)["status"] == "ok"
    assert worker.text() == "done\n"


def test_workers_of_one_zygote_draw_different_numbers(make_worker: Callable[..., Worker]) -> None:
    setup = "import random, numpy, torch"
    expression = "random.random(), numpy.random.rand(), torch.rand(1).item(), torch.initial_seed()"
    draws = [value_of(make_worker(), expression, setup).split() for _ in range(2)]
    assert all(first != second for first, second in zip(*draws, strict=True))


def test_workers_of_one_zygote_hash_alike(make_worker: Callable[..., Worker]) -> None:
    assert value_of(make_worker(), "hash('x')") == value_of(make_worker(), "hash('x')")


def test_worker_main_module_is_the_persons_namespace(worker: Worker) -> None:
    setup = "import pickle, sys\nclass Thing: pass\ndef double(x): return 2 * x"
    again = "pickle.loads(pickle.dumps({}))".format
    expression = f"{again('double')}(4), type({again('Thing()')}) is Thing, double.__module__"
    assert value_of(worker, expression, setup) == "8 True __main__"


def test_worker_does_not_show_the_zygotes_output_again(
    start_zygote: Callable[..., Any], make_worker: MakeWorker, tmp_path: Path
) -> None:
    source = "import ctypes, sys\nsys.__stdout__.write('noise')\nctypes.CDLL(None).printf(b'c noise')\nprint('more')"
    (tmp_path / "prints_at_import.py").write_text(source)
    root = str(Path(__file__).resolve().parents[2])
    log = tmp_path / "log"
    with log.open("wb") as stdout:
        zygote = start_zygote("prints_at_import", stdout=stdout, PYTHONPATH=f"{tmp_path}{os.pathsep}{root}")
    assert zygote.first["failed"] == []
    worker = make_worker(zygote=zygote)
    assert value_of(worker, "'fine'") == "fine"
    assert worker.end() == 0
    assert log.read_text().count("noise") == 2


def test_worker_daemon_gone_exits_zero(worker: Worker) -> None:
    assert worker.end() == 0


def test_worker_daemon_gone_while_a_cell_runs_exits_zero(worker: Worker) -> None:
    worker.begin("while True: pass")
    worker.event("started")
    assert worker.end() == 0


def test_worker_daemon_gone_takes_the_processes_of_its_cells_with_it(worker: Worker) -> None:
    left = int(value_of(worker, "left.pid", "import subprocess\nleft = subprocess.Popen(['sleep', '1000'])"))
    assert worker.end() == 0
    # An orphan is this subreaper's child.
    assert os.waitstatus_to_exitcode(os.waitpid(left, 0)[1]) == -signal.SIGKILL


def test_worker_shutdown_replies_and_exits_zero(worker: Worker) -> None:
    assert worker.link.request("shutdown", {}, timeout_s=60)[0] == {}
    worker.ended.result(60)
    assert worker.end() == 0


def test_worker_shutdown_while_a_cell_runs_exits_zero(worker: Worker) -> None:
    worker.begin("import time\ntime.sleep(1000)")
    worker.event("started")
    assert worker.link.request("shutdown", {}, timeout_s=60)[0] == {}
    assert worker.end() == 0


@pytest.mark.parametrize(
    ("source", "code"),
    [("import os; os._exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9),
     ("import ctypes; ctypes.string_at(0)", -11), ("import os; os.abort()", -6)],
)
def test_worker_that_ends_itself_is_seen_with_its_status(worker: Worker, source: str, code: int) -> None:
    outcome = worker.begin(f"print('before', flush=True)\n{source}")
    worker.text_until("before\n")
    assert worker.ended.result(60).reason == "PEER_CLOSED"
    with pytest.raises(Exception, match="PEER_CLOSED"):
        outcome.result(60)
    assert worker.end() == code


def test_worker_killed_while_idle_is_seen(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGKILL)
    assert worker.ended.result(60).reason == "PEER_CLOSED"
    assert worker.end() == -9


def test_worker_nonsense_from_the_daemon_ends_it(worker: Worker) -> None:
    worker.link.channel.send_frame(b"\x01\x00\x00\x00\xc1")
    worker.ended.result(60)
    assert worker.end() == 0


def test_workers_that_come_and_go_leave_nothing(zygote: Any, make_worker: MakeWorker) -> None:
    def traces() -> tuple[set[str], int, int]:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        return set(children), len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{zygote.process.pid}/fd"))

    before = traces()
    for _ in range(3):
        worker = make_worker()
        worker.run("import numpy; x = numpy.ones(1_000_000)")
        assert worker.end() == 0
    assert traces() == before
