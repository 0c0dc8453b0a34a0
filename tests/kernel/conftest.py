"""Real kernel processes against a fake daemon."""

from __future__ import annotations

import queue
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client.manager import KernelManager

from looseleaf.batch.client import OneSpec
from looseleaf.kernel.install import kernel_spec

sys.path.insert(0, str(Path(__file__).parent))
from kernel_fake_daemon import FakeDaemon, FakeStore

CELL_TIMEOUT_S = 30.0


@dataclass
class Outcome:
    """What one cell showed (iopub messages in order, without its input and status) and its reply."""

    reply: dict[str, Any] = field(default_factory=dict)
    messages: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(content["text"] for kind, content in self.messages if kind == "stream")

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.messages]

    @property
    def result(self) -> str:
        return next(c["data"]["text/plain"] for kind, c in self.messages if kind == "execute_result")

    @property
    def report(self) -> dict[str, Any]:
        return self.metadata.get("looseleaf", {})

    @property
    def error(self) -> tuple[str, str]:
        return self.reply.get("ename", ""), self.reply.get("evalue", "")


class Notebook:
    """A kernel process and its client."""

    def __init__(self, endpoint: Path | str, folder: Path, **env: str) -> None:
        (folder / "logs").mkdir(exist_ok=True)
        settings = {
            "LOOSELEAF_RUN_DIR": str(folder), "LOOSELEAF_LOG_DIR": str(folder / "logs"),
            "IPYTHONDIR": str(folder / "ipython"), "JUPYTER_RUNTIME_DIR": str(folder),
            "LOOSELEAF_KERNEL_RECONNECT_INTERVAL_S": "0",
            "LOOSELEAF_KERNEL_LOG_LEVEL": "debug", "LOOSELEAF_KERNEL_RECOVER_TIMEOUT_S": "0.5",
            # What a cell shows must not depend on how long it waits.
            "LOOSELEAF_KERNEL_WAIT_LINE_AFTER_S": "0", **env,
        }  # fmt: skip
        spec = kernel_spec(endpoint=str(endpoint), env=settings)
        self.folder = folder
        self.closed = False
        self.manager = KernelManager(
            kernel_name="looseleaf", kernel_spec_manager=OneSpec(spec), transport="ipc",
            connection_file=str(folder / "kernel.json"),
        )  # fmt: skip
        self.manager.start_kernel(cwd=str(folder), extra_arguments=["--HistoryManager.hist_file=:memory:"])
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)

    @property
    def pid(self) -> int:
        return int(self.manager.provisioner.pid)  # type: ignore[union-attr]

    def send(self, code: str, *, allow_stdin: bool = True, stop_on_error: bool = False, **metadata: Any) -> str:
        """Sends a cell and returns its message id."""
        content = {
            "code": code, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": allow_stdin,
            "stop_on_error": stop_on_error,
        }  # fmt: skip
        message = self.client.session.msg("execute_request", content, metadata=metadata)
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def finish(self, msg_id: str, answer: str | None = None, timeout_s: float = CELL_TIMEOUT_S) -> Outcome:
        """The cell's outcome; answers its questions with `answer`."""
        outcome = Outcome()
        limit_s = time.monotonic() + timeout_s
        while True:
            assert time.monotonic() < limit_s, f"the cell did not end: {outcome}\n{self.log()}"
            if self._question(outcome, answer):
                continue
            try:
                message = self.client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != msg_id:
                continue
            kind, content = message["msg_type"], message["content"]
            if kind == "status" and content["execution_state"] == "idle":
                break
            if kind not in ("status", "execute_input"):
                outcome.messages.append((kind, content))
        reply = self.client.get_shell_msg(timeout=timeout_s)
        while reply["parent_header"].get("msg_id") != msg_id:
            reply = self.client.get_shell_msg(timeout=timeout_s)
        outcome.reply, outcome.metadata = reply["content"], reply["metadata"]
        return outcome

    def _question(self, outcome: Outcome, answer: str | None) -> bool:
        if answer is None:
            return False
        try:
            question = self.client.get_stdin_msg(timeout=0)
        except queue.Empty:
            return False
        outcome.asked.append(question["content"])
        self.client.input(answer)
        return True

    def run(self, code: str, answer: str | None = None, **options: Any) -> Outcome:
        """Runs a cell to its end."""
        return self.finish(self.send(code, **options), answer)

    def ok(self, code: str, **options: Any) -> Outcome:
        """As `run`, for a cell that must not fail."""
        outcome = self.run(code, **options)
        assert outcome.reply["status"] == "ok", f"{outcome}\n{self.log()}"
        return outcome

    def control(self, msg_type: str, content: dict[str, Any]) -> Callable[[], dict[str, Any]]:
        """Sends a control request; the returned function waits for its reply's content."""
        message = self.client.session.msg(msg_type, content)
        self.client.control_channel.send(message)

        def wait() -> dict[str, Any]:
            while True:
                reply = self.client.get_control_msg(timeout=CELL_TIMEOUT_S)
                if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                    return dict(reply["content"])

        return wait

    def log(self) -> str:
        """The kernel's own log."""
        return "\n".join(path.read_text() for path in sorted((self.folder / "logs").glob("kernel-*.log")))

    def close(self) -> None:
        """Ends the kernel as a front end does; everything that it started must be gone. Idempotent."""
        if self.closed:
            return
        self.closed = True
        children = psutil.Process(self.pid).children(recursive=True) if self.manager.is_alive() else []
        self.client.stop_channels()
        self.manager.shutdown_kernel()
        self.manager.cleanup_resources()
        _gone, alive = psutil.wait_procs(children, timeout=10)
        assert not alive, f"left behind: {alive}"


@pytest.fixture(scope="module")
def module_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("k")


@pytest.fixture(scope="module")
def shared_daemon(module_folder: Path) -> Iterator[FakeDaemon]:
    daemon = FakeDaemon(module_folder / "d.sock", FakeStore()).start()
    yield daemon
    daemon.stop()


@pytest.fixture(scope="module")
def shared_notebook(module_folder: Path, shared_daemon: FakeDaemon) -> Iterator[Notebook]:
    notebook = Notebook(shared_daemon.path, module_folder)
    # Its connection belongs to the module, not to the first test.
    notebook.ok("pass")
    yield notebook
    notebook.close()


@pytest.fixture
def daemon(shared_daemon: FakeDaemon) -> Iterator[FakeDaemon]:
    """The module's daemon, with what it was asked forgotten."""
    shared_daemon.requests.clear()
    shared_daemon.plays.clear()
    yield shared_daemon
    shared_daemon.plays.clear()


@pytest.fixture
def notebook(shared_notebook: Notebook, daemon: FakeDaemon) -> Notebook:
    """The module's notebook; `daemon` is the one it talks to."""
    return shared_notebook


@pytest.fixture
def new_notebook(tmp_path: Path) -> Iterator[Callable[..., Notebook]]:
    """Makes notebooks of this test's own: (endpoint, **env)."""
    made: list[Notebook] = []

    def make(endpoint: Path | str = "", **env: str) -> Notebook:
        folder = tmp_path / f"n{len(made)}"
        folder.mkdir()
        made.append(Notebook(endpoint or folder / "nobody.sock", folder, **env))
        return made[-1]

    yield make
    for notebook in made:
        notebook.close()


@pytest.fixture
def new_daemon(tmp_path: Path) -> Iterator[Callable[..., FakeDaemon]]:
    """Makes daemons of this test's own: (store, host)."""
    made: list[FakeDaemon] = []

    def make(store: FakeStore | None = None, host: dict[str, Any] | None = None) -> FakeDaemon:
        made.append(FakeDaemon(tmp_path / "d.sock", store or FakeStore(), host).start())
        return made[-1]

    yield make
    for daemon in made:
        daemon.stop()
