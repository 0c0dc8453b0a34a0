"""How our own events in a worker become lines of the daemon's log: without a word of the person's code or values."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path
from typing import Any, Final

from looseleaf.errors import LooseLeafError

_OURS: Final = str(Path(__file__).parent.parent)


class LogFormat(logging.Formatter):
    """`LEVEL name message`; of an exception its type and our own frames, the text only if it is ours too.

    A save runs the person's `__reduce__` and `__del__`: their exceptions carry values, their frames carry cell text.
    """

    def __init__(self) -> None:
        super().__init__("%(levelname)s %(name)s %(message)s")

    def formatException(self, ei: Any) -> str:
        """One line for each frame of this package, then the exception."""
        kind, error, trace = ei
        frames = [frame for frame in traceback.extract_tb(trace, limit=-50) if frame.filename.startswith(_OURS)]
        lines = [f"  {Path(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in frames]
        return "\n".join([*lines, str(error) if isinstance(error, LooseLeafError) else kind.__name__])
