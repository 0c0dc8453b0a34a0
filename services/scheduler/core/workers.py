"""A host's workers, with those of a session, those on GPUs and the count of speculative ones at hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, ValuesView
from typing import Protocol, TypeVar, overload

from looseleaf.ids import SessionId, WorkerId


class Filed(Protocol):
    """What of a worker is looked up by."""

    worker_id: WorkerId
    session_id: SessionId
    gpu_indices: tuple[int, ...]

    @property
    def speculative(self) -> bool:
        """Nothing ever ran on it."""


W = TypeVar("W", bound=Filed)
T = TypeVar("T")


def _nobody_follows(_session_id: SessionId, _present: bool) -> None: ...


class Workers(MutableMapping[WorkerId, W]):
    """Workers by id, in the order in which they came.

    Who changes one's session, GPUs, stage or whether it ever ran calls `refile`; `HostTable.touch` does.
    """

    def __init__(self) -> None:
        self._all: dict[WorkerId, W] = {}
        # The order in which they came.
        self._numbers: dict[WorkerId, int] = {}
        self._came = 0
        self._filed: dict[WorkerId, tuple[SessionId, bool, bool]] = {}
        self._of_session: dict[SessionId, dict[WorkerId, W]] = {}
        self._bound: dict[WorkerId, W] = {}
        self._follow: Callable[[SessionId, bool], None] = _nobody_follows
        # Prepared and never run.
        self.speculative = 0

    def follow(self, follow: Callable[[SessionId, bool], None]) -> None:
        """Calls `follow(session_id, present)` when the first worker of a session comes and when the last one goes."""
        for session_id in self._of_session:
            self._follow(session_id, False)
            follow(session_id, True)
        self._follow = follow

    def refile(self, worker: W) -> bool:
        """A worker changed; nothing happens if it is not here. True if it was bound to GPUs or is not any more."""
        before = self._filed.get(worker.worker_id)
        now = (worker.session_id, bool(worker.gpu_indices), worker.speculative)
        if before is None or before == now:
            return False
        self._unfile(worker)
        self._file(worker, now)
        return before[1] != now[1]

    def of_session(self, session_id: SessionId) -> list[W]:
        """Workers of one session, in the order in which they came, whatever they were filed as since."""
        found = self._of_session.get(session_id)
        if found is None:
            return []
        if len(found) == 1:
            return list(found.values())
        return sorted(found.values(), key=lambda worker: self._numbers[worker.worker_id])

    def bound(self) -> ValuesView[W]:
        """Workers that are bound to GPUs."""
        return self._bound.values()

    @overload
    def get(self, key: WorkerId, /) -> W | None: ...
    @overload
    def get(self, key: WorkerId, /, default: W | T) -> W | T: ...
    def get(self, key: WorkerId, /, default: W | T | None = None) -> W | T | None:
        """The worker, or `default`; the inherited one looks twice and raises in between."""
        return self._all.get(key, default)

    def __getitem__(self, worker_id: WorkerId) -> W:
        return self._all[worker_id]

    def __setitem__(self, worker_id: WorkerId, worker: W) -> None:
        if worker_id in self._all:
            del self[worker_id]
        self._all[worker_id] = worker
        self._came += 1
        self._numbers[worker_id] = self._came
        self._file(worker, (worker.session_id, bool(worker.gpu_indices), worker.speculative))

    def __delitem__(self, worker_id: WorkerId) -> None:
        self._unfile(self._all.pop(worker_id))
        del self._numbers[worker_id]

    def __iter__(self) -> Iterator[WorkerId]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._all

    def values(self) -> ValuesView[W]:
        """Workers in the order in which they came."""
        return self._all.values()

    def _file(self, worker: W, as_what: tuple[SessionId, bool, bool]) -> None:
        session_id, bound, speculative = self._filed[worker.worker_id] = as_what
        of_session = self._of_session.get(session_id)
        if of_session is None:
            of_session = self._of_session[session_id] = {}
            self._follow(session_id, True)
        of_session[worker.worker_id] = worker
        if bound:
            self._bound[worker.worker_id] = worker
        self.speculative += speculative

    def _unfile(self, worker: W) -> None:
        session_id, bound, speculative = self._filed.pop(worker.worker_id)
        of_session = self._of_session[session_id]
        del of_session[worker.worker_id]
        if not of_session:
            del self._of_session[session_id]
            self._follow(session_id, False)
        if bound:
            del self._bound[worker.worker_id]
        self.speculative -= speculative
