"""What must hold of the parts of the policy's state that one event can have touched: cheap enough after each event.

After an event that names nothing, such as a tick, these are all hosts and contexts. Now and then everything is looked
at (`whole_pool`).
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import cache
from typing import Any

from looseleaf.ids import HostId, LeaseId
from looseleaf.services.scheduler.core import actions as act
from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState
from looseleaf.services.scheduler.core.state import State
from tests.services.scheduler.core.whole_pool import (
    check_contexts,
    check_index,
    check_placement,
    check_room,
    check_table,
)

# Events between two looks at everything, and between two looks at what the index of rooms says of what was touched.
WHOLE_EVERY, INDEX_EVERY = 256, 16
_IDS = ("host_id", "session_id", "execution_id")
_PARTS = ("lease", "record", "report")


class Checks:
    """What must hold after each event of one world."""

    def __init__(self) -> None:
        # Leases that were asked back: a cell may have begun under one, and then it stands beside that of its session's
        # next cell.
        self._asked_back: set[LeaseId] = set()
        # Where the prepares go that are under way.
        self._ordered_on: dict[str, HostId] = {}

    def check(self, state: State, event: ev.Event, actions: Iterable[act.Action], now_s: float) -> None:
        """After an event, with what it led to: raises AssertionError if something does not hold."""
        touched = _Touched(state)
        touched.add(event)
        index_due = state.number % INDEX_EVERY == 0
        if isinstance(event, ev.WorkerPrepared | ev.PreparationFailed):
            # The only events that change a worker whose session a daemon need not name.
            index_due = True
            touched.add_host(self._ordered_on.pop(event.request_id, None))
        if not touched.any:
            # A tick, mostly: whatever there is may have changed.
            index_due = True
            for host in state.hosts:
                touched.add_host(host.host_id)
            check_contexts(state, now_s)
        for action in actions:
            touched.add(action)
            if isinstance(action, act.RevokeLease):
                self._asked_back.add(action.lease_id)
            elif isinstance(action, act.PrepareWorker):
                self._ordered_on[action.request_id] = action.host_id
        touched.check_leases(self._asked_back)
        touched.check_executions()
        if index_due:
            touched.check_index(now_s)
        if state.number % WHOLE_EVERY == 0:
            check_table(state)
            check_contexts(state, now_s)
            check_index(state, now_s)


@cache
def _names(kind: Any) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Which ids a kind of event, action or part has, which parts that have some, and whether it is about a lease."""
    fields = getattr(kind, "__dataclass_fields__", {})
    names, parts = (tuple(name for name in all_ if name in fields) for all_ in (_IDS, _PARTS))
    return names, parts, "lease_id" in fields and "session_id" not in fields


class _Touched:
    """Hosts, sessions and executions that an event or its actions name."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._hosts: set[HostId] = set()
        self._sessions: set[Any] = set()
        self._executions: set[Any] = set()
        self._ids: dict[str, set[Any]] = dict(zip(
            _IDS, (self._hosts, self._sessions, self._executions), strict=True))

    @property
    def any(self) -> bool:
        """True if something is named so far."""
        return bool(self._hosts or self._sessions or self._executions)

    def add_host(self, host_id: HostId | None) -> None:
        """Takes in a host that was found otherwise."""
        if host_id is not None:
            self._hosts.add(host_id)

    def add(self, named: Any) -> None:
        """Takes in what an event or an action names, its lease, record or report included."""
        kind: Any = type(named)
        names, parts, of_a_lease = _names(kind)
        for name in names:
            self._ids[name].add(getattr(named, name))
        for name in parts:
            self.add(getattr(named, name))
        if of_a_lease and (entry := self._state.leases.get(named.lease_id)) is not None:
            self.add(entry.lease)

    def check_leases(self, asked_back: Set[LeaseId]) -> None:
        """One owner per GPU of these hosts, one valid lease per session and execution, none of an older epoch.

        A session has no second one unless the first was asked back, or comes from an earlier life.
        """
        for host_id in self._hosts:
            entries = self._state.leases.on_host(host_id)
            gpus = [index for entry in entries for index in entry.lease.gpu_indices]
            assert len(set(gpus)) == len(gpus), "a GPU is leased twice"
            assert set(gpus) == self._state.leases.taken(host_id), "a GPU without a lease counts as taken, or one with"
            self._sessions.update(entry.lease.session_id for entry in entries)
            host = self._state.hosts.get(host_id)
            assert not entries or (host is not None and host.alive), "a dead host has leases"
        for session_id in self._sessions:
            entries = [entry for entry in self._state.leases.of_session(session_id) if entry.valid]
            own = [entry for entry in entries if not entry.adopted and entry.lease.lease_id not in asked_back]
            assert len(own) <= 1, "two valid leases for one session"
            valid = [entry.lease for entry in entries]
            assert len({lease.execution_id for lease in valid}) == len(valid), "two valid leases for one execution"
            epoch = self._state.sessions.epoch(session_id)
            assert all(lease.epoch >= epoch for lease in valid), "a valid lease is fenced"
            self._executions.update(lease.execution_id for lease in valid)

    def check_executions(self) -> None:
        """Each of these waits, is out under a lease, or has ended."""
        for execution_id in self._executions:
            record = self._state.journal.get(execution_id)
            waits = execution_id in self._state.queue
            assert not waits or execution_id in self._state.runs
            if record is None or record.state.ended:
                assert not waits, "a run waits that has ended"
            elif record.state is not ExecutionState.PENDING:
                assert record.lease is not None
                assert self._state.leases.get(record.lease.lease_id) is not None, "an execution is out without a lease"

    def check_index(self, now_s: float) -> None:
        """The index has these hosts' rooms as they are, and leads the run whose turn this is to its best placement."""
        self._state.rooms.refresh(now_s)
        for host_id in self._hosts:
            host = self._state.hosts.get(host_id)
            if host is not None and host.gpu_count:
                check_room(self._state, host, now_s)
        runs = list(self._state.runs)
        if runs:
            check_placement(self._state, runs[self._state.number // INDEX_EVERY % len(runs)], now_s)
