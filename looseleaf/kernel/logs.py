"""The kernel's own log: a file, or nothing. Never stdout or stderr, which are the notebook's output."""

from __future__ import annotations

import logging
import logging.handlers
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from looseleaf.kernel_config import KernelConfig

LOG_BYTES_MAX: Final = 4 << 20
LOGS_KEPT: Final = 1

# Ids by what they are of, as the services name them in their logs; an empty one is left out.
Ids = Callable[[], Mapping[str, str]]


def log_to_file(config: KernelConfig, ids: Ids = dict) -> None:
    """Sends LooseLeaf's own log to `kernel-<pid>.log` in LOOSELEAF_LOG_DIR, else in the run folder's `logs`.

    The file is made by the first message; each ends with what `ids()` gives then, on whichever thread. Without a folder
    that can be written nothing is logged.
    """
    logger = logging.getLogger("looseleaf")
    logger.propagate = False
    logger.handlers.clear()
    logger.setLevel(config.log_level.upper())
    folder = _folder(config)
    if folder is None:
        logger.addHandler(logging.NullHandler())
        return
    file = folder / f"kernel-{os.getpid()}.log"
    handler = _QuietFile(
        file, maxBytes=LOG_BYTES_MAX, backupCount=LOGS_KEPT, delay=True, encoding="utf-8"
    )
    handler.setFormatter(_WithIds(ids))
    logger.addHandler(handler)


class _WithIds(logging.Formatter):
    """A line for people and for `grep`: the message, then the ids as `key=value`."""

    def __init__(self, ids: Ids) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")
        self._ids = ids

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Without the ids that the message has itself."""
        line = super().formatMessage(record)
        told = (f"{key}={value}" for key, value in self._ids().items() if value)
        return " ".join([line, *(each for each in told if each not in record.message)])


class _QuietFile(logging.handlers.RotatingFileHandler):
    """A log file that can be lost: a full disk or a removed folder is no news for the notebook."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Drops the message; the default writes to stderr."""


def _folder(config: KernelConfig) -> Path | None:
    chosen = os.environ.get("LOOSELEAF_LOG_DIR")
    folder = Path(chosen) if chosen else Path(config.run_dir) / "logs"
    # A run folder that is not there belongs to no cluster; making one would only litter.
    if not chosen and not folder.parent.is_dir():
        return None
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    return folder if os.access(folder, os.W_OK) else None
