"""Prepares that daemons work on; one per session."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from looseleaf.ids import Epoch, HostId, SessionId, WorkerId
from looseleaf.services.scheduler.core.events import PreparationRequested
from looseleaf.services.scheduler.core.facts import RecipeFacts


@dataclass(slots=True)
class Preparation:
    """A prepare that a daemon works on. `successor`: the newest edit that came meanwhile."""

    request_id: str
    session_id: SessionId
    epoch: Epoch
    recipe: RecipeFacts
    host_id: HostId
    incarnation: str
    # Empty for a worker that is yet to be forked.
    worker_id: WorkerId
    # Where its data are to lie, if they go to a device, or else where a context is opened.
    gpu_indices: tuple[int, ...] = ()
    context_gpus: tuple[int, ...] = ()
    waiters: list[str] = field(default_factory=list)
    successor: PreparationRequested | None = None
    # The worker leaves the GPUs for which it waited.
    leaves_gpus: bool = False


class PreparationTable:
    """Prepares under way by session, request and host. `changed` gets the hosts whose prepares changed."""

    def __init__(self, changed: set[HostId]) -> None:
        self._changed = changed
        self._by_session: dict[SessionId, Preparation] = {}
        self._by_request: dict[str, Preparation] = {}
        self._on_host: dict[HostId, dict[SessionId, Preparation]] = {}
        self._left: dict[HostId, set[int]] = {}

    def __len__(self) -> int:
        return len(self._by_session)

    def __iter__(self) -> Iterator[Preparation]:
        return iter(list(self._by_session.values()))

    def get(self, session_id: SessionId) -> Preparation | None:
        """The session's prepare, or None."""
        return self._by_session.get(session_id)

    def add(self, preparation: Preparation) -> None:
        """A prepare begins; its session must have none."""
        if preparation.session_id in self._by_session:
            raise AssertionError(f"{preparation.session_id} has a prepare under way already")
        self._by_session[preparation.session_id] = preparation
        self._by_request[preparation.request_id] = preparation
        self._on_host.setdefault(preparation.host_id, {})[preparation.session_id] = preparation
        self._changed.add(preparation.host_id)

    def take(self, request_id: str) -> Preparation | None:
        """Drops the prepare that this request ordered and returns it; None if it came to nothing before."""
        preparation = self._by_request.pop(request_id, None)
        if preparation is not None:
            del self._by_session[preparation.session_id]
            on_host = self._on_host[preparation.host_id]
            del on_host[preparation.session_id]
            if not on_host:
                del self._on_host[preparation.host_id]
            self._changed.add(preparation.host_id)
            gpus = preparation.gpu_indices or preparation.context_gpus
            if gpus:
                self._left.setdefault(preparation.host_id, set()).update(gpus)
        return preparation

    def take_left(self, host_id: HostId) -> set[int]:
        """GPUs of a host on which one ended since this was asked last."""
        return self._left.pop(host_id, set())

    def on_host(self, host_id: HostId) -> list[Preparation]:
        """Prepares on one host."""
        return list(self._on_host.get(host_id, {}).values())

    def new_on_host(self, host_id: HostId) -> int:
        """How many of them fork a new worker."""
        return sum(1 for preparation in self._on_host.get(host_id, {}).values() if not preparation.worker_id)

    def sessions(self) -> set[SessionId]:
        """Sessions with a prepare under way."""
        return set(self._by_session)
