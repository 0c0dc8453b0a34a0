"""A host's daemon is killed while a cell runs, and its supervisor starts another: the cell goes on (design §5)."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from conftest import Notebook, running_cluster

from looseleaf.local.cluster import LocalCluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 120.0
DAEMON = "daemon-h0"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A host with a second GPU for another notebook. Zygotes with few imports: the daemon is back sooner."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOSELEAF_DAEMON_BASE_IMPORTS", '["numpy"]')
        running = running_cluster(tmp_path_factory.mktemp("cluster"), gpus=2)
    with running as found:
        yield found


class Rig:
    """Kills the daemon once the cell has said `marker`, and lets the cell go on when `before_go` has returned."""

    def __init__(self, cluster: LocalCluster, notebook: Any, folder: Path) -> None:
        self.cluster = cluster
        self.notebook = notebook
        self.folder = folder
        self.notebook.ok(f"import os, pathlib, sys, time\nsys.path.insert(0, {str(folder)!r})")
        self.notebook.ok("import torch\nkept = [1]\nw = torch.ones(4)")
        # What the cell starts from must have left the arena: it goes with the daemon.
        self.notebook.ok("%%gpu\nw = w.cuda()\npid = os.getpid()")
        assert wait_for(lambda: all(version["durable"] for version in self._versions()), LIMIT_S)

    def _versions(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = eval(self.notebook.ok(
            "from looseleaf.protocol.state_io import LinkStateIO\n"
            "[{'durable': v.durable} for v in LinkStateIO("
            "get_ipython().kernel.looseleaf.connect()).versions(1)]"
        ).value)  # fmt: skip
        return found

    def run(self, body: str, do: Callable[[int], None], marker: str = "running", **kwargs: Any) -> Any:
        """Runs a GPU cell of `body`, which follows the line that says its pid; at it `do(pid)` is called, once."""
        done: list[int] = []

        def look(outcome: Any) -> None:
            if marker in outcome.text and not done:
                done.append(int(outcome.text.split("pid=")[1].split()[0]))
                do(done[0])

        head = "%%gpu\nprint(f'pid={os.getpid()} running', flush=True)\nw += 1\nkept.append(2)\n"
        return self.notebook.finish(self.notebook.start(head + body), on_output=look, timeout_s=LIMIT_S, **kwargs)

    def kill(self) -> int:
        """The daemon's pid, which has ended."""
        pid = self.cluster.pid(DAEMON)
        self.cluster.kill(DAEMON)
        return pid

    def restart(self) -> None:
        """Kills the daemon and waits for the next one."""
        self.cluster.wait_serving(DAEMON, LIMIT_S, other_than=self.kill())

    def file(self, name: str) -> Path:
        return self.folder / name

    def wait(self, name: str) -> str:
        """Lines of a cell that wait until the test has made the file."""
        return f"while not pathlib.Path({str(self.file(name))!r}).exists():\n    time.sleep(0.01)\n"

    def check_state(self, kept: str = "[1, 2]", total: str = "8.0") -> None:
        """What the cell has changed is here, and the next one sees it."""
        assert self.notebook.ok("kept").value == kept
        assert self.notebook.ok("%%gpu\nw.sum().item()").value == total


@pytest.fixture
def rig(cluster: LocalCluster, shared: Any, tmp_path: Path) -> Rig:
    return Rig(cluster, shared, tmp_path)


def test_cell_that_prints_goes_on_and_not_a_line_is_lost_or_doubled(rig: Rig) -> None:
    def restart(_pid: int) -> None:
        rig.restart()
        rig.file("go").touch()

    # It prints all the while that no daemon is there.
    body = (
        "n = 0\n"
        f"while n < 200 or not pathlib.Path({str(rig.file('go'))!r}).exists():\n"
        "    print('line', n)\n    n += 1\n    time.sleep(0.005)\n"
        "print('last', n)\n"
    )
    outcome = rig.run(body, restart)
    assert outcome.status == "ok", outcome
    # Without what the kernel says of a daemon that is away for long.
    lines = [line for line in outcome.text.splitlines()[1:] if not line.startswith("LooseLeaf: ")]
    count = int(lines[-1].split()[1])
    assert lines[:-1] == [f"line {number}" for number in range(count)]
    rig.check_state()


def test_cell_that_ends_while_no_daemon_is_there_is_saved_by_the_next(rig: Rig) -> None:
    ended: list[bool] = []

    def restart(_pid: int) -> None:
        before = rig.kill()
        rig.file("go").touch()
        ended.append(wait_for(rig.file("ended").exists, LIMIT_S))
        rig.cluster.wait_serving(DAEMON, LIMIT_S, other_than=before)

    outcome = rig.run(rig.wait("go") + f"pathlib.Path({str(rig.file('ended'))!r}).touch()\n6 * 7", restart)
    assert ended == [True] and outcome.status == "ok" and outcome.value == "42", outcome
    rig.check_state()


def test_host_serves_other_notebooks_while_a_worker_is_silent_and_its_cell_goes_on_after(
    rig: Rig, tmp_path: Path
) -> None:
    others: list[Any] = []
    # Up before the worker is awaited, which is for 30 s, and its cell imports nothing: both may take as long.
    other = Notebook(rig.cluster.kernel_socket("h0"), tmp_path)
    other.ok("three = 3")

    def restart(pid: int) -> None:
        before = rig.kill()
        os.kill(pid, signal.SIGSTOP)
        try:
            rig.cluster.wait_serving(DAEMON, LIMIT_S, other_than=before)
            cell = other.start("%%gpu\n2 * three")
            others.append(other.finish(cell, LIMIT_S))
        finally:
            os.kill(pid, signal.SIGCONT)
        rig.file("go").touch()

    try:
        outcome = rig.run(rig.wait("go") + "6 * 7", restart)
    finally:
        other.close()
    assert [other.value for other in others] == ["6"], others
    assert outcome.status == "ok" and outcome.value == "42", outcome
    rig.check_state()


def test_cell_is_interrupted_and_asks_the_person_under_the_next_daemon(rig: Rig) -> None:
    def restart(pid: int) -> None:
        rig.restart()
        rig.file("go").touch()
        assert os.getpgid(pid)

    asked = rig.run(rig.wait("go") + "input('name? ')", restart, answer="Ada")
    assert asked.status == "ok" and asked.value == "'Ada'", asked

    def restart_and_stop(_pid: int) -> None:
        rig.restart()
        rig.notebook.manager.interrupt_kernel()

    stopped = rig.run("time.sleep(1000)", restart_and_stop)
    assert stopped.ename == "KeyboardInterrupt" and stopped.status == "error", stopped
    rig.check_state("[1, 2, 2]", "12.0")


def test_cell_that_was_only_made_ready_is_run_once_by_itself(rig: Rig) -> None:
    rig.file("held_module.py").write_text(f"""
import os, pathlib, time
made_ready = pathlib.Path({str(rig.file('made_ready'))!r})
made_ready.touch()
{rig.wait('go')}""")
    message = rig.notebook.start("%%gpu\nimport held_module\nprint('started')\nw += 1\nkept.append(2)")
    assert wait_for(rig.file("made_ready").exists, LIMIT_S)
    rig.restart()
    rig.file("go").touch()
    outcome = rig.notebook.finish(message, timeout_s=LIMIT_S)
    assert outcome.status == "ok" and outcome.text.count("started") == 1, outcome
    rig.check_state()


def test_worker_that_dies_while_no_daemon_is_there_leaves_the_last_version(rig: Rig) -> None:
    def kill_both(pid: int) -> None:
        before = rig.kill()
        os.kill(pid, signal.SIGKILL)
        rig.cluster.wait_serving(DAEMON, LIMIT_S, other_than=before)

    outcome = rig.run("time.sleep(1000)", kill_both)
    assert outcome.ename == "CELL_LOST" and "run the cell again" in outcome.error, outcome
    rig.check_state("[1]", "4.0")
