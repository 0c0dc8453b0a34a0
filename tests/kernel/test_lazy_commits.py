"""What a GPU cell waits for: the commit of what it needs, and of nothing large besides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from kernel_fake_daemon import FakeStore

from looseleaf.checkpoint.lazy import LAZY_MOVE_BYTES_MAX, lazy_names
from looseleaf.checkpoint.manifest import Manifest, decode_manifest

LARGE = f"large = bytearray({LAZY_MOVE_BYTES_MAX} + (1 << 20))\nsmall = [1]"


@pytest.fixture(scope="module", autouse=True)
def ring(shared_notebook: Any) -> None:
    """The connection's shared memory, made by the first regions that move, is the module's and no test's."""
    shared_notebook.ok("large = bytearray(2 << 20)")
    shared_notebook.ok("%%gpu\nlen(large)")


@pytest.fixture
def store(daemon: Any) -> FakeStore:
    return daemon.store


@pytest.fixture
def fresh(notebook: Any, store: FakeStore) -> Iterator[Any]:
    """The notebook, with everything committed."""
    yield notebook
    notebook.ok("%reset_selective -f ^large|^small|^box")


def manifest_of(store: FakeStore, version: int) -> Manifest:
    return decode_manifest(store.manifests[version])


def run_both(notebook: Any, first: str, second: str) -> Any:
    """The outcome of the second; no idle commit comes between."""
    ids = [notebook.send(first), notebook.send(second)]
    outcomes = [notebook.finish(msg_id) for msg_id in ids]
    assert [outcome.reply["status"] for outcome in outcomes] == ["ok", "ok"], f"{outcomes}\n{notebook.log()}"
    return outcomes[1]


def test_gpu_cell_starts_without_large_memory_that_it_does_not_need(fresh: Any, store: FakeStore) -> None:
    outcome = run_both(fresh, LARGE, "%%gpu\nsmall.append(2)\nsmall")
    assert outcome.result == "[1, 2]"
    ran = outcome.report["version"]
    assert [lazy_names(manifest_of(store, version)) for version in (ran - 1, ran)] == [["large"], ["large"]]
    # The idle kernel does the rest, without another cell.
    store.wait_for_version(ran + 1)
    assert not manifest_of(store, ran + 1).lacks_bytes_of(None)
    assert fresh.ok("%%gpu\nlen(large)").result == str(LAZY_MOVE_BYTES_MAX + (1 << 20))


@pytest.mark.parametrize("code", ["len(large)", "exec('print(len(large))')", "used()"])
def test_gpu_cell_waits_for_all_that_it_may_read(fresh: Any, store: FakeStore, code: str) -> None:
    outcome = run_both(fresh, LARGE + "\ndef used(): return len(large)", f"%%gpu\nprint({code})")
    assert outcome.text.startswith(str(LAZY_MOVE_BYTES_MAX + (1 << 20)))
    assert not manifest_of(store, outcome.report["version"]).lacks_bytes_of(None)


def test_large_memory_beside_a_changed_object_is_here_after_the_cell(fresh: Any, store: FakeStore) -> None:
    run_both(fresh, LARGE + "\nlarge[7] = 9\nbox = [large, small]\ndel large", "%%gpu\nsmall.append(2)")
    assert fresh.ok("box[0][7], box[1]").result == "(9, [1, 2])"
    assert fresh.ok("%%gpu\nbox[0][7], box[1]").result == "(9, [1, 2])"


def test_second_gpu_cell_after_it_waits_for_nothing(fresh: Any, store: FakeStore) -> None:
    ids = [fresh.send(code) for code in (LARGE, "%%gpu\nsmall.append(2)", "%%gpu\nsmall.append(3)\nsmall")]
    outcomes = [fresh.finish(msg_id) for msg_id in ids]
    assert outcomes[2].result == "[1, 2, 3]"
    first, second = (outcome.report["version"] for outcome in outcomes[1:])
    assert second == first + 1 and lazy_names(manifest_of(store, second)) == ["large"]


def test_preparation_commits_what_its_cell_needs(fresh: Any, store: FakeStore) -> None:
    before = store.version
    first = fresh.send(LARGE)
    wait = fresh.control("looseleaf_prepare_request", {"cell_id": "", "source": "small.x.cuda()", "edit_sequence": 1})
    fresh.finish(first)
    # Whichever came first: prepared while the cell ran, or after it; the next preparation is after it.
    wait()
    fresh.control("looseleaf_prepare_request", {"cell_id": "", "source": "small.y.cuda()", "edit_sequence": 2})()
    store.wait_for_version(before + 1)
    newest = store.version
    while manifest_of(store, newest).lacks_bytes_of(None):
        store.wait_for_version(newest + 1)
        newest += 1
    assert "large" in manifest_of(store, newest).roots
