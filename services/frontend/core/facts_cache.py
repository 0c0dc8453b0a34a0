"""Facts of the newest manifests, bounded by the number of variables that they describe."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field

from looseleaf.ids import SessionId
from looseleaf.recipe import NameFacts

# Variables over all sessions: about 1 KiB each.
CACHED_NAMES_MAX = 200_000


@dataclass(frozen=True, slots=True)
class StateFacts:
    """What is recorded of a session at one version; a version number means one state only within an epoch."""

    epoch: int = 0
    version: int = 0
    names: Mapping[str, NameFacts] = field(default_factory=dict)


class FactsCache:
    """The last StateFacts of each session, least recently used first."""

    def __init__(self, names_max: int = CACHED_NAMES_MAX) -> None:
        self._names_max = names_max
        self._facts: OrderedDict[SessionId, StateFacts] = OrderedDict()
        self._names = 0

    def get(self, session_id: SessionId) -> StateFacts | None:
        """What is known of the session, if it is still here."""
        found = self._facts.get(session_id)
        if found is not None:
            self._facts.move_to_end(session_id)
        return found

    def put(self, session_id: SessionId, facts: StateFacts) -> None:
        """Replaces what is known of the session; facts too large for the cache are not kept."""
        self.drop(session_id)
        if len(facts.names) > self._names_max:
            return
        self._facts[session_id] = facts
        self._names += len(facts.names)
        while self._names > self._names_max:
            _, oldest = self._facts.popitem(last=False)
            self._names -= len(oldest.names)

    def drop(self, session_id: SessionId) -> None:
        """Forgets the session."""
        old = self._facts.pop(session_id, None)
        if old is not None:
            self._names -= len(old.names)
