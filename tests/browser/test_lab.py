"""A person's work in JupyterLab (the study's headless test): what is asserted is what the page shows."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from browser_rig import TEST_TIMEOUT_S, WINDOW, JupyterServer, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(TEST_TIMEOUT_S)]
PROGRAM = "lab"

WEIGHTS = "import torch\nw = torch.ones(8).cuda()"


def until(path: Path) -> str:
    """A GPU cell that runs until this file of the notebooks' folder is there."""
    return f"import os, time\nw += 1\nwhile not os.path.exists({path.name!r}):\n    time.sleep(0.02)"


def test_cell_is_prepared_while_it_is_typed_and_the_kernel_stays_busy_while_it_runs(
    open_notebook: Callable[..., Page], server: JupyterServer
) -> None:
    go = server.root / "go"
    page = open_notebook("work", ["", until(go), "", ""])
    page.type(0, WEIGHTS)
    page.wait_state("ready")
    page.shot("lab-ready")
    page.run(0)
    page.wait_ended(0, 1)
    page.wait_until(lambda: "saved" in page.footer(0), "the times of the first cell")

    page.run(1)
    page.wait_state("running")
    page.shot("lab-running")
    page.type(2, "w.sum()")
    page.wait_answered("w.sum()")
    assert server.kernel_state("work.ipynb") == "busy"
    assert page.state == "running"
    go.touch()
    page.wait_ended(1, 2)
    page.run(2)
    assert "16" in page.wait_output(2, "tensor")
    page.wait_ended(2, 3)
    page.wait_state("released", "ready")
    page.shot("lab-released")
    states = page.states()
    assert {"preparing", "ready", "running", "saving", "released"} <= set(states), states
    assert states.index("ready") < states.index("running") < states.index("saving")
    page.wait_until(lambda: server.kernel_state("work.ipynb") == "idle", "an idle kernel")


def test_cell_that_waits_for_a_gpu_tells_its_place_and_why(
    open_notebook: Callable[..., Page], server: JupyterServer
) -> None:
    go = server.root / "go-first"
    first = open_notebook("first", [WEIGHTS + "\n" + until(go)])
    second = open_notebook("second", ["%%gpu\nprint('mine')"])
    first.run(0)
    first.wait_state("running")
    second.run(0)
    second.wait_until(lambda: "queued #1" in second.label, "the place in the queue")
    second.wait_until(lambda: "queued" in second.footer(0), "the place under the cell")
    second.shot("lab-queued")
    go.touch()
    second.wait_output(0, "mine")
    second.wait_until(lambda: "saved" in second.footer(0), "the times of the cell that waited")
    first.wait_ended(0, 1)


def test_widgets_figures_questions_and_interrupts_of_gpu_cells_are_shown(open_notebook: Callable[..., Page]) -> None:
    bar = "from tqdm.notebook import tqdm\nfor i in tqdm(range(5)):\n    w += i"
    figure = "import matplotlib.pyplot as plt\nplt.plot((w * 2).cpu()); plt.show()"
    question = "who = input('who? ')\nprint('hello', who, (w * 0).sum())"
    page = open_notebook("outputs", [WEIGHTS, bar, figure, question, "w += 1\nwhile True: pass"])
    page.run(0)
    page.wait_ended(0, 1)
    page.run(1)
    page.wait_ended(1, 2)
    page.wait_output(1, "5/5")
    page.run(2)
    page.cell(2).locator(".jp-OutputArea-output img").wait_for()
    page.wait_ended(2, 3)
    page.shot("lab-outputs", WINDOW)
    page.run(3)
    page.answer(3, "Ada")
    page.wait_output(3, "hello Ada")
    page.wait_ended(3, 4)
    page.run(4)
    page.wait_state("running")
    page.command("ii")
    page.wait_output(4, "KeyboardInterrupt")
    page.wait_ended(4, 5)


def test_restarted_kernel_reloaded_page_and_lost_connection_go_on(
    open_notebook: Callable[..., Page], server: JupyterServer
) -> None:
    go = server.root / "go-again"
    page = open_notebook("again", [WEIGHTS, until(go), "'w' in globals()", ""])
    page.run(0)
    page.wait_ended(0, 1)
    page.run(1)
    page.wait_state("running")
    page.page.keyboard.press("Control+s")
    page.open()
    # The page that was loaded again learns what goes on.
    page.wait_state("running")
    go.touch()
    # The cell that is active in the page may be prepared at once.
    page.wait_state("released", "ready")
    page.run(2)
    page.wait_output(2, "True")

    page.command("00")
    page.page.locator(".jp-Dialog .jp-mod-accept").click()
    page.type(3, WEIGHTS)
    page.wait_state("ready")
    page.run(2)
    page.wait_output(2, "False")
    page.wait_ended(2, 1)

    page.type(2, " # more")
    text = "'w' in globals() # more"
    page.wait_answered(text)
    before = len(page.sent(text))
    page.drop_connections()
    page.wait_until(lambda: len(page.sent(text)) > before, "the text once more, by the new connection")
    assert "disconnected" in page.states()
    page.wait_state("released", "ready")


def test_kernel_that_has_ended_is_told_and_a_new_one_is_shown_as_such(open_notebook: Callable[..., Page]) -> None:
    page = open_notebook("ended", [WEIGHTS, "import os\nos._exit(1)", ""])
    page.run(0)
    page.wait_ended(0, 1)
    page.run(1)
    page.wait_state("disconnected")
    page.wait_until(lambda: "the kernel has ended" in page.reason, "why nothing is heard")
    page.wait_until(lambda: "No Kernel" in page.page.locator(".jp-KernelName").inner_text(), "a page without a kernel")
    assert page.state == "disconnected" and page.item.is_visible()

    page.command("00")
    # Some versions ask first.
    accept = page.page.locator(".jp-Dialog .jp-mod-accept")
    page.wait_until(lambda: accept.count() or page.state != "disconnected", "a question or a new kernel")
    if accept.count():
        accept.last.click()
    page.type(2, WEIGHTS)
    page.wait_state("ready")


def test_private_cells_and_all_cells_behind_the_switch_stay_in_the_page(open_notebook: Callable[..., Page]) -> None:
    page = open_notebook("private", ["", "", ""], {0: {"tags": ["looseleaf-private"]}})
    page.type(0, "hidden = 1")
    page.type(1, "shown = 2")
    page.wait_answered("shown = 2")
    page.run(0)
    page.wait_ended(0, 1)
    page.page.locator("#looseleaf-status").click()
    page.shot("lab-details")
    page.page.locator(".ll-Details input").uncheck()
    page.wait_until(lambda: "edits stay here" in page.label, "the switch in the status")
    page.page.keyboard.press("Escape")
    page.type(2, "behind = 3")
    page.run(2)
    page.wait_ended(2, 2)
    sent = b"".join(page.edits_sent)
    assert b"hidden" not in sent and b"behind" not in sent
