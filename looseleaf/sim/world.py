"""One simulated stretch of time: sessions in a closed loop, hosts, and one policy that gives GPUs to cells.

A late start delays what follows in its session. Figures are of what happened after the warm-up: runs that were pressed
since, and GPU time. A run that was refused or has not started at the end counts with the time that it waited till then.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Sequence
from typing import Protocol

from looseleaf.sim.engine import Engine
from looseleaf.sim.ledger import Ledger
from looseleaf.sim.model import Model
from looseleaf.sim.pool import Pool
from looseleaf.sim.workload import Cell, CellStream


class Session:
    """A person with a notebook. `number` counts its cells; `waits_since_s`: Run was pressed and nothing started yet.

    `pressed`: Run of `cell` was pressed, whatever became of it. `random` is for what the machinery draws for it.
    """

    __slots__ = ("cell", "index", "number", "pressed", "random", "stream", "waits_since_s")

    def __init__(self, index: int, stream: CellStream, seed: int) -> None:
        self.index = index
        self.stream = stream
        self.random = random.Random(f"mechanism/{seed}/{index}")
        self.number = 0
        self.cell: Cell
        self.waits_since_s: float | None = None
        self.pressed = False


class Policy(Protocol):
    """Who gets a GPU when. It is told what happens in the order of time, and calls `World.started` and `refused`."""

    # Calls of the policy's own code, for the simulator's speed.
    decisions: int

    def begin(self) -> None:
        """Before the first session: hosts from the start, ticks."""
        ...

    def gap_began(self, session: Session) -> None:
        """The cell before has ended; `session.cell` will be edited and run. Only edits may tell the policy of it."""
        ...

    def run_pressed(self, session: Session) -> None:
        """Run of a GPU cell."""
        ...

    def cell_ended(self, session: Session) -> None:
        """A GPU cell that was started has ended; its save is the policy's business."""
        ...

    def preparations(self) -> dict[str, int]:
        """What became of preparations, by word; empty if the policy makes none."""
        ...

    def late(self) -> dict[str, int]:
        """Starts since the warm-up that were not interactive, by the part that took longest; empty if not counted."""
        ...


class World:
    """What is the same whatever the policy."""

    def __init__(
        self, model: Model, streams: Sequence[CellStream], seed: int, make_policy: Callable[[World], Policy],
    ) -> None:
        self.model = model
        self.engine = Engine()
        self.end_s = model.workload.hours * 3600
        self.warmup_s = model.workload.warmup_hours * 3600
        self.ledger = Ledger(self.warmup_s)
        self.pool = Pool(self.engine, self.ledger, model.hosts, seed)
        self.sessions = [Session(index, stream, seed) for index, stream in enumerate(streams)]
        # Of GPU cells run since the warm-up: seconds from Run to the first statement.
        self.starts_s = array("d")
        self.pressed = self.refusals = 0
        self.policy = make_policy(self)
        self._arrivals = random.Random(f"arrivals/{seed}")

    def run(self) -> None:
        """From the first session's arrival to the end."""
        self.policy.begin()
        for session in self.sessions:
            self.engine.at(self._arrivals.random() * self.model.workload.arrival_s, self._gap, session)
        self.engine.run(self.end_s)
        for session in self.sessions:
            if session.waits_since_s is not None:
                self._record(session.waits_since_s)

    def started(self, session: Session) -> None:
        """The session's cell runs its first statement, `messages_s` from now."""
        assert session.waits_since_s is not None, "a cell starts once"
        self._record(session.waits_since_s)
        session.waits_since_s = None
        self.engine.after(session.cell.run_s, self._ended, session)

    def refused(self, session: Session) -> None:
        """The run failed before it started; the person goes on to the next cell."""
        assert session.waits_since_s is not None
        self.refusals += 1
        if session.waits_since_s >= self.warmup_s:
            self.starts_s.append(self.end_s - session.waits_since_s)
        session.waits_since_s = None
        self._gap(session)

    def _record(self, pressed_s: float) -> None:
        if pressed_s >= self.warmup_s:
            self.starts_s.append(self.engine.now_s - pressed_s + self.model.mechanism.messages_s)

    def _gap(self, session: Session) -> None:
        now_s = self.engine.now_s
        session.number += 1
        session.pressed = False
        session.cell = session.stream.next(now_s)
        self.engine.at(now_s + session.cell.gap_s, self._press, session)
        self.policy.gap_began(session)

    def _press(self, session: Session) -> None:
        now_s = self.engine.now_s
        session.pressed = True
        if not session.cell.gpu:
            self.engine.at(now_s + session.cell.run_s, self._gap, session)
            return
        session.waits_since_s = now_s
        self.pressed += now_s >= self.warmup_s
        self.policy.run_pressed(session)

    def _ended(self, session: Session) -> None:
        self.policy.cell_ended(session)
        self._gap(session)
