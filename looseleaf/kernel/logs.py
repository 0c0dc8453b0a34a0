"""The kernel's own log: a file, or nothing. Never stdout or stderr, which are the notebook's output."""

from __future__ import annotations

import logging
import logging.handlers
import os
from pathlib import Path
from typing import Final

from looseleaf.kernel_config import KernelConfig

LOG_BYTES_MAX: Final = 4 << 20
LOGS_KEPT: Final = 1


def log_to_file(config: KernelConfig) -> None:
    """Sends LooseLeaf's own log to `kernel-<pid>.log` in LOOSELEAF_LOG_DIR, else in the run folder's `logs`.

    The file is made by the first message. Without a folder that can be written nothing is logged.
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
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
    logger.addHandler(handler)


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
