"""How much a cell held on GPUs at most, as torch counts it; changes nothing that a cell could see (design §4)."""

from __future__ import annotations

import sys
from typing import Any

from looseleaf import devices


class PeakBytes:
    """The peaks of one worker's cells. torch has one peak for all of them, which only a person may reset."""

    def __init__(self) -> None:
        self._before = 0

    def of_cell(self, *, touched: bool) -> int:
        """Bytes of the cell that has just ended, on all devices together; 0 if it `touched` none.

        If an earlier cell of this worker held more, what is held now: a lower bound.
        """
        if not touched:
            return 0
        held, highest = sum(devices.resident_bytes().values()), _highest_bytes()
        found = max(held, highest) if highest != self._before else held
        self._before = highest
        return found


def _highest_bytes() -> int:
    torch: Any = sys.modules.get("torch")
    # One that another thread is importing lacks names still, and has laid nothing on a GPU.
    if not hasattr(torch, "cuda"):
        return 0
    return sum(int(torch.cuda.max_memory_allocated(index)) for index in range(torch.cuda.device_count()))
