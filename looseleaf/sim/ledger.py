"""GPU-seconds by what the GPUs did: each provisioned GPU is in exactly one state at each instant (design §6)."""

from __future__ import annotations

from enum import IntEnum


class GpuState(IntEnum):
    """What a provisioned GPU is doing."""

    # Its host is being started.
    BOOT = 0
    # Nothing stands on it.
    IDLE = 1
    # Leased to a cell that was run and has not started.
    PREPARING = 2
    # A worker stands on it whose Run has not come.
    SPECULATIVE = 3
    RUNNING = 4
    SAVING = 5
    # A worker that ran and was saved stands on it, and gives way to anybody.
    WARM = 6


class Ledger:
    """Integrals of GPU counts over time from `since_s` on; their sum is the provisioned GPU time."""

    def __init__(self, since_s: float) -> None:
        self._since_s = since_s
        self._counts = [0] * len(GpuState)
        self._areas = [0.0] * len(GpuState)
        self._last_s = [since_s] * len(GpuState)

    def count(self, state: GpuState) -> int:
        """GPUs in a state now."""
        return self._counts[state]

    @property
    def provisioned(self) -> int:
        """All GPUs that are paid for now."""
        return sum(self._counts)

    def add(self, state: GpuState, gpus: int, now_s: float) -> None:
        """`gpus` more, or fewer if negative, are in `state` from `now_s` on."""
        last_s = self._last_s[state]
        if now_s > last_s:
            self._areas[state] += self._counts[state] * (now_s - last_s)
            self._last_s[state] = now_s
        self._counts[state] += gpus
        assert self._counts[state] >= 0, f"fewer than no GPUs are {state.name}"

    def move(self, source: GpuState, target: GpuState, gpus: int, now_s: float) -> None:
        """`gpus` go from one state to another."""
        if source is not target:
            self.add(source, -gpus, now_s)
            self.add(target, gpus, now_s)

    def gpu_seconds(self, now_s: float) -> dict[GpuState, float]:
        """GPU-seconds of each state from `since_s` to `now_s`."""
        for state in GpuState:
            self.add(state, 0, now_s)
        return dict(zip(GpuState, self._areas, strict=True))
