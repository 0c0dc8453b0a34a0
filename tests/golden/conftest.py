"""Notebooks on an ordinary kernel with a virtual GPU, and the same through LooseLeaf."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from jupyter_core.utils import ensure_event_loop
from nbclient import NotebookClient

from looseleaf.batch.client import OneSpec

sys.path.insert(0, str(Path(__file__).parent))

EXAMPLES = Path(__file__).parents[2] / "examples"
CELL_TIMEOUT_S = 120
# The same as our kernel has: hashes of strings, and so the order of sets, must not differ.
# One compute thread on both sides: on a busy machine threads that wait for each other take ten times as long.
THREADS_ENV = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
REFERENCE_ENV = {"PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": "", **THREADS_ENV}
INSTALL_DEVICE = "__import__('looseleaf.devices').devices.install('reference', 'emulated', 1)"


def read(source: Path | Any) -> Any:
    """The notebook, from its file or as it is."""
    return nbformat.read(str(source), as_version=4) if isinstance(source, Path) else source


@pytest.fixture(scope="session", autouse=True)
def client_loop() -> None:
    """jupyter_client keeps one event loop for all its blocking calls; it is no test's leak."""
    ensure_event_loop()


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    """For our kernels, which inherit this process's environment; their workers follow them."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in THREADS_ENV.items():
            patch.setenv(name, value)
        yield


@pytest.fixture
def run_reference(tmp_path: Path) -> Callable[[Path | Any], Any]:
    """Runs a notebook on stock ipykernel whose torch has one virtual GPU; the executed notebook."""

    def run(source: Path | Any) -> Any:
        nb = read(source)
        argv = [
            sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}",
            "--HistoryManager.hist_file=:memory:", f"--IPKernelApp.exec_lines={INSTALL_DEVICE}",
        ]  # fmt: skip
        spec = {"argv": argv, "display_name": "reference", "language": "python", "env": REFERENCE_ENV}
        manager = AsyncKernelManager(
            kernel_name="reference", kernel_spec_manager=OneSpec(spec), transport="ipc",
            connection_file=str(tmp_path / "reference.json"),
        )  # fmt: skip
        here = {"metadata": {"path": str(EXAMPLES)}}
        client = NotebookClient(nb, km=manager, kernel_name="reference", timeout=CELL_TIMEOUT_S, resources=here)
        client.owns_km = True
        client.execute()
        return nb

    return run


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A one-machine cluster with one virtual GPU."""
    from looseleaf.local.cluster import LocalCluster

    with LocalCluster.start(
        data=tmp_path_factory.mktemp("c"), gpus=1, device="emulated", emulated_delays=False
    ) as running:
        yield running


@pytest.fixture
def run_here(cluster: Any) -> Callable[..., Any]:
    """Runs a notebook through LooseLeaf; (executed notebook, BatchResult)."""
    from looseleaf.batch.run import Pool, run_notebook

    def run(source: Path | Any, **options: Any) -> Any:
        nb = read(source)
        pool = Pool(str(cluster.kernel_socket()), "emulated", 1)
        result = run_notebook(nb, pool, folder=EXAMPLES, timeout_s=CELL_TIMEOUT_S, **options)
        return nb, result

    return run
