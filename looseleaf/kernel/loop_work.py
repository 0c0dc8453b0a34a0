"""What a cell leaves in the notebook's event loop: tasks and calls that run after it, in the kernel's own process."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Final

# Packages whose tasks and calls serve the kernel. asyncio's own calls belong to tasks, which are counted.
_OWN: Final = frozenset({"ipykernel", "IPython", "jupyter_client", "looseleaf", "tornado", "zmq"})
_OWN_CALLS: Final = _OWN | {"asyncio", "_asyncio"}
_WORDS: Final = 60


class LoopWork:
    """What of a person's waits in `loop` now; `new` tells what came since. On the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        # Held: no id is used again meanwhile.
        self._before = {id(each): each for each in [*self._tasks(), *self._calls()]}

    def new(self) -> str:
        """One that came since and has not run, in words; empty if there is none."""
        for task in self._tasks():
            if id(task) not in self._before:
                return f"the task {_name(task.get_coro())}"
        for call in self._calls():
            if id(call) not in self._before:
                return f"a call of {_name(_called(call))}"
        return ""

    def _tasks(self) -> list[asyncio.Task[Any]]:
        return [task for task in asyncio.all_tasks(self._loop) if _package(_module_of(task.get_coro())) not in _OWN]

    def _calls(self) -> list[asyncio.Handle]:
        """Those of asyncio's own loops; others do not tell of them."""
        # A copy in one step: other threads add to it.
        ready, timers = getattr(self._loop, "_ready", None), getattr(self._loop, "_scheduled", None)
        found = [*(ready.copy() if ready is not None else ()), *(timers or ())]
        return [call for call in found if not call.cancelled() and _is_the_persons(_called(call))]


def _called(call: asyncio.Handle) -> Any:
    callback: Any = getattr(call, "_callback", None)
    while isinstance(callback, functools.partial):
        callback = callback.func
    return callback


def _is_the_persons(callback: Any) -> bool:
    if callback is None or isinstance(getattr(callback, "__self__", None), asyncio.Future):
        return False
    return _package(getattr(callback, "__module__", None)) not in _OWN_CALLS


def _module_of(coroutine: Any) -> Any:
    frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
    return frame.f_globals.get("__name__") if frame is not None else None


def _package(module: Any) -> str:
    return str(module or "").partition(".")[0]


def _name(value: Any) -> str:
    return f"`{str(getattr(value, '__qualname__', None) or type(value).__name__)[:_WORDS]}`"
