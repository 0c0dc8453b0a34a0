"""Hosts ordered by a key that changes: the first one that will do, without looking at all."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

from looseleaf.ids import HostId


class BestHosts:
    """A heap whose outdated entries are dropped when they come up. Keys of all hosts compare with each other."""

    def __init__(self) -> None:
        self._keys: dict[HostId, Any] = {}
        self._heap: list[tuple[Any, HostId]] = []

    def __len__(self) -> int:
        return len(self._keys)

    def put(self, host_id: HostId, key: Any) -> None:
        """Sets a host's key, None to leave it out."""
        if self._keys.get(host_id) == key:
            return
        if key is None:
            del self._keys[host_id]
            return
        self._keys[host_id] = key
        heapq.heappush(self._heap, (key, host_id))
        if len(self._heap) > 4 * len(self._keys) + 64:
            self._heap = [(key, host_id) for host_id, key in self._keys.items()]
            heapq.heapify(self._heap)

    def first(self, accept: Callable[[HostId], bool]) -> HostId | None:
        """The host with the least key, ties by id, of those that are accepted; None if there is none."""
        passed_over: list[tuple[Any, HostId]] = []
        found = None
        while self._heap:
            key, host_id = self._heap[0]
            if self._keys.get(host_id) != key or (passed_over and passed_over[-1] == self._heap[0]):
                heapq.heappop(self._heap)
            elif accept(host_id):
                found = host_id
                break
            else:
                passed_over.append(heapq.heappop(self._heap))
        for entry in passed_over:
            heapq.heappush(self._heap, entry)
        return found

    def take_up_to(self, key: Any) -> list[HostId]:
        """Leaves out all hosts whose key is at most `key`, and returns them."""
        taken = []
        while self._heap and self._heap[0][0] <= key:
            found, host_id = heapq.heappop(self._heap)
            if self._keys.get(host_id) == found:
                del self._keys[host_id]
                taken.append(host_id)
        return taken
