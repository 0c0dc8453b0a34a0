"""What torch and the CUDA runtime say in a process that was forked from one which had initialised the driver."""

from __future__ import annotations

from typing import Final

SPOILED_SIGNS: Final = (
    "re-initialize CUDA in forked", "CUDA error: initialization error", "cudaErrorInitializationError",
)
