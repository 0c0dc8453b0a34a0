"""Taking our own frames out of a person's traceback: their cell and torch are what it should show.

Loads no torch.
"""

from __future__ import annotations

import os
from types import FrameType, TracebackType
from typing import Any

_OURS = os.path.dirname(__file__) + os.sep
_DISPATCHER = os.path.join("torch", "overrides.py")
# A chain of causes longer than this is cut here and shown as it is.
CAUSES_MAX = 64


def hide_device_frames(error: BaseException) -> None:
    """Remove the frames of this package from `error` and from all that it was raised from, in place.

    An error whose every frame is ours keeps them: it is our fault and must show where.
    """
    seen: set[int] = set()
    waiting = [error]
    while waiting and len(seen) < CAUSES_MAX:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        kept = _without_ours(one.__traceback__)
        if kept is not None:
            one.__traceback__ = kept
        waiting += [other for other in (one.__cause__, one.__context__) if other is not None]


def dispatches(frame: FrameType) -> bool:
    """Whether it is torch's own that hands a call to whoever overrides functions, which without us nobody does."""
    code = frame.f_code
    return code.co_name == "handle_torch_function" and code.co_filename.endswith(_DISPATCHER)


def hide_in_shell(shell: Any) -> None:
    """What the IPython shell shows of errors from now on, `hide_device_frames` has seen."""
    ask = shell._get_exc_info

    def answer(exc_tuple: Any = None) -> tuple[Any, Any, Any]:
        kind, error, trace = ask(exc_tuple)
        if isinstance(error, BaseException):
            own = trace is error.__traceback__
            hide_device_frames(error)
            trace = error.__traceback__ if own else trace
        return kind, error, trace

    shell._get_exc_info = answer


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    frames = []
    while traceback is not None:
        if not traceback.tb_frame.f_code.co_filename.startswith(_OURS):
            frames.append(traceback)
        elif len(frames) > 1 and dispatches(frames[-1].tb_frame):
            # The function of torch that asked it stands below us once more.
            del frames[-2:]
        traceback = traceback.tb_next
    if not frames:
        return None  # never raised, such as a cause that was made in the raise statement; or all ours
    for one, following in zip(frames, [*frames[1:], None], strict=True):
        one.tb_next = following
    return frames[0]
