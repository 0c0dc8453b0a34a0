"""What a cell does outside the notebook while it may still be taken to a worker: files, network, processes, threads.

Python tells of most of it by audit events. A hook cannot be taken away again: it is added with the first such cell, and
costs under 1 µs an event while none runs. What C code writes by itself is seen only of the functions named here.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from looseleaf.devices.touch import GpuTouch, TouchWatch, is_importing

# Effects that are told; one is enough to decide.
EFFECTS_MAX: Final = 5
_PATH_CHARS_MAX: Final = 80
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PROCESS: Final = "started a process"
_NETWORK: Final = "used the network"
_PLAIN: Final = {
    "subprocess.Popen": _PROCESS, "os.system": _PROCESS, "os.posix_spawn": _PROCESS, "os.spawn": _PROCESS,
    "os.exec": _PROCESS, "os.fork": _PROCESS, "os.forkpty": _PROCESS, "pty.spawn": _PROCESS,
    "socket.sendto": _NETWORK, "socket.sendmsg": _NETWORK, "socket.bind": _NETWORK, "socket.connect": _NETWORK,
    "os.kill": "sent a signal", "os.killpg": "sent a signal", "signal.pthread_kill": "sent a signal",
}  # fmt: skip
_ON_PATHS: Final = {
    "os.remove": "removed", "os.rename": "renamed", "os.mkdir": "made", "os.rmdir": "removed", "os.link": "linked",
    "os.symlink": "linked", "os.truncate": "cut", "os.chmod": "changed", "os.chown": "changed",
    "os.setxattr": "changed", "os.removexattr": "changed",
}  # fmt: skip
# What `threading` starts threads by, in one Python or another; only newer ones tell of it.
_STARTERS: Final = ("_start_new_thread", "_start_joinable_thread")
# Threads of these show progress, or are the kernel's own.
_QUIET: Final = frozenset({"tqdm", "IPython", "ipykernel", "looseleaf"})
# (module, function) that write files from C.
_WRITERS: Final = (
    ("torch.serialization", "_open_zipfile_writer"), ("safetensors.torch", "serialize_file"),
    ("safetensors.numpy", "serialize_file"), ("cv2", "imwrite"), ("pyarrow.parquet", "write_table"),
)  # fmt: skip


class Effects:
    """What one cell did outside, in its own thread. Once it touched a GPU a further effect is stopped by GpuTouch.

    `seen`: the first EFFECTS_MAX, as what the cell did. Imports have none: each process repeats them.
    """

    def __init__(self, touch: TouchWatch) -> None:
        self._touch = touch
        self.seen: list[str] = []

    def note(self, what: str) -> None:
        """The cell is about to have this effect."""
        if self._touch.used and self._touch.raises:
            raise GpuTouch(self._touch.used)
        if len(self.seen) < EFFECTS_MAX and what not in self.seen:
            self.seen.append(what)

    def tell(self, what: str) -> None:
        """As `note`, if it is of the cell's thread and of no import."""
        if self._touch.is_own_thread() and not is_importing():
            self.note(what)


_watched: Effects | None = None
_is_hooked = False


@contextmanager
def watched(effects: Effects) -> Iterator[None]:
    """Inside, what this process does outside is told to `effects`."""
    global _watched
    _add_hook()
    undo = [_telling(module, name, _written_to) for module, name in _WRITERS]
    undo += [_telling("threading", name, _started) for name in _STARTERS]
    _watched = effects
    try:
        yield
    finally:
        _watched = None
        for each in undo:
            each()


def note(what: str) -> None:
    """An effect that no audit event tells, such as a question to the person."""
    if (effects := _watched) is not None:
        effects.note(what)


def _add_hook() -> None:
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        _temporary()
        sys.addaudithook(_hear)


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if (effects := _watched) is not None and event in _TOLD:
        if what := effect_of(event, args):
            effects.tell(what)


def _telling(module: str, name: str, effect: Callable[[tuple[Any, ...]], str]) -> Callable[[], None]:
    """The function tells before it does `effect(arguments)`, until the result is called."""
    owner = sys.modules.get(module)
    original = getattr(owner, name, None)
    if original is None:
        return lambda: None

    @functools.wraps(original)
    def telling(*args: Any, **kwargs: Any) -> Any:
        effects = _watched
        if effects is not None and (what := effect((*args, *kwargs.values()))):
            effects.tell(what)
        return original(*args, **kwargs)

    setattr(owner, name, telling)
    return lambda: setattr(owner, name, original)


def _written_to(arguments: tuple[Any, ...]) -> str:
    paths = [value for value in arguments if isinstance(value, (str, os.PathLike))]
    return _on_path("wrote to", paths[0]) if paths else ""


def _started(arguments: tuple[Any, ...]) -> str:
    owner = type(getattr(arguments[0], "__self__", None)).__module__.partition(".")[0]
    return "" if owner in _QUIET else "started a thread"


def effect_of(event: str, args: tuple[Any, ...]) -> str:
    """What an audit event does outside the process, as what a cell did; empty if nothing lasting."""
    if event == "open":
        path, flags = args[0], args[2]
        return _on_path("wrote to", path) if isinstance(flags, int) and flags & _WRITING else ""
    if event in _ON_PATHS:
        return _on_path(_ON_PATHS[event], args[0])
    if event == "sqlite3.connect":
        return "" if args[0] == ":memory:" else _on_path("opened the database", args[0])
    if event.startswith("socket.") and getattr(args[0], "family", None) == getattr(socket, "AF_UNIX", None):
        return "spoke to another process"
    return _PLAIN.get(event, "")


_TOLD: Final = frozenset({"open", "sqlite3.connect", *_PLAIN, *_ON_PATHS})


@functools.cache
def _temporary() -> str:
    """What the paths of tempfile's files begin with. Finding out tries the folder: not in a hook that hears of it."""
    return os.path.join(tempfile.gettempdir(), tempfile.gettempprefix())


def _on_path(verb: str, path: Any) -> str:
    """`verb` with the path; empty for what outlives nothing: devices, temporary files, an open file's number."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""
    text = os.fsdecode(path)
    # A folder is opened for writing only to make a nameless file in it.
    nameless = text == os.path.dirname(_temporary())
    if nameless or text == os.devnull or text.startswith((_temporary(), "/proc/")):
        return ""
    return f"{verb} {text if len(text) <= _PATH_CHARS_MAX else '…' + text[-_PATH_CHARS_MAX:]!r}"
