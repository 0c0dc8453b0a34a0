"""Memory of a host's GPUs that is in use by others than our workers, as far as measurements tell.

A measurement counts everything, our workers too, and is some seconds old. So only on a GPU where none of ours has been
for a while is it all somebody else's; elsewhere others use no more than was measured, nor than was known before.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence


class ForeignMemory:
    """Of one host."""

    def __init__(self) -> None:
        self._bytes: dict[int, int] = {}
        # On the GPU where others use most.
        self.most_bytes = 0
        self._left_since_s: dict[int, float] = {}

    def on(self, index: int) -> int:
        """Bytes on one GPU, 0 if nothing is known."""
        return self._bytes.get(index, 0)

    def measured(self, used_bytes: Sequence[int], ours: Collection[int], now_s: float, settle_s: float) -> bool:
        """Takes in a measurement, one number a GPU; `ours`: GPUs where our workers are or may be. True: a change.

        What is in use `settle_s` after the last of ours left is foreign.
        """
        before = dict(self._bytes)
        for index, used in enumerate(used_bytes):
            if index in ours:
                self._left_since_s.pop(index, None)
            settled = index not in ours and now_s - self._left_since_s.setdefault(index, now_s) >= settle_s
            self._bytes[index] = used if settled else min(used, self._bytes.get(index, 0))
        for index in [index for index in self._bytes if index >= len(used_bytes)]:
            del self._bytes[index]
        self.most_bytes = max(self._bytes.values(), default=0)
        return before != self._bytes
