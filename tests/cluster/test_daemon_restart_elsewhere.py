"""A notebook's cell runs on another host: that host's daemon is killed, then the notebook's own (design §5)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from conftest import Notebook, running_cluster

from looseleaf.local.cluster import LocalCluster, wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(600)]

LIMIT_S = 120.0


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Two hosts with a GPU each."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOSELEAF_DAEMON_BASE_IMPORTS", '["numpy"]')
        running = running_cluster(tmp_path_factory.mktemp("pair"), gpus=1, hosts=2)
    with running as found:
        yield found


def test_cell_on_another_host_outlives_both_daemons(pair: LocalCluster, tmp_path: Path) -> None:
    names = ("one", "two")
    books = {name: Notebook(pair.kernel_socket("h0"), tmp_path) for name in names}
    try:
        for book in books.values():
            book.ok(f"import pathlib, time, torch\nkept = [1]\nfolder = pathlib.Path({str(tmp_path)!r})")
        cell = (
            "%%gpu\nprint('running', flush=True)\nkept.append(int(torch.ones(2).cuda().sum()))\n"
            "(folder / {!r}).touch()\nwhile not (folder / 'go').exists():\n    time.sleep(0.01)\nprint('ended')\nkept"
        )
        running = {name: book.start(cell.format(name)) for name, book in books.items()}
        done: list[bool] = []

        def restart(outcome: Any) -> None:
            if "running" not in outcome.text or done:
                return
            done.append(True)
            assert wait_for(lambda: all((tmp_path / name).exists() for name in names), LIMIT_S)
            for host in ("daemon-h1", "daemon-h0"):
                before = pair.pid(host)
                pair.kill(host)
                pair.wait_serving(host, LIMIT_S, other_than=before)
            (tmp_path / "go").touch()

        outcomes = {
            name: books[name].finish(running[name], LIMIT_S, on_output=restart if name == "two" else None)
            for name in reversed(names)
        }
        for name, outcome in outcomes.items():
            lines = [line for line in outcome.text.splitlines() if not line.startswith("LooseLeaf: ")]
            assert outcome.status == "ok" and lines == ["running", "ended"], (name, outcome)
            assert outcome.value == "[1, 2]" and books[name].ok("kept").value == "[1, 2]"
        assert len({outcome.report["host"] for outcome in outcomes.values()}) == 2, outcomes
    finally:
        for book in books.values():
            book.close()
