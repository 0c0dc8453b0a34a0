"""A Jupyter server for a page, and the page as a person uses it: both wait on conditions, never on times."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nbformat
import psutil

from looseleaf.kernel.install import kernel_spec
from looseleaf.kernel.preparations import PREPARE_REPLY, PREPARE_REQUEST

REQUEST, REPLY = PREPARE_REQUEST.encode(), PREPARE_REPLY.encode()
SERVER_TIMEOUT_S = 120.0
# Of everything that is waited for in the page, on a busy machine.
PAGE_TIMEOUT_S = 120.0
# Of all waits for one page together.
WAITS_TIMEOUT_S = 600.0
# Of a test with its cluster, server and page: so much more than its waits that on a slow machine the wait which takes
# too long fails, with its name, and not the test around it.
TEST_TIMEOUT_S = WAITS_TIMEOUT_S + 2 * SERVER_TIMEOUT_S + 2 * PAGE_TIMEOUT_S
POLL_S = 0.05
WINDOW = {"width": 1280, "height": 900}
# Of pictures that the pages show.
SMALL = {"width": 1000, "height": 420}
# In the addresses of our extension's files.
OUR_ASSETS = "@looseleaf/lab"
# The header comes first in a frame.
MESSAGE_ID = re.compile(rb'"msg_id":\s*"([^"]+)"')


def wait_until(condition: Callable[[], Any], what: str, timeout_s: float) -> Any:
    """The first true value of `condition`."""
    limit_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < limit_s, f"{what}: not within {timeout_s:.0f} s"
        time.sleep(POLL_S)
    return found


def own_id(frame: bytes) -> bytes:
    """The id of the message in a frame; its answer names it as the parent's."""
    found = MESSAGE_ID.search(frame)
    assert found is not None, frame
    return found[1]


class JupyterServer:
    """`jupyter lab` or `jupyter notebook` in a folder of its own, with our kernel and no token.

    `python`: of the environment that has them. Kernels are this environment's in any case.
    """

    def __init__(self, program: str, folder: Path, endpoint: Path, python: str = sys.executable) -> None:
        self.root = folder / "notebooks"
        self.root.mkdir(parents=True)
        kernels = folder / "data" / "kernels" / "looseleaf"
        kernels.mkdir(parents=True)
        env = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        (kernels / "kernel.json").write_text(json.dumps(kernel_spec(endpoint=str(endpoint), env=env)))
        self._write_settings(folder, program)
        self.log = folder / "server.log"
        self._output = self.log.open("wb")
        self._process = subprocess.Popen(
            [
                python, "-m", f"jupyter{program}" if program == "lab" else program, "--no-browser",
                "--allow-root", "--port=0", "--ip=127.0.0.1", "--IdentityProvider.token=", "--ServerApp.password=",
                f"--ServerApp.root_dir={self.root}", "--ServerApp.disable_check_xsrf=True",
                # A kernel that ends is not started anew, as one that has ended too often.
                "--KernelRestarter.restart_limit=0",
            ],
            stdout=self._output, stderr=subprocess.STDOUT, cwd=folder, env={**os.environ, **self._folders(folder)},
        )  # fmt: skip
        try:
            self.url = str(wait_until(lambda: self._serving(folder), f"the server, see {self.log}", SERVER_TIMEOUT_S))
        except BaseException:
            # Nobody else has it yet to stop it.
            self.stop()
            raise

    @staticmethod
    def _folders(folder: Path) -> dict[str, str]:
        return {
            "JUPYTER_CONFIG_DIR": str(folder / "config"), "JUPYTER_DATA_DIR": str(folder / "data"),
            "JUPYTER_RUNTIME_DIR": str(folder / "runtime"), "IPYTHONDIR": str(folder / "ipython"),
            "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
            "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"), "JUPYTER_PREFER_ENV_PATH": "0",
        }  # fmt: skip

    @staticmethod
    def _write_settings(folder: Path, program: str) -> None:
        """No questions about news, which would cover the page. Lab is light, Notebook is dark."""
        settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
        settings.mkdir(parents=True)
        news = settings / "notification.jupyterlab-settings"
        news.write_text('{"fetchNews": "false", "checkForUpdates": false}')
        theme = "JupyterLab Dark" if program == "notebook" else "JupyterLab Light"
        (settings / "themes.jupyterlab-settings").write_text(json.dumps({"theme": theme}))

    def _serving(self, folder: Path) -> str:
        assert self._process.poll() is None, self.log.read_text()
        for path in (folder / "runtime").glob("jpserver-*.json"):
            try:
                url = str(json.loads(path.read_text())["url"]).rstrip("/")
                with urllib.request.urlopen(f"{url}/api", timeout=5):
                    return url
            except (OSError, ValueError, KeyError):
                return ""
        return ""

    def write(self, name: str, cells: list[str], metadata: Mapping[int, dict[str, Any]] | None = None) -> None:
        """A notebook of our kernel with these cells; `metadata` of some of them, by their place."""
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
        for place, found in (metadata or {}).items():
            notebook.cells[place].metadata.update(found)
        notebook.metadata["kernelspec"] = {"name": "looseleaf", "display_name": "LooseLeaf", "language": "python"}
        nbformat.write(notebook, self.root / name)

    def kernel_state(self, name: str) -> str:
        """What the server says of the kernel of this notebook: what a culler goes by."""
        sessions = self._get("sessions")
        (kernel_id,) = [found["kernel"]["id"] for found in sessions if found["path"] == name]
        (kernel,) = [found for found in self._get("kernels") if found["id"] == kernel_id]
        return str(kernel["execution_state"])

    def end_kernels(self) -> None:
        """Ends all kernels: what a test has prepared takes no room from the next one."""
        for found in self._get("sessions"):
            request = urllib.request.Request(f"{self.url}/api/sessions/{found['id']}", method="DELETE")
            with urllib.request.urlopen(request, timeout=60):
                pass

    def _get(self, what: str) -> Any:
        with urllib.request.urlopen(f"{self.url}/api/{what}", timeout=30) as answer:
            return json.loads(answer.read())

    def stop(self) -> None:
        """Ends it with its kernels."""
        if self._process.poll() is not None:
            self._output.close()
            return
        process = psutil.Process(self._process.pid)
        children = process.children(recursive=True)
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        _gone, alive = psutil.wait_procs(children, timeout=20)
        self._output.close()
        assert not alive, f"the server left processes: {alive}"


class Page:
    """One notebook open in Chromium. `state_item`: where this front end shows the state."""

    def __init__(self, page: Any, url: str, state_item: str, shots: Path) -> None:
        self.page = page
        self._state_item = state_item
        self._shots = shots
        self._url = url
        self._waits_end_s = time.monotonic() + WAITS_TIMEOUT_S
        page.set_default_timeout(PAGE_TIMEOUT_S * 1000)
        page.on("dialog", lambda dialog: dialog.accept())
        page.on("websocket", self._listen)
        page.on("console", self._note_complaint)
        page.on("pageerror", lambda error: self._note_fault(str(error), error.stack or ""))
        # What the console and uncaught exceptions say of our extension.
        self.complaints: list[str] = []
        # Messages between page and kernel that are about edits.
        self.edits_sent: list[bytes] = []
        self.edits_answered: list[bytes] = []
        # Every state that was shown, in order, however short: the page itself keeps them.
        page.add_init_script(RECORD_STATES % ((json.dumps(state_item),) * 2))
        page.add_init_script(KEEP_SOCKETS)
        self.open()

    def open(self) -> None:
        """Loads the page and waits for its kernel."""
        self.page.goto(self._url)
        self.page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
        self.page.locator(f"{self._state_item}[data-state]").first.wait_for()

    def wait_until(self, condition: Callable[[], Any], what: str) -> Any:
        """The first true value of `condition`; no wait is longer than what is left of all waits for this page."""
        left_s = max(0.0, self._waits_end_s - time.monotonic())
        return wait_until(condition, what, min(PAGE_TIMEOUT_S, left_s))

    def _note_complaint(self, message: Any) -> None:
        # By where it is from, not by what it names: JupyterLab itself complains of plugins that a slow machine loads.
        if message.type in ("error", "warning"):
            self._note_fault(message.text, message.location.get("url", ""))

    def _note_fault(self, text: str, where: str) -> None:
        if OUR_ASSETS in where:
            self.complaints.append(f"{text} ({where[:200]})")

    def _listen(self, socket: Any) -> None:
        socket.on("framesent", self._note_sent)
        socket.on("framereceived", self._note_received)

    def _note_sent(self, frame: Any) -> None:
        if isinstance(frame, bytes) and REQUEST in frame:
            self.edits_sent.append(frame)

    def _note_received(self, frame: Any) -> None:
        if isinstance(frame, bytes) and REPLY in frame:
            self.edits_answered.append(frame)

    def wait_answered(self, text: str) -> None:
        """Waits until the page has sent exactly this text as an edit, and the kernel has answered it."""
        self.wait_until(lambda: self._answered(text), f"the answer to the edit {text!r}")

    def _answered(self, text: str) -> bool:
        return any(own_id(frame) in answer for frame in self.sent(text) for answer in self.edits_answered)

    def sent(self, text: str) -> list[bytes]:
        """What the page has sent before Run with exactly this text."""
        # Events of the page are handed out only while a call to it waits.
        self.page.evaluate("0")
        source = b'"source":' + json.dumps(text).encode()
        return [frame for frame in self.edits_sent if source in frame]

    def drop_connections(self) -> None:
        """Closes the page's sockets, as a lost network does."""
        self.page.evaluate("window.openSockets.splice(0).forEach(socket => socket.close())")

    def cell(self, place: int) -> Any:
        """The code cell at this place."""
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(place)

    def edit(self, place: int) -> None:
        """Puts the cursor into the cell, behind its text."""
        self.cell(place).locator(".cm-content").click()
        self.page.keyboard.press("Control+End")

    def type(self, place: int, text: str) -> None:
        """Types at the end of the cell, key by key."""
        self.edit(place)
        self.page.keyboard.type(text)

    def run(self, place: int) -> None:
        """Runs the cell and stays in it."""
        self.edit(place)
        self.page.keyboard.press("Control+Enter")

    def output(self, place: int) -> str:
        """What is shown under the cell as text."""
        return "\n".join(self.cell(place).locator(".jp-OutputArea-output").all_inner_texts())

    def wait_output(self, place: int, text: str) -> str:
        """Waits until `text` is shown under the cell."""
        self.wait_until(lambda: text in self.output(place), f"{text!r} under cell {place}")
        return self.output(place)

    def answer(self, index: int, text: str) -> None:
        """Types the answer to a question that a cell asks."""
        box = self.cell(index).locator(".jp-Stdin-input")
        box.wait_for()
        box.fill(text)
        box.press("Enter")

    def wait_ended(self, place: int, count: int) -> None:
        """Waits for the cell's number: it has ended as that execution."""
        prompt = self.cell(place).locator(".jp-InputPrompt")
        self.wait_until(lambda: prompt.inner_text().strip() == f"[{count}]:", f"[{count}] before cell {place}")

    def command(self, keys: str) -> None:
        """Keys of the command mode, such as "ii"."""
        self.page.keyboard.press("Escape")
        for key in keys:
            self.page.keyboard.press(key)

    @property
    def state(self) -> str:
        """The state that is shown now."""
        return str(self.page.locator(self._state_item).first.get_attribute("data-state"))

    @property
    def label(self) -> str:
        """Its text."""
        return str(self.page.locator(self._state_item).first.inner_text())

    @property
    def item(self) -> Any:
        """Where the state is shown."""
        return self.page.locator(self._state_item).first

    @property
    def reason(self) -> str:
        """What is told of the state when the pointer stays on it."""
        return str(self.page.locator(f"{self._state_item} button").first.get_attribute("title"))

    def wait_state(self, *states: str) -> None:
        """Waits until one of these states is shown."""
        self.wait_until(lambda: self.state in states, f"state {' or '.join(states)}")

    def states(self) -> list[str]:
        """All states that this page has shown since it was loaded."""
        return [str(state) for state in self.page.evaluate("window.looseleafStates")]

    def footer(self, place: int) -> str:
        """The line under the cell, empty if there is none."""
        return "".join(self.cell(place).locator(".ll-Footer").all_inner_texts())

    def shot(self, name: str, size: dict[str, int] = SMALL) -> None:
        """A screenshot into out/, of a window of this size; `make docs-pictures` takes some of them into the pages."""
        self.page.set_viewport_size(size)
        self.page.screenshot(path=self._shots / f"{name}.png")
        self.page.set_viewport_size(WINDOW)


KEEP_SOCKETS = """
window.openSockets = [];
window.WebSocket = class extends window.WebSocket {
  constructor(...args) {
    super(...args);
    window.openSockets.push(this);
  }
};
"""
# Old values too: of several changes that an observer is told together, none is lost.
RECORD_STATES = """
window.looseleafStates = [];
const note = state => {
  if (state && window.looseleafStates.at(-1) !== state) window.looseleafStates.push(state);
};
new MutationObserver(records => {
  for (const record of records) {
    if (record.type === "attributes" && record.target.matches(%s)) note(record.oldValue);
  }
  note(document.querySelector(%s)?.dataset.state);
}).observe(document, {
  subtree: true, childList: true, attributes: true, attributeOldValue: true, attributeFilter: ["data-state"]
});
"""
