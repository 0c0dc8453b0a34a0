"""The same in Notebook 7, shorter: its toolbar shows the state."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from browser_rig import TEST_TIMEOUT_S, JupyterServer, Page

pytestmark = [pytest.mark.browser, pytest.mark.timeout(TEST_TIMEOUT_S)]
PROGRAM = "notebook"


def test_cell_is_prepared_while_it_is_typed_and_shown_in_the_toolbar(
    open_notebook: Callable[..., Page], server: JupyterServer
) -> None:
    page = open_notebook("seven", ["", "w += 1\nwhile True: pass"])
    page.type(0, "import torch\nw = torch.ones(8).cuda()\nprint(input('who? '))")
    page.wait_state("ready")
    page.shot("notebook-ready")
    page.run(0)
    page.answer(0, "Ada")
    page.wait_output(0, "Ada")
    page.wait_ended(0, 1)
    page.wait_until(lambda: "saved" in page.footer(0), "the times of the cell")
    page.run(1)
    page.wait_state("running")
    assert server.kernel_state("seven.ipynb") == "busy"
    page.shot("notebook-running")
    page.command("ii")
    page.wait_output(1, "KeyboardInterrupt")
    page.wait_ended(1, 2)
    assert {"ready", "running", "saving"} <= set(page.states())
