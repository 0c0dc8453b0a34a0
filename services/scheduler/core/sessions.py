"""What is remembered of a session: its epoch, which fences older owners, and how often it runs GPU cells."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from looseleaf.ids import Epoch, SessionId


@dataclass(slots=True)
class Session:
    """One session. `frequency` is its decayed count of GPU cells at `frequency_at_s`."""

    epoch: Epoch
    frequency: float = 0.0
    frequency_at_s: float = 0.0
    # Whose it is, as its last request said.
    tenant: str = ""
    # GPU-seconds that its speculation may still waste; less than 0: it has wasted more.
    spare_gpu_s: float = 0.0
    # A new speculative worker only then, and the pause that led to it.
    fork_not_before_s: float = 0.0
    fork_pause_s: float = 0.0
    # No preparation opens a device for it before that.
    device_not_before_s: float = 0.0

    def count_run(self, now_s: float, half_life_s: float) -> float:
        """One more GPU cell; returns the decayed count."""
        self.frequency = self.frequency * 0.5 ** ((now_s - self.frequency_at_s) / half_life_s) + 1.0
        self.frequency_at_s = now_s
        return self.frequency


class SessionTable:
    """Sessions by last use; beyond `sessions_max` the longest unused one that is not needed is dropped."""

    def __init__(self, sessions_max: int, waste_burst_gpu_s: float = 0.0) -> None:
        self._sessions_max = sessions_max
        self._waste_burst_gpu_s = waste_burst_gpu_s
        self._sessions: OrderedDict[SessionId, Session] = OrderedDict()
        # Asked for several times an event: it is the last one already.
        self._last: tuple[SessionId, Session] | None = None

    def __len__(self) -> int:
        return len(self._sessions)

    def epoch(self, session_id: SessionId) -> Epoch:
        """The newest epoch that was seen, 0 if none."""
        session = self._sessions.get(session_id)
        return session.epoch if session else Epoch(0)

    def tenant(self, session_id: SessionId) -> str:
        """Whose it is, "" if that is not known."""
        session = self._sessions.get(session_id)
        return session.tenant if session else ""

    def touch(self, session_id: SessionId) -> Session:
        """The session, made if needed, as the one used last."""
        if self._last is not None and self._last[0] == session_id:
            return self._last[1]
        session = self._sessions.get(session_id)
        if session is None:
            session = self._sessions[session_id] = Session(Epoch(0), spare_gpu_s=self._waste_burst_gpu_s)
        self._sessions.move_to_end(session_id)
        self._last = (session_id, session)
        return session

    def prune(self, needed: Callable[[], set[SessionId]]) -> list[SessionId]:
        """Keeps the bound, beyond it only sessions that are `needed`. Returns those that were dropped."""
        if len(self._sessions) <= self._sessions_max:
            return []
        kept, dropped = needed(), []
        for session_id in list(self._sessions):
            if len(self._sessions) <= self._sessions_max:
                break
            if session_id not in kept:
                del self._sessions[session_id]
                self._last = None
                dropped.append(session_id)
        return dropped
