"""Small facts of Jupyter messages and of this process's own output."""

from __future__ import annotations

import json
import sys
from typing import Any


def flush_streams() -> None:
    """What this process has printed itself comes before what a worker prints."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def message_type_of(parts: Any) -> str:
    """The type in a message's header; empty if it has none that can be read."""
    try:
        return str(json.loads(bytes(parts[1].buffer))["msg_type"])
    except (IndexError, ValueError, KeyError, TypeError, AttributeError):
        return ""
