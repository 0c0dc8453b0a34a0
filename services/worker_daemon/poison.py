"""Tells by a worker's error whether its zygote spoiled CUDA for it (import-cache study §3.1)."""

from __future__ import annotations

from typing import Final

# What torch and the CUDA runtime say in a process that was forked from one which had initialised the driver.
_SIGNS: Final = ("re-initialize CUDA in forked", "CUDA error: initialization error", "cudaErrorInitializationError")


def is_poison(error: BaseException) -> bool:
    """Whether this, or what caused it, is such an error."""
    seen: BaseException | None = error
    while seen is not None:
        if any(sign in str(seen) for sign in _SIGNS):
            return True
        seen = seen.__cause__
    return False
