"""What the session has on GPUs, beside what ipykernel tells of its process (`usage_request`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from looseleaf.kernel.session import KernelSession


class GpuUsage:
    """Adds `looseleaf` to usage replies: figures of the newest version and the last GPU cell, none measured now.

    `gpus`: of the pool, 0 without a cluster. `gpu_memory_bytes`: of each, 0 if not known. `saved_bytes`: of the session
    that live on GPUs when a cell needs them. `peak_bytes`: of the last GPU cell, None before the first.
    """

    def __init__(self, session: KernelSession) -> None:
        self._session = session
        self._peak_bytes: int | None = None

    def ran(self, saved: Mapping[str, Any] | None) -> None:
        """A GPU cell was saved."""
        peak = (saved or {}).get("peak_device_bytes")
        self._peak_bytes = peak if isinstance(peak, int) else self._peak_bytes

    def add(self, _request_id: str, kind: str, content: Any) -> None:
        """See outgoing.Watch."""
        if kind == "usage_reply":
            gpus, memory_bytes = self._session.pool
            content["looseleaf"] = {
                "gpus": gpus, "gpu_memory_bytes": memory_bytes, "saved_bytes": self._session.device_bytes(),
                "peak_bytes": self._peak_bytes,
            }  # fmt: skip
