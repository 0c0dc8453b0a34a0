"""Variables that no version has, as the kernel deals with them: routed, refused, released, told of when stale."""

from __future__ import annotations

from typing import Any

from kernel_fake_daemon import run_cell

from looseleaf.errors import PreconditionFailed


async def on_worker(run: Any) -> Any:
    """Runs the cell; `numbers`, if no version has it, lives in the worker w-1."""
    rows = [{"name": "numbers", "reason": "GENERATOR", "path": "numbers", "here": True}]
    return {**await run_cell(run), "unsaved": rows, "host_id": "h1", "pid": 4711, "unsaved_kept_s": 60.0}


def test_cell_that_needs_a_workers_variable_names_that_worker(notebook: Any, daemon: Any) -> None:
    daemon.plays[""] = on_worker
    notebook.ok("%%gpu\nnumbers = (n for n in range(3))")
    refused = notebook.run("next(numbers)")
    assert refused.error[0] == "UNSAVED_VARIABLE" and "GPU process 4711" in refused.error[1]
    notebook.run("%%gpu\nnext(numbers)")
    body = daemon.wait_for("submit", 2)
    assert (body["needed_worker"], body["needed_names"]) == ("w-1", ["numbers"])
    notebook.ok("%%gpu\nother = 1")
    body = daemon.wait_for("submit", 3)
    assert (body["needed_worker"], body["needed_names"]) == ("", [])
    notebook.ok("del numbers")
    notebook.ok("%%gpu\n1")
    body = daemon.wait_for("release_unsaved")
    assert (body["host_id"], body["worker_id"], body["names"]) == ("h1", "w-1", ["numbers"])


def test_worker_that_is_gone_is_remembered(notebook: Any, daemon: Any) -> None:
    async def gone(_run: Any) -> Any:
        raise PreconditionFailed("UNSAVED_GONE", "it is gone", names="numbers", why="made way for another cell")

    daemon.plays.update({"numbers =": on_worker, "next": gone})
    notebook.ok("%%gpu\nnumbers = (n for n in range(3))")
    assert notebook.run("%%gpu\nnext(numbers)").error == ("UNSAVED_GONE", "it is gone")
    for cell in ("next(numbers)", "%%gpu\nnext(numbers)"):
        refused = notebook.run(cell)
        assert refused.error[0] == "UNSAVED_VARIABLE" and "which made way for another cell" in refused.error[1]
    assert daemon.count("submit") == 2
    notebook.ok("del numbers")


def test_stale_values_are_told_in_the_output_of_the_cell_that_made_them_so(notebook: Any) -> None:
    notebook.ok("data = [1]\nmine = (n for n in data)\nnext(mine)")
    notebook.ok("data")
    told = notebook.ok("%%gpu\ndata.append(2)")
    assert told.text.count("'mine' cannot be saved and still holds") == 1
    assert notebook.ok("data").text == ""
    notebook.ok("del mine")


def test_results_that_were_shown_are_not_called_stale(notebook: Any) -> None:
    notebook.ok("shown = [1]\nshown")
    assert notebook.ok("%%gpu\nshown.append(2)").text == ""
    assert notebook.ok("_, shown").text == ""
