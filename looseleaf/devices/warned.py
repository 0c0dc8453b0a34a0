"""Warnings of torch name the line of the person's code, not the line of ours through which the call went.

Loads no torch.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from looseleaf.devices.frames import dispatches

_OURS = os.path.dirname(__file__) + os.sep


class WarningPlaces:
    """While it is on, a warning that would name a line of this package names the line that called it.

    Whether it was given at that line before, and which filters count there, is asked again for that place.
    """

    def __init__(self) -> None:
        self._show: Callable[[warnings.WarningMessage], None] | None = None

    def start(self) -> None:
        """Python calls `_showwarnmsg` for each warning, whatever `showwarning` and `catch_warnings` are then."""
        if self._show is None:
            self._show = warnings._showwarnmsg  # type: ignore[attr-defined]
            warnings._showwarnmsg = self._placed  # type: ignore[attr-defined]

    def stop(self) -> None:
        """As it was, unless somebody else took the place meanwhile."""
        if self._show is not None and warnings._showwarnmsg == self._placed:  # type: ignore[attr-defined]
            warnings._showwarnmsg = self._show  # type: ignore[attr-defined]
            self._show = None

    def _placed(self, message: warnings.WarningMessage) -> None:
        show = self._show
        assert show is not None
        caller = _caller(message.filename) if message.filename.startswith(_OURS) else None
        if caller is None:
            show(message)
            return
        names: dict[str, Any] = caller.f_globals
        warnings.warn_explicit(
            message.message if isinstance(message.message, Warning) else str(message.message),
            message.category, caller.f_code.co_filename, caller.f_lineno, names.get("__name__"),
            names.setdefault("__warningregistry__", {}), source=message.source,
        )  # fmt: skip


def _caller(filename: str) -> FrameType | None:
    """The frame that called into this package at the frame of `filename`; None if there is no such frame."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename != filename:
        frame = frame.f_back
    if frame is not None:
        _forget(frame)
    while frame is not None and frame.f_code.co_filename.startswith(_OURS):
        frame = frame.f_back
    if frame is not None and dispatches(frame):
        # The function of torch that asked it stands below us once more.
        dispatcher = frame.f_back
        frame = dispatcher.f_back if dispatcher is not None else None
    return frame


def _forget(frame: FrameType) -> None:
    """Our line may give the same warning again, for another caller."""
    registry = frame.f_globals.get("__warningregistry__")
    if registry is not None:
        version = registry.get("version")
        registry.clear()
        if version is not None:
            registry["version"] = version
