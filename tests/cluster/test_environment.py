"""Packages that a notebook installs, and modules beside it: what a cell sees does not depend on where it runs."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from looseleaf.local.cluster import LocalCluster

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

PACKAGE = "looseleaf_tiny"
ASK = f"%%gpu\nimport os, {PACKAGE}\n({PACKAGE}.VERSION, os.getpid())"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of installed packages that every process of the cluster has on its path."""
    folder = tmp_path_factory.mktemp("site")
    (folder / "something-1.0.dist-info").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder))
        yield folder


@pytest.fixture(scope="module")
def cluster(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    data = tmp_path_factory.mktemp("cluster") / "d"
    with LocalCluster.start(data=data, device="emulated", emulated_delays=False, gpus=1) as found:
        yield found


def wheel(folder: Path, version: int) -> Path:
    """A distribution of one module, built without a build tool."""
    path = folder / f"{PACKAGE}-{version}-py3-none-any.whl"
    info = f"{PACKAGE}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{PACKAGE}.py", f"VERSION = {version}\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def test_installs_and_own_files_are_seen_by_the_next_cell(new_notebook: Any, installed: Path, tmp_path: Path) -> None:
    notebook = new_notebook()

    def pip(start: str, version: int) -> None:
        options = f"--quiet --no-index --no-deps --upgrade --target {installed} {wheel(tmp_path, version)}"
        outcome = notebook.ok(f"{start} install {options}")
        assert outcome.report["path"] == "cpu"

    assert notebook.run(ASK).ename == "ModuleNotFoundError"
    before = notebook.prepare(ASK)
    assert before["worker_id"], before
    pip("%pip", 1)
    assert notebook.ok(f"import {PACKAGE}\n{PACKAGE}.VERSION").value == "1"
    first = notebook.ok(ASK)
    assert first.value.startswith("(1, ") and first.report["worker_id"] != before["worker_id"], first
    # A worker that nothing was installed since is kept.
    assert notebook.ok(ASK).value == first.value
    pip("!pip", 2)
    assert notebook.ok(ASK).value.startswith("(2, ")
    assert notebook.ok(f"{PACKAGE}.VERSION").value == "1"

    # A cell that runs while somebody installs is left alone.
    wait = "while not os.path.exists('go'): time.sleep(0.02)"
    running = notebook.start(f"%%gpu\nimport time\n{wait}\n{PACKAGE}.VERSION")
    (installed / "other-1.0.dist-info").mkdir()
    other = new_notebook()
    other.ok("x = 1")
    assert other.prepare("%%gpu\nx")["worker_id"]
    (tmp_path / "go").write_text("")
    assert notebook.finish(running).value == "2"

    # Typing changes nothing that a person can see, whatever is typed.
    look = (
        "import os, random, numpy as np\nrandom.seed(1)\n"
        "(sorted(os.listdir()), hash(random.getstate()), np.random.get_state()[1][:3], sorted(os.environ), os.getcwd())"
    )
    before = notebook.ok(look).value
    for typed in (
        "open('made', 'w').write('x')", "!touch made", "%%bash\ntouch made", "%%writefile made\nx", "os.chdir('/')",
        "random.random(); np.random.rand(3); os.environ['MADE'] = '1'", "print('seen'", "exit()", "del notebook, os",
        "%%gpu\nopen('made', 'w'); os.chdir('/'); np.random.seed(5); print('seen')", "%cd /", "input()", "1/0",
    ):  # fmt: skip
        assert notebook.prepare(typed)["status"] == "ok"
    after = notebook.ok(look)
    assert (after.value, after.text) == (before, "")

    helper, runs = tmp_path / "helper.py", tmp_path / "runs"

    def ran() -> int:
        return len(runs.read_text().splitlines()) if runs.exists() else 0

    cell = "%%gpu\nimport helper\nhelper.A"
    for count, value in enumerate((1, 22), start=1):
        helper.write_text(f"print('run', file=open('runs', 'a'))\nA = {value}\n")
        assert notebook.prepare(cell)["worker_id"]
        assert ran() == count - 1
        assert (notebook.ok(cell).value, ran()) == (str(value), count)
    assert (notebook.ok(cell).value, ran()) == ("22", 2)
