"""The scheduler, which besides notes when each request for a preparation comes: `noting_scheduler.py FILE FLAGS...`.

One line each in FILE, the time of the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

# In the data folder of the benchmarks' cluster.
PREPARATIONS_FILE = "preparations"


def note_preparations(path: Path) -> None:
    """From now on; a line of a few bytes is written at once."""
    from looseleaf.services.scheduler.servicer import SchedulerServicer

    original = SchedulerServicer.RequestPreparation

    async def noting(self: SchedulerServicer, request: Any, context: Any) -> Any:
        came_s = time.perf_counter()
        with path.open("a") as file:
            file.write(f"{came_s}\n")
        return await original(self, request, context)

    SchedulerServicer.RequestPreparation = noting  # type: ignore[method-assign]


def noted_since(path: Path, began_s: float) -> list[float]:
    """When requests came after `began_s`, in order."""
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return []
    return [came_s for line in lines if (came_s := float(line)) >= began_s]


if __name__ == "__main__":
    from looseleaf.services.scheduler import server

    note_preparations(Path(sys.argv[1]))
    sys.exit(server.main(sys.argv[2:]))
