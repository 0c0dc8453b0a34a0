"""What stands behind `%%gpu`: how many GPUs, how much memory, and how long the GPU process is kept afterwards."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from typing import Any, Final

# The most GPUs that one cell may ask for.
GPU_COUNT_MAX: Final = 64
# Whoever keeps a GPU keeps it from others.
KEEP_S_MAX: Final = 600.0
MEMORY_BYTES_MAX: Final = 1 << 50

HELP: Final = "%%gpu [N] [--mem 20GB] [--keep 60s]"
_COUNT = re.compile(r"[0-9]{1,18}")
_TIME = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(s|m|min|h)?")
_SECONDS: Final = {"s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}
_MEMORY = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,3})?)\s*([kmgt]?)(i?b)?", re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True)
class GpuLine:
    """`count`: at least 1. `memory_bytes`: of all its GPUs together, 0 if not said. `keep_s`: None if not said.

    `problem`: what of the line means nothing, for people; it counts as not said.
    """

    count: int = 1
    memory_bytes: int = 0
    keep_s: float | None = None
    problem: str = ""


def parse_gpu_line(line: str) -> GpuLine:
    """What `line`, the rest of the line behind `%%gpu`, asks for; never raises."""
    count, memory_bytes, keep_s, problem = 1, 0, None, ""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        return GpuLine(problem=str(error))
    while words:
        name, equals, value = words.pop(0).partition("=")
        if not name.startswith("-") and not equals:
            name, value = "--count", name
        elif not equals and words:
            value = words.pop(0)
        if name in ("--count", "-n") and _COUNT.fullmatch(value):
            count = min(max(int(value), 1), GPU_COUNT_MAX)
        elif name == "--mem" and (memory := _memory(value)):
            memory_bytes = memory
        elif name == "--keep" and (seconds := seconds_of(value)) is not None:
            keep_s = seconds
        else:
            problem = problem or f"{name} {value}".strip().removeprefix("--count ")
    return GpuLine(count, memory_bytes, keep_s, problem)


def seconds_of(value: Any) -> float | None:
    """A time as people write it, such as 90, "90s", "2m" or "1h"; at most `KEEP_S_MAX`. None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    found = _TIME.fullmatch(value.strip() if isinstance(value, str) else format(value, "f").rstrip("0").rstrip("."))
    return None if found is None else min(float(found[1]) * _SECONDS[found[2] or "s"], KEEP_S_MAX)


def _memory(text: str) -> int:
    """Bytes; 0 if it is no size. "GB" and "GiB" both mean 2^30, as GPUs are sold."""
    found = _MEMORY.fullmatch(text.strip())
    if found is None:
        return 0
    return min(int(float(found[1]) * 1024 ** _POWERS[found[2].lower()]), MEMORY_BYTES_MAX)
