"""Where a worker's own log goes: never to fd 2, which is the person's output."""

from __future__ import annotations

import logging
import os
from typing import Any

from looseleaf.worker.log_format import LogFormat


class _DaemonLog(logging.StreamHandler[Any]):
    def handleError(self, record: logging.LogRecord) -> None:
        """A daemon that is gone reads no log; by default a traceback would go to the person's stderr."""


def worker_logger() -> logging.Logger:
    """Our own logger as workers have it, without a place to write to."""
    logger = logging.getLogger("looseleaf")
    if logger.level != logging.WARNING:
        logger.setLevel(logging.WARNING)
    logger.propagate = False
    return logger


def log_to(fd: int) -> None:
    """Our own log goes to the daemon's stderr: fd 2 is the person's output from now on."""
    handler = _DaemonLog(os.fdopen(fd, "w", buffering=1, closefd=False))
    handler.setFormatter(LogFormat())
    worker_logger().addHandler(handler)
