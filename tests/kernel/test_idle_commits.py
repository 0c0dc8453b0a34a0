"""When an idle kernel commits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from typing import Any

import pytest

from looseleaf.errors import LooseLeafError, NotFound
from looseleaf.kernel.commit_policy import CommitPolicy
from looseleaf.kernel.idle_commits import IdleCommits
from looseleaf.recipe.recipe import Recipe


class Session:
    """What idle commits use of a KernelSession; a commit takes in everything."""

    def __init__(self) -> None:
        self.commits = CommitPolicy(True, uncommitted=0)
        self.delay_s = 0.0
        self.made: list[Collection[str] | None] = []
        self.made_one = asyncio.Event()

    def changed(self) -> None:
        self.commits.changed(0.0)

    def commit_delay_s(self) -> float:
        return self.delay_s

    def commit_quietly(self, needed: Collection[str] | None = None) -> None:
        self.made.append(needed)
        self.commits.committed(lazy=needed is not None)
        self.made_one.set()


class Rig:
    def __init__(self) -> None:
        self.session = Session()
        self.busy = False
        self.refusal: LooseLeafError | None = None
        self.commits = IdleCommits(self.session, lambda: self.busy, self._recipe)  # type: ignore[arg-type]

    def _recipe(self, source: str) -> Recipe:
        if self.refusal is not None:
            raise self.refusal
        return Recipe(names=(source,))

    def cell(self) -> None:
        self.commits.cell_arrived()
        self.session.changed()
        self.commits.cell_ended()

    async def committed(self) -> None:
        await asyncio.wait_for(self.session.made_one.wait(), 20)


@pytest.fixture
async def rig() -> Any:
    rig = Rig()
    yield rig
    rig.commits.cancel()


async def test_cell_that_changed_something_is_committed_when_idle(rig: Rig) -> None:
    rig.cell()
    assert rig.session.made == []
    await rig.committed()
    assert rig.session.made == [None]


async def test_cell_that_arrives_takes_the_commit_back(rig: Rig) -> None:
    rig.cell()
    rig.commits.cell_arrived()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert rig.session.made == []


async def test_nothing_is_scheduled_without_a_change(rig: Rig) -> None:
    rig.commits.cell_arrived()
    rig.commits.cell_ended()
    await rig.commits.before_preparation({"source": "x"})
    assert rig.session.made == []


async def test_change_in_another_thread_is_committed(rig: Rig) -> None:
    rig.commits.notice_change()
    assert not rig.session.commits.pending, "no cell has run: there is nothing to commit and no loop to do it on"
    rig.commits.cell_arrived()
    thread = threading.Thread(target=rig.commits.notice_change)
    thread.start()
    thread.join()
    await rig.committed()


async def test_preparation_commits_what_it_needs_and_the_rest_follows(rig: Rig) -> None:
    rig.session.delay_s = 3600.0
    rig.cell()
    await rig.commits.before_preparation({"source": "x"})
    assert rig.session.made == [("x",)]
    rig.session.delay_s = 0.0
    rig.commits.cell_ended()
    rig.session.made_one.clear()
    await rig.committed()
    assert rig.session.made == [("x",), None]


async def test_preparation_of_a_text_that_is_refused_commits_everything(rig: Rig) -> None:
    rig.session.delay_s, rig.refusal = 3600.0, NotFound("NAME_UNKNOWN", "")
    rig.cell()
    await rig.commits.before_preparation({"source": "x"})
    assert rig.session.made == [None]


async def test_preparation_beside_a_cell_commits_nothing(rig: Rig) -> None:
    rig.session.delay_s = 3600.0
    rig.cell()
    rig.busy = True
    await rig.commits.before_preparation({"source": "x"})
    rig.commits.notice_change()
    assert rig.session.made == []
