"""What comes back from cells late, and what goes to them: the messages of an ordinary kernel, in the same order.

Each scenario is played on an ordinary IPython kernel and on ours, with its cells on a worker, and all that the front
end hears is compared.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

from looseleaf.batch.client import OneSpec
from looseleaf.kernel.install import kernel_spec
from looseleaf.local.cluster import LocalCluster

sys.path.insert(0, str(Path(__file__).parent))
from reverse_play import Play

ENV = {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}

SETUP = """
import asyncio, pathlib, threading, time
import ipywidgets as w
def gate(name):
    while not (GATES / name).exists(): time.sleep(0.005)
async def agate(name):
    while not (GATES / name).exists(): await asyncio.sleep(0.005)
"""


class Kernel:
    """A kernel process, played on once or more."""

    def __init__(self, spec: dict[str, Any] | KernelSpec, folder: Path) -> None:
        self._sockets = tempfile.TemporaryDirectory(prefix="ll-")
        self.folder = folder
        self.manager = KernelManager(
            kernel_name="k", kernel_spec_manager=OneSpec(spec), transport="ipc",
            connection_file=f"{self._sockets.name}/kernel.json",
        )  # fmt: skip
        # With pytest's variable an ordinary kernel does not show what is written to its file descriptors.
        env = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
        self.manager.start_kernel(cwd=str(folder), env=env, extra_arguments=["--HistoryManager.hist_file=:memory:"])
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    def play(self, scenario: Callable[[Play], None]) -> Play:
        gates = Path(tempfile.mkdtemp(dir=self.folder))
        play = Play(self.client, gates)
        play.run("setup", f"import pathlib\nGATES = pathlib.Path({str(gates)!r})\n{SETUP}")
        play.heard.clear()
        play.count = play.replies["setup"]["execution_count"]
        scenario(play)
        return play

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        self.manager.cleanup_resources()
        self._sockets.cleanup()


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    spec = kernel_spec(env=ENV)
    spec["argv"] = [spec["argv"][0], "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    kernel = Kernel(spec, tmp_path_factory.mktemp("ordinary"))
    yield kernel
    kernel.close()


@pytest.fixture(scope="module")
def ours(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    kernel = Kernel(kernel_spec(endpoint=str(cluster.kernel_socket("h0")), env=ENV), tmp_path_factory.mktemp("ours"))
    yield kernel
    kernel.close()


SCENARIOS: dict[str, Callable[[Play], None]] = {}


def scenario(function: Callable[[Play], None]) -> Callable[[Play], None]:
    SCENARIOS[function.__name__] = function
    return function


@scenario
def thread_prints_after_its_cell(play: Play) -> None:
    play.run("first", "threading.Thread(target=lambda: (gate('g'), print('late'))).start()\nprint('now')", gpu=True)
    play.open_gate("g")
    play.text("first", "late\n")


@scenario
def thread_prints_after_another_cell(play: Play) -> None:
    play.run("first", "t = threading.Thread(target=lambda: (gate('g'), print('late')))\nt.start()", gpu=True)
    play.run("second", "print('second')")
    play.open_gate("g")
    play.text("second", "late\n")


@scenario
def daemon_thread_prints_while_the_next_cell_runs(play: Play) -> None:
    play.run("first", "def loud():\n    gate('g'); print('late'); (GATES / 'h').touch()\n"
                      "threading.Thread(target=loud, daemon=True).start()", gpu=True)  # fmt: skip
    play.cell("second", "print('second', flush=True); gate('h'); time.sleep(0.3)")
    play.text("second", "second\n")
    play.open_gate("g")
    play.ended("second")
    play.text("second", "late\n")


@scenario
def timer_prints_after_its_cell(play: Play) -> None:
    play.run("first", "threading.Timer(0.2, print, ['ticked']).start()", gpu=True)
    play.text("first", "ticked\n")


@scenario
def task_prints_under_its_own_cell(play: Play) -> None:
    play.run("first", "async def later():\n    await agate('g'); print('late')\n"
                      "task = asyncio.get_running_loop().create_task(later())", gpu=True)  # fmt: skip
    play.run("second", "print('second')")
    play.open_gate("g")
    play.text("first", "late\n")


@scenario
def thread_displays_after_its_cell(play: Play) -> None:
    play.run("first", "handle = display('a', display_id='d')\ndef late(): gate('g'); handle.update('b'); print('end')\n"
                      "threading.Thread(target=late).start()", gpu=True)  # fmt: skip
    play.open_gate("g")
    play.text("first", "end\n")


@scenario
def subprocess_prints_after_its_cell(play: Play) -> None:
    play.run("first", "import subprocess, sys\n"
                      "child = subprocess.Popen([sys.executable, '-c', 'import sys, time, pathlib\\n"
                      "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.01)\\nprint(\"child\")', "
                      "str(GATES / 'g')])", gpu=True)  # fmt: skip
    play.open_gate("g")
    play.text("first", "child\n")


@scenario
def slider_moved_after_its_cell(play: Play) -> None:
    play.run("first", "seen = []\ns = w.IntSlider(3)\ndef moved(c): seen.append(c['new']); print('moved', c['new'])\n"
                      "s.observe(moved, 'value')\ns", gpu=True)  # fmt: skip
    play.update("move", "IntSliderModel-2", value=7)
    play.text("move", "moved 7\n")
    play.run("second", "print(s.value, seen)")
    play.run("third", "s.value = 9\nprint(seen)", gpu=True)
    play.run("fourth", "print(s.value, seen)")


@scenario
def slider_moved_while_its_cell_runs(play: Play) -> None:
    play.cell("first", "s = w.IntSlider(3)\ns.observe(lambda c: print('moved', c['new']), 'value')\ndisplay(s)\n"
                       "print('waits', flush=True)\ngate('g')\nprint('end', s.value)", gpu=True)  # fmt: skip
    play.text("first", "waits\n")
    play.update("move", "IntSliderModel-2", value=7)
    play.open_gate("g")
    play.ended("first")
    play.text("move", "moved 7\n")
    play.run("second", "print(s.value)")


@scenario
def slider_moved_while_its_cell_awaits(play: Play) -> None:
    play.cell("first", "s = w.IntSlider(3)\ngot = asyncio.get_running_loop().create_future()\n"
                       "s.observe(lambda c: (print('moved'), got.set_result(c['new'])), 'value')\ndisplay(s)\n"
                       "print('waits', flush=True)\nprint('got', await got)\ndel got", gpu=True)  # fmt: skip
    play.text("first", "waits\n")
    play.update("move", "IntSliderModel-2", value=7)
    play.ended("first")


@scenario
def callback_of_a_cpu_cell_reads_what_a_gpu_cell_made(play: Play) -> None:
    play.run("first", "b = w.Button()\ndef clicked(_): print('found', helper(), len(found))\nb.on_click(clicked)\nb")
    play.run("second", "found = list(range(1000))\ndef helper(): return found[-1]", gpu=True)
    play.comm("click", "ButtonModel-2", {"method": "custom", "content": {"event": "click"}})
    play.text("click", "found 999 1000\n")


@scenario
def callback_of_a_cpu_cell_waits_for_a_gpu_cell(play: Play) -> None:
    play.run("first", "total = [0]\nb = w.Button()\nb.on_click(lambda _: (total.append(len(total)), print(total)))\nb")
    play.cell("second", "print('waits', flush=True)\ngate('g')\ntotal.append(10)", gpu=True)
    play.text("second", "waits\n")
    play.comm("click", "ButtonModel-2", {"method": "custom", "content": {"event": "click"}})
    play.open_gate("g")
    play.ended("second")
    play.text("click", "[0, 10, 2]\n")
    play.run("third", "print(total)")


@scenario
def bar_of_a_cpu_cell_moved_by_a_gpu_cell(play: Play) -> None:
    play.run("first", "bar = w.IntProgress(0, max=3)\nbar")
    play.run("second", "for i in range(3): bar.value += 1\nprint(bar.value)", gpu=True)
    play.run("third", "print(bar.value)\nbar.value = 0")


@scenario
def page_that_is_reloaded_asks_for_state(play: Play) -> None:
    play.run("first", "image = w.Image(value=b'\\x89PNG')\nlabel = w.Label('a')\nlabel.value = 'b'", gpu=True)
    for number, comm in enumerate(list(play.comms.values())):
        play.comm(f"ask{number}", comm, {"method": "request_state"})
        play.until(lambda number=number: any(parent == f"ask{number}" for _, parent, _ in play.heard))


@scenario
def progress_bar_of_tqdm(play: Play) -> None:
    play.run("first", "from tqdm.notebook import tqdm\nfor i in tqdm(range(3), mininterval=0): pass\ndel i", gpu=True)


@scenario
def questions(play: Play) -> None:
    play.run("first", "print('hello', input('name? '))", gpu=True, answers=("Ada",))
    play.run("second", "import getpass\nprint(len(getpass.getpass('key? ')))", gpu=True, answers=("four",))
    play.run("third", "import pdb\ndef f():\n    inner = 42\n    pdb.set_trace()\n    return inner\nf();", gpu=True,
             answers=("p inner", "c"))  # fmt: skip


@scenario
def question_without_a_front_end_that_answers(play: Play) -> None:
    # The frames below the person's line are each kernel's own.
    play.run("first", "try: input()\nexcept Exception as error: print(type(error).__name__, error)", gpu=True)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_front_end_hears_the_same(ordinary: Kernel, ours: Kernel, name: str) -> None:
    wanted, got = ordinary.play(SCENARIOS[name]), ours.play(SCENARIOS[name])
    assert got.heard == wanted.heard
    for cell, reply in wanted.replies.items():
        assert (got.replies[cell]["status"], got.replies[cell].get("ename")) == (reply["status"], reply.get("ename"))
