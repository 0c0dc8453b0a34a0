"""Where variables live that no version has, what cells that need them are told, when their workers are released."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from looseleaf.checkpoint.manifest import Manifest, Unsaved
from looseleaf.errors import LooseLeafError, PreconditionFailed, Unavailable
from looseleaf.ids import Epoch, SessionId
from looseleaf.kernel.holders import Holders
from looseleaf.kernel.needs import WorkerNeed, needed_on_worker, needed_worker, refuse_unsaved
from looseleaf.recipe.analyze import analyze_cell
from looseleaf.recipe.recipe import Recipe

ONE = Epoch(1)
IT = Unsaved("it", "LIVE_ITERATOR", "it", "a half-consumed iterator cannot move", 3)
LINES = Unsaved("lines", "GENERATOR", "lines[0]", "a generator cannot move", 5)
FILE = Unsaved("file", "OPEN_FILE", "file", "an open file cannot move", 2)


class Daemon:
    """Hears what is released."""

    def __init__(self) -> None:
        self.released: list[tuple[str, list[str]]] = []
        self.away = False
        self.answer: Future[Any] = Future()
        self.answer.set_exception(LooseLeafError("ANY", "nobody needs it"))

    def send(self, kind: str, body: dict[str, Any]) -> Future[Any]:
        assert kind == "release_unsaved" and body["host_id"] == "h1"
        if self.away:
            raise Unavailable("NO_CLUSTER", "")
        self.released.append((body["worker_id"], body["names"]))
        return self.answer


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def holders(daemon: Daemon) -> Holders:
    return Holders(daemon.send)


def manifest(*unsaved: Unsaved) -> Manifest:
    return Manifest(SessionId("s-1"), unsaved=unsaved)


def ran(holders: Holders, worker: str, of: Manifest, *here: str, pid: int = 77, now_s: float = 0.0) -> None:
    """A GPU cell ended on that worker; `here` lives there."""
    rows = [{"name": entry.name, "here": entry.name in here} for entry in of.unsaved]
    saved = {"worker_id": worker, "host_id": "h1", "pid": pid, "unsaved": rows, "unsaved_kept_s": 60.0}
    holders.ran(saved, of, ONE, now_s)


def need(holders: Holders, of: Manifest, *names: str, here: tuple[str, ...] = (), epoch: Epoch = ONE) -> WorkerNeed:
    return needed_worker(of, names, here, holders, epoch)


def refusal(holders: Holders, of: Manifest, *names: str, **more: Any) -> str:
    with pytest.raises(PreconditionFailed, match="UNSAVED_VARIABLE") as caught:
        need(holders, of, *names, **more)
    assert "nothing was run" in caught.value.message
    return caught.value.message


def test_gpu_cell_that_needs_variables_of_one_worker_runs_there(holders: Holders) -> None:
    found = manifest(IT, LINES, FILE)
    ran(holders, "w-1", found, "it", "lines")
    assert need(holders, found, "it", "lines", "other") == WorkerNeed("w-1", ("it", "lines"))
    assert need(holders, found, "other") == WorkerNeed()


def test_gpu_cell_that_needs_what_the_kernel_has_is_refused_by_name(holders: Holders) -> None:
    text = refusal(holders, manifest(FILE), "file", here=("file",))
    assert "'file'" in text and "lives in the notebook's kernel, where CPU cells can use it" in text


def test_variables_of_several_processes_are_all_named_with_their_places(holders: Holders) -> None:
    found = manifest(IT, LINES, FILE)
    ran(holders, "w-1", found, "it", pid=71)
    ran(holders, "w-2", found, "lines", pid=72)
    text = refusal(holders, found, "it", "lines", "file", here=("file",))
    assert "'it' lives in the GPU process 71" in text and "'lines' lives in the GPU process 72" in text
    assert "'file' lives in the notebook's kernel" in text
    assert "nowhere" in refusal(holders, manifest(IT, replace(LINES, since_version=9)), "it", "lines")


def test_cpu_cell_is_told_until_when_the_worker_is_kept_and_how_to_run_there(
    holders: Holders, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = manifest(IT)
    ran(holders, "w-1", found, "it", now_s=1000.0)
    for now_s, text in ((1059.0, "kept for it until"), (1060.0, "may be gone by now")):
        monkeypatch.setattr("looseleaf.kernel.holders.time.time", lambda now_s=now_s: now_s)
        with pytest.raises(PreconditionFailed, match="put %%gpu on the cell's first line") as caught:
            refuse_unsaved(found, ["it"], holders, ONE)
        assert "GPU process 77" in caught.value.message and text in caught.value.message


def test_holder_that_is_gone_is_not_asked_again(holders: Holders) -> None:
    found = manifest(IT)
    ran(holders, "w-1", found, "it")
    holders.gone(["it", "never seen"], "made way for another cell")
    text = refusal(holders, found, "it")
    assert "the GPU process 77, which made way for another cell" in text and "make 'it' in the same cell" in text
    with pytest.raises(PreconditionFailed) as caught:
        refuse_unsaved(found, ["it"], holders, ONE)
    assert "made way for another cell" in caught.value.message and "%%gpu" not in caught.value.message
    ran(holders, "w-1", found, "it")
    assert need(holders, found, "it").worker_id == "w-1", "it has come back with a later cell"


def test_holder_of_an_earlier_epoch_cannot_be_asked(holders: Holders) -> None:
    ran(holders, "w-1", manifest(IT), "it")
    assert "given up when a later cell of this notebook was lost" in refusal(
        holders, manifest(IT), "it", epoch=Epoch(2)
    )


@pytest.mark.parametrize("unsaved", [(), (replace(IT, since_version=4),), (replace(IT, name="other"),)])
def test_deleted_or_rebound_variable_releases_its_worker_once(
    holders: Holders, daemon: Daemon, unsaved: tuple[Unsaved, ...]
) -> None:
    ran(holders, "w-1", manifest(IT), "it")
    holders.follow(manifest(IT))
    assert daemon.released == []
    holders.follow(manifest(*unsaved))
    holders.follow(manifest(*unsaved))
    assert daemon.released == [("w-1", ["it"])]


def test_worker_that_let_the_variable_go_itself_is_not_told(holders: Holders, daemon: Daemon) -> None:
    ran(holders, "w-1", manifest(IT), "it")
    ran(holders, "w-1", manifest())
    holders.follow(manifest())
    assert daemon.released == []


def test_variable_that_another_worker_bound_anew_is_released_at_the_first(holders: Holders, daemon: Daemon) -> None:
    ran(holders, "w-1", manifest(IT, LINES), "it", "lines")
    newer = manifest(replace(IT, since_version=8), LINES)
    ran(holders, "w-2", newer, "it")
    holders.follow(newer)
    assert daemon.released == [("w-1", ["it"])]
    assert need(holders, newer, "it").worker_id == "w-2" and need(holders, newer, "lines").worker_id == "w-1"
    holders.follow(manifest(replace(IT, since_version=8)))
    assert daemon.released == [("w-1", ["it"]), ("w-1", ["lines"])]


def test_end_of_the_session_releases_everything_even_if_the_cluster_is_gone(holders: Holders, daemon: Daemon) -> None:
    found = manifest(IT, LINES)
    ran(holders, "w-1", found, "it")
    ran(holders, "w-2", found, "lines")
    daemon.away = True
    holders.release_all()
    daemon.away = False
    holders.release_all()
    assert daemon.released == []


def test_end_of_the_session_waits_until_it_was_heard(
    holders: Holders, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looseleaf.kernel.holders.RELEASE_AT_END_S", 60.0)
    daemon.answer = Future()
    ran(holders, "w-1", manifest(IT), "it")
    ending = Thread(target=holders.release_all)
    ending.start()
    ending.join(0.05)
    assert ending.is_alive()
    daemon.answer.set_result(None)
    ending.join(60.0)
    assert not ending.is_alive()


def test_end_of_the_session_does_not_wait_for_ever(
    holders: Holders, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looseleaf.kernel.holders.RELEASE_AT_END_S", 0.01)
    daemon.answer = Future()
    ran(holders, "w-1", manifest(IT), "it")
    holders.release_all()
    assert daemon.released == [("w-1", ["it"])]


@pytest.mark.parametrize(("source", "needed"), [
    ("del it", []),
    ("if x:\n    del it", []),
    ("next(it)\ndel it", ["it"]),
    ("next(it)", ["it"]),
])  # fmt: skip
def test_cell_that_only_deletes_a_variable_does_not_need_its_worker(source: str, needed: list[str]) -> None:
    facts = analyze_cell(source)
    names = tuple(sorted({"it"} & (facts.read_names | facts.deletes | facts.may_delete)))
    assert needed_on_worker(Recipe(names=names), source) == needed
