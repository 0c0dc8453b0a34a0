"""Notebook files that batch runs write, beside those of a stock kernel, key by key; and tools that do not know us."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import pytest
from batch_fixtures import write_notebook_of
from nbclient import NotebookClient

from looseleaf.cli.main import main
from looseleaf.kernel.install import kernel_spec
from looseleaf.local.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

CELLS = [
    "import sys, torch\nprint('out')\nprint('err', file=sys.stderr)\n1 + 1",
    "from IPython.display import HTML, display\nh = display('first', display_id='d')\ndisplay(HTML('<b>x</b>'))",
    "h.update('second')",
    "x = torch.ones(3, device='cuda')\nprint('gpu', x.device)\ndisplay({'text/plain': 'raw'}, raw=True)\nx",
    "def f():\n    return 1 / 0\nf()",
    "x += 1\nf()",
    "",
    "from ipywidgets import IntProgress, IntSlider\ns = IntSlider(value=3)\ns",
    "s.value = 5",
    "bar = IntProgress(max=3)\ndisplay(bar)\nfor i in range(4):\n    y = (x * i).sum().item()\n    bar.value = i\ny",
]
TAGS = {f"c{number}": {"tags": ["raises-exception"]} for number in (4, 5)}
DEVICE = "__import__('looseleaf.devices').devices.install('reference', 'emulated', 1)"
STOCK = {
    "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}",
             f"--IPKernelApp.exec_lines={DEVICE}"],
    "display_name": "stock", "language": "python", "env": {"PYTHONHASHSEED": "0", "CUDA_VISIBLE_DEVICES": ""},
}  # fmt: skip
# What differs between two runs of one kernel: names of models and of new cells, places in memory, times.
UNIQUE = re.compile(r"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])|\b0x[0-9a-f]{6,}\b|^[0-9a-f]{8}$")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")
PATH_KEYS = frozenset({"input_path", "output_path"})


@pytest.fixture
def kernels(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernelspecs `looseleaf` and `stock`; the cluster is in its default place."""
    for name in ("JUPYTER_PATH", "JUPYTER_DATA_DIR", "JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path / "jupyter"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("LOOSELEAF_RUN_DIR", str(cluster.run_dir))
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    for name, spec in (("looseleaf", kernel_spec()), ("stock", STOCK)):
        folder = tmp_path / "jupyter" / "kernels" / name
        folder.mkdir(parents=True)
        (folder / "kernel.json").write_text(json.dumps(spec))


@pytest.fixture
def source(tmp_path: Path, kernels: None) -> Path:
    """The notebook, which names a kernel of its own."""
    path = write_notebook_of(tmp_path / "in.ipynb", *CELLS, **TAGS)
    nb = nbformat.read(path, as_version=4)
    nb.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(nb, path)
    return path


def by_nbclient(kernel: str) -> Callable[[Path, Path], None]:
    def run(source: Path, target: Path) -> None:
        nb = nbformat.read(source, as_version=4)
        where = {"metadata": {"path": str(source.parent)}}
        NotebookClient(nb, kernel_name=kernel, timeout=100, resources=where).execute()
        nbformat.write(nb, target)

    return run


def by_papermill(engine: str | None, kernel: str) -> Callable[[Path, Path], None]:
    def run(source: Path, target: Path) -> None:
        papermill = pytest.importorskip("papermill")
        # Its own sign for a failed notebook comes after everything was written.
        with pytest.raises(papermill.PapermillExecutionError):
            papermill.execute_notebook(
                source, target, parameters={"p": 1}, engine_name=engine, kernel_name=kernel, progress_bar=False
            )

    return run


def by_looseleaf_run(source: Path, target: Path) -> None:
    assert main(["run", str(source), "-o", str(target)]) == 0


def masked(value: Any, models: dict[str, str], key: str = "") -> Any:
    """`value` without what differs between two runs of one kernel; `models`: names of widgets' models by id."""
    if isinstance(value, dict):
        items = [(name, masked(item, models, name)) for name, item in value.items()]
        if any(UNIQUE.search(name) for name in value):
            # Files have their keys in order; these come in a new one each time.
            return sorted(([masked(name, models), item] for name, item in items), key=json.dumps)
        return dict(items)
    if isinstance(value, list):
        return [masked(item, models) for item in value]
    if isinstance(value, str):
        value = UNIQUE.sub(lambda found: f"<{models.get(found.group(), 'unique')}>", value)
        return "<path>" if key in PATH_KEYS else TIME.sub("<time>", value)
    return "<seconds>" if key == "duration" and isinstance(value, float) else value


def read_masked(path: Path) -> Any:
    """The file's content, masked."""
    nb = json.loads(path.read_text())
    states = nb["metadata"]["widgets"]["application/vnd.jupyter.widget-state+json"]["state"]
    return masked(nb, {model: state["model_name"] for model, state in states.items()})


def differences(mine: Any, other: Any, where: str = "") -> list[str]:
    """What differs, each with its place."""
    if isinstance(mine, dict) and isinstance(other, dict):
        absent = "<absent>"
        pairs = {name: (mine.get(name, absent), other.get(name, absent)) for name in sorted({*mine, *other}, key=str)}
        return [text for name, pair in pairs.items() for text in differences(*pair, f"{where}/{name}")]
    if isinstance(mine, list) and isinstance(other, list) and len(mine) == len(other):
        both = enumerate(zip(mine, other, strict=True))
        return [text for index, pair in both for text in differences(*pair, f"{where}/{index}")]
    return [] if mine == other and type(mine) is type(other) else [f"{where}: {mine!r} != {other!r}"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "stock"),
    [
        pytest.param(by_nbclient("looseleaf"), by_nbclient("stock"), marks=pytest.mark.soak),
        (by_looseleaf_run, by_nbclient("stock")),
        (by_papermill("looseleaf", "python3"), by_papermill(None, "stock")),
    ],
    ids=["nbclient", "looseleaf-run", "papermill"],
)
def test_written_notebook_is_that_of_a_stock_kernel(
    source: Path, tmp_path: Path, ours: Callable[[Path, Path], None], stock: Callable[[Path, Path], None]
) -> None:
    files = [tmp_path / "ours.ipynb", tmp_path / "stock.ipynb"]
    for run, path in zip((ours, stock), files, strict=True):
        run(source, path)
    assert differences(*map(read_masked, files)) == []
    # The comparison is one of everything: widgets, times and errors are there.
    text = files[0].read_text()
    for word in ("widget-state+json", "iopub.execute_input", "ZeroDivisionError", "vnd.jupyter.widget-view"):
        assert word in text
    assert "looseleaf" not in text.lower().replace(str(tmp_path).lower(), "")


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            ["jupyter-execute", "--kernel_name=looseleaf", "--output=out", "in.ipynb"], marks=pytest.mark.soak),
        ["jupyter-nbconvert", "--to=notebook", "--execute", "--ExecutePreprocessor.kernel_name=looseleaf",
         "--output=out.ipynb", "in.ipynb"],
    ],
    ids=["execute", "nbconvert"],
)  # fmt: skip
@pytest.mark.slow
def test_other_tools_run_gpu_cells_by_the_name_of_the_kernel(tmp_path: Path, kernels: None, command: list[str]) -> None:
    write_notebook_of(tmp_path / "in.ipynb", "import torch", "torch.ones(3).cuda()")
    program = Path(sys.executable).with_name(command[0])
    if not program.exists():
        pytest.skip(f"{command[0]} is not installed")
    command[0] = str(program)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    written = nbformat.read(tmp_path / "out.ipynb", as_version=4)
    assert written.cells[1].outputs[0]["data"]["text/plain"] == "tensor([1., 1., 1.], device='cuda:0')"


def test_differences_are_found_wherever_they_are() -> None:
    mine = {"a": [1, {"b": "x"}], "c": 1}
    assert differences(mine, {"a": [1, {"b": "x"}], "c": 1}) == []
    assert differences(mine, {"a": [1, {"b": "y"}], "c": True}) == ["/a/1/b: 'x' != 'y'", "/c: 1 != True"]
    assert len(differences(mine, {"a": [1], "d": 1})) == 3
    ids = ["0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"]
    found = masked({"x": [ids[1], f"IPY_MODEL_{ids[0]}"], "duration": 0.5, "y": {ids[1]: 2, ids[0]: 1}}, {ids[0]: "M"})
    assert found == {"x": ["<unique>", "IPY_MODEL_<M>"], "duration": "<seconds>", "y": [["<M>", 1], ["<unique>", 2]]}
