from __future__ import annotations

from typing import Any

import pytest

from looseleaf.errors import Unavailable
from looseleaf.kernel.lost_versions import CELLS_TOLD_MAX, LINE_CHARS_MAX, lost_text

COMMIT = "session = get_ipython().kernel.looseleaf; session.changed(); session.commit(); del session"


def test_lost_text_names_the_version_and_the_cells() -> None:
    text = lost_text(3, 2, ["%%gpu\n\nmodel = train()\nmore()", "x" * 200])
    assert "before its newest 2 versions had been written" in text and "those of version 3;" in text
    assert text.splitlines()[1:] == ["  model = train()", "  " + "x" * (LINE_CHARS_MAX - 1) + "…"]


@pytest.mark.parametrize(("cells", "lines"), [([], []), (["%%gpu"], ["  %%gpu"])])
def test_lost_text_of_cells_without_a_line(cells: list[str], lines: list[str]) -> None:
    text = lost_text(1, 1, cells)
    assert text.splitlines()[1:] == lines and text.endswith("\n") and "its newest version had been" in text


def test_lost_text_of_many_cells_is_bounded() -> None:
    lines = lost_text(1, 30, [f"x{number} = 1" for number in range(30)]).splitlines()
    assert len(lines) == 1 + CELLS_TOLD_MAX and lines[1] == f"  {30 - CELLS_TOLD_MAX + 1} cells before these"
    assert lines[-1] == "  x29 = 1"


def test_kernel_whose_newest_versions_were_lost_goes_on_from_the_last_one_and_names_the_cells(
    new_notebook: Any, new_daemon: Any
) -> None:
    daemon = new_daemon()
    store = daemon.store
    notebook = new_notebook(daemon.path)
    for line in ("x = [1]\ndef f(): return x", "x.append(2)", "def f(): return 'later'"):
        notebook.ok(line)
        notebook.ok(COMMIT)
    daemon.stop()
    kept = min(store.manifests)
    for version in [number for number in store.manifests if number > kept]:
        del store.manifests[version]
    store.epoch += 1
    new_daemon(store)
    outcome = notebook.ok("f()")
    told, *lines = outcome.text.splitlines()
    assert f"those of version {kept}; what later cells changed is gone; run them again" in told
    assert [line for line in lines if "commit" not in line and "session" not in line] == [
        "  x.append(2)", "  def f(): return 'later'",
    ]  # fmt: skip
    assert outcome.result == "[1]" and "LooseLeaf:" not in notebook.ok("x").text
    notebook.ok("x.append(3)")
    notebook.ok(COMMIT)
    assert store.version > kept


def test_cell_whose_host_took_older_versions_with_it_names_their_cells_too(new_notebook: Any, new_daemon: Any) -> None:
    daemon = new_daemon()
    store = daemon.store
    notebook = new_notebook(daemon.path)
    for line in ("x = [1]", "x.append(2)"):
        notebook.ok(line)
        notebook.ok(COMMIT)

    async def vanish(_run: Any) -> Any:
        for version in [number for number in store.manifests if number > min(store.manifests)]:
            del store.manifests[version]
        raise Unavailable("HOST_LOST", "the host h1 that ran this cell cannot be reached any more")

    daemon.plays.update(vanish=vanish)
    outcome = notebook.run("%%gpu\nvanish = x")
    assert outcome.error[0] == "CELL_LOST" and "those of version 1; run the cell again" in outcome.error[1]
    outcome = notebook.ok("x")
    assert outcome.result == "[1]" and "  x.append(2)\n" in outcome.text
