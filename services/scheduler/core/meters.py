"""Figures over time that provisioning rests on: the peak of demand, and where provisioned GPU-seconds went."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

GPU_STATES: Final = ("boot", "idle", "preparing", "speculative", "running", "saving", "warm")


class Peak:
    """The highest value of the last `window_s`."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        # Falling values: each is the highest of the times after the one before it.
        self._values: deque[tuple[float, float]] = deque()

    def add(self, value: float, now_s: float) -> float:
        """Takes in the value at `now_s`; returns the peak."""
        while self._values and self._values[-1][1] <= value:
            self._values.pop()
        self._values.append((now_s, value))
        while now_s - self._values[0][0] > self._window_s:
            self._values.popleft()
        return self._values[0][1]


class ProvisionedTime:
    """GPU-seconds by state since this process began; time between two ticks counts as it was at the second."""

    def __init__(self) -> None:
        self._gpu_s = dict.fromkeys(GPU_STATES, 0.0)
        self._looked_at_s: float | None = None

    @property
    def gpu_s(self) -> Mapping[str, float]:
        """GPU-seconds of each of GPU_STATES."""
        return MappingProxyType(self._gpu_s)

    def sample(self, gpus: Mapping[str, int], now_s: float) -> None:
        """Counts the time since the last sample."""
        if self._looked_at_s is not None:
            passed_s = max(0.0, now_s - self._looked_at_s)
            for name, count in gpus.items():
                self._gpu_s[name] += count * passed_s
        self._looked_at_s = now_s
