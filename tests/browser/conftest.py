"""JupyterLab and Notebook 7 in Chromium, on a cluster with one virtual GPU. `make browser` installs what they need."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf.local.cluster import LocalCluster

sys.path.insert(0, str(Path(__file__).parent))
from browser_rig import WINDOW, JupyterServer, Page

# Of an environment with another JupyterLab and Notebook; `make browser LAB=4.4` makes one.
LAB_PYTHON = os.environ.get("LOOSELEAF_LAB_PYTHON", sys.executable)
SHOTS = Path(__file__).resolve().parents[2] / "out" / ("browser" if sys.executable == LAB_PYTHON else "browser-other")
VERSIONS = (
    "from importlib.metadata import version\n"
    "for name in ('jupyterlab', 'notebook', 'looseleaf-lab'): print(name, version(name))"
)
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
# By program: the page of a notebook, in JupyterLab a workspace of its own, and where the state is shown.
PAGES = {
    "lab": ("lab/workspaces/{stem}/tree/{stem}.ipynb", "#looseleaf-status"),
    "notebook": ("notebooks/{stem}.ipynb", ".jp-Toolbar .ll-State"),
}


def _chromium() -> str:
    found = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    return found or pytest.skip("this machine has no Chromium: install the package chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """A headless Chromium; skips where it, playwright or the extension is missing."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: run `make browser`")
    asked = subprocess.run([LAB_PYTHON, "-c", VERSIONS], capture_output=True, text=True, timeout=60, check=False)
    if asked.returncode != 0:
        missing = asked.stderr.strip().rpartition("\n")[2]
        pytest.skip(f"{LAB_PYTHON}: {missing}: run `make browser`, which needs node for looseleaf-lab")
    print(", ".join(asked.stdout.splitlines()))
    path = _chromium()
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def cluster(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One host with one virtual GPU. After the browser: without one, nothing is started."""
    with LocalCluster.start(
        data=tmp_path_factory.mktemp("cluster") / "d", device="emulated", gpus=1, emulated_delays=False
    ) as found:
        yield found


@pytest.fixture(scope="module")
def program(request: pytest.FixtureRequest) -> str:
    """Which front end a module tests."""
    return str(request.module.PROGRAM)


@pytest.fixture(scope="module")
def server(cluster: LocalCluster, program: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[JupyterServer]:
    """One Jupyter server for the tests of a module."""
    server = JupyterServer(program, tmp_path_factory.mktemp(program), cluster.kernel_socket("h0"), LAB_PYTHON)
    yield server
    server.stop()


@pytest.fixture
def open_notebook(
    request: pytest.FixtureRequest, browser: Any, server: JupyterServer, program: str
) -> Iterator[Callable[..., Page]]:
    """Writes a notebook and opens it: (stem of its name, cells, metadata by place)."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    context = browser.new_context(viewport=WINDOW)
    place, item = PAGES[program]
    opened: list[Page] = []

    def open_(stem: str, cells: list[str], metadata: dict[int, dict[str, Any]] | None = None) -> Page:
        server.write(f"{stem}.ipynb", cells, metadata)
        opened.append(Page(context.new_page(), f"{server.url}/{place.format(stem=stem)}", item, SHOTS))
        return opened[-1]

    yield open_
    try:
        # How the pages looked when their test ended, well or not.
        for number, page in enumerate(context.pages):
            page.screenshot(path=SHOTS / f"end-{request.node.name}-{number}.png")
    finally:
        context.close()
        server.end_kernels()
    assert [complaint for page in opened for complaint in page.complaints] == []
