"""A whole cluster of real processes for the tests of this folder, and notebooks that talk to it."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from jupyter_client import KernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager

from looseleaf.kernel.install import kernel_spec
from looseleaf.local.cluster import LocalCluster

CELL_TIMEOUT_S = 90.0
# One compute thread in kernels, and so in their workers: on a busy machine more of them only wait for each other.
THREADS_ENV = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
# What a cell shows must not depend on how long it waits.
QUIET_ENV = {"LOOSELEAF_KERNEL_WAIT_LINE_AFTER_S": "0"}
KERNEL_ENV = {**THREADS_ENV, **QUIET_ENV}


@dataclass
class Outcome:
    """What one cell showed and what its reply said."""

    status: str = ""
    text: str = ""
    results: list[str] = field(default_factory=list)
    error: str = ""
    ename: str = ""
    traceback: str = ""
    images: int = 0
    kinds: list[str] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def value(self) -> str:
        """The cell's result as text."""
        return self.results[-1]


class _Spec(KernelSpecManager):
    def __init__(self, spec: dict[str, Any]) -> None:
        super().__init__()
        self._spec = spec

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        return KernelSpec(**self._spec)


class Notebook:
    """A kernel process with its client: runs cells one after another, as a front end does."""

    def __init__(self, endpoint: Path | str, folder: Path, env: dict[str, str] | None = None) -> None:
        spec = kernel_spec(endpoint=str(endpoint), env={**KERNEL_ENV, **(env or {})})
        # Sockets in a folder of its own: two kernels that start at once may pick the same free port.
        self._sockets = tempfile.TemporaryDirectory(prefix="ll-")
        self.manager = KernelManager(
            kernel_name="looseleaf",
            kernel_spec_manager=_Spec(spec),
            transport="ipc",
            connection_file=f"{self._sockets.name}/kernel.json",
        )
        self.manager.start_kernel(cwd=str(folder))
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self._edits = 0

    @property
    def pid(self) -> int:
        """The kernel's process id."""
        return int(self.manager.provisioner.pid)  # type: ignore[union-attr]

    def start(self, code: str, metadata: dict[str, Any] | None = None) -> str:
        """Sends a cell; returns its message id."""
        content = {
            "code": code,
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": True,
            "stop_on_error": False,
        }
        message = self.client.session.msg(
            "execute_request", content, metadata=metadata or {"cellId": f"c{abs(hash(code))}"}
        )
        self.client.shell_channel.send(message)
        return str(message["header"]["msg_id"])

    def finish(
        self,
        message_id: str,
        timeout_s: float = CELL_TIMEOUT_S,
        answer: str | None = None,
        on_output: Callable[[Outcome], None] | None = None,
    ) -> Outcome:
        """Collects the outputs and the reply of a cell that was sent."""
        outcome, deadline = Outcome(), time.monotonic() + timeout_s
        idle = False
        while not idle:
            if time.monotonic() > deadline:
                raise AssertionError(f"the cell did not end in {timeout_s} s; so far: {outcome}")
            if answer is not None and self.client.stdin_channel.msg_ready():
                self.client.stdin_channel.get_msg(timeout=1)
                self.client.input(answer)
            try:
                message = self.client.get_iopub_msg(timeout=0.1)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") != message_id:
                continue
            idle = self._take(outcome, message)
            if on_output is not None:
                on_output(outcome)
        while (reply := self.client.get_shell_msg(timeout=30))["parent_header"].get("msg_id") != message_id:
            pass
        outcome.status = reply["content"]["status"]
        outcome.report = reply["metadata"].get("looseleaf", {})
        return outcome

    @staticmethod
    def _take(outcome: Outcome, message: dict[str, Any]) -> bool:
        kind, content = message["msg_type"], message["content"]
        if kind == "status":
            return bool(content["execution_state"] == "idle")
        outcome.kinds.append(kind)
        if kind == "stream":
            outcome.text += content["text"]
        elif kind == "execute_result":
            outcome.results.append(content["data"]["text/plain"])
        elif kind == "display_data":
            outcome.images += "image/png" in content["data"]
        elif kind == "error":
            outcome.ename, outcome.error = content["ename"], content["evalue"]
            outcome.traceback = "\n".join(content["traceback"])
        return False

    def run(self, code: str, **kwargs: Any) -> Outcome:
        """Sends a cell and waits for its end."""
        return self.finish(self.start(code), **kwargs)

    def ok(self, code: str, **kwargs: Any) -> Outcome:
        """As `run`, for a cell that must succeed."""
        outcome = self.run(code, **kwargs)
        assert outcome.status == "ok", outcome
        return outcome

    def prepare(self, code: str) -> dict[str, Any]:
        """Has a cell prepared, as an edit does, and waits for the answer."""
        self._edits += 1
        message = self.client.session.msg(
            "looseleaf_prepare_request",
            {"cell_id": "", "source": code, "edit_sequence": self._edits, "device_override": ""},
        )
        self.client.control_channel.send(message)
        while True:
            reply = self.client.control_channel.get_msg(timeout=60)
            if reply["parent_header"].get("msg_id") == message["header"]["msg_id"]:
                content: dict[str, Any] = reply["content"]
                return content

    def close(self) -> None:
        """Shuts the kernel down."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)
        self.manager.cleanup_resources()
        self._sockets.cleanup()


@pytest.fixture(scope="module", autouse=True)
def quiet_kernels() -> Iterator[None]:
    """Also those kernels that a module starts in a way of its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in QUIET_ENV.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def cluster_env() -> dict[str, str]:
    """Variables with which a module's own cluster starts; a module may have a fixture of this name of its own."""
    return {}


@pytest.fixture(scope="session")
def common_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """One host with one virtual GPU, for all modules that do nothing to it but run notebooks."""
    with running_cluster(tmp_path_factory.mktemp("cluster"), gpus=1) as found:
        yield found


@pytest.fixture(scope="module")
def own_cluster(tmp_path_factory: pytest.TempPathFactory, cluster_env: dict[str, str]) -> Iterator[LocalCluster]:
    """As `common_cluster`, for one module. After it no process of the cluster is left."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster_env.items():
            patch.setenv(name, value)
        running = running_cluster(tmp_path_factory.mktemp("cluster"), gpus=1)
    with running as found:
        yield found


@pytest.fixture(scope="module")
def cluster(request: pytest.FixtureRequest, cluster_env: dict[str, str]) -> LocalCluster:
    """The module's cluster; a module may have a fixture of this name of its own."""
    found: LocalCluster = request.getfixturevalue("own_cluster" if cluster_env else "common_cluster")
    return found


class running_cluster:  # noqa: N801 - used as a function
    """A cluster in `folder`; its end is checked."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._cluster = LocalCluster.start(
            data=folder / "d", device="emulated", emulated_delays=False, log_level="info", **settings
        )
        self._processes = self._descendants()

    def __enter__(self) -> LocalCluster:
        return self._cluster

    def __exit__(self, *_exc: object) -> None:
        everything = {process.pid: process for process in (*self._processes, *self._descendants())}
        self._cluster.stop()
        _gone, alive = psutil.wait_procs(list(everything.values()), timeout=15)
        assert not alive, f"the cluster left processes: {alive}"

    def _descendants(self) -> list[psutil.Process]:
        supervisor = psutil.Process(self._cluster.record.supervisor_pid)
        return [supervisor, *supervisor.children(recursive=True)]


@pytest.fixture(scope="module")
def shared(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Notebook]:
    """One notebook for all tests of a module that care for none but the variables that they set themselves."""
    notebook = Notebook(cluster.kernel_socket("h0"), tmp_path_factory.mktemp("shared"))
    yield notebook
    notebook.close()


@pytest.fixture
def new_notebook(cluster: LocalCluster, tmp_path: Path) -> Iterator[Callable[..., Notebook]]:
    """Starts notebooks on the cluster; all are shut down afterwards."""
    opened: list[Notebook] = []

    def start(endpoint: Path | str | None = None, env: dict[str, str] | None = None) -> Notebook:
        notebook = Notebook(endpoint or cluster.kernel_socket("h0"), tmp_path, env)
        opened.append(notebook)
        return notebook

    yield start
    for notebook in opened:
        notebook.close()


@pytest.fixture
def notebook(new_notebook: Callable[..., Notebook]) -> Notebook:
    """One notebook on the cluster."""
    return new_notebook()
