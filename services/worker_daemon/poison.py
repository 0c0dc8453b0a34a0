"""Tells by a worker's error whether its zygote spoiled CUDA for it (import-cache study §3.1)."""

from __future__ import annotations

from looseleaf.spoiled_cuda import SPOILED_SIGNS


def is_poison(error: BaseException) -> bool:
    """Whether this, or what caused it, is such an error."""
    seen: BaseException | None = error
    while seen is not None:
        if any(sign in str(seen) for sign in SPOILED_SIGNS):
            return True
        seen = seen.__cause__
    return False
