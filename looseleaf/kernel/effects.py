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
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import PurePath
from typing import Any, Final

from looseleaf.devices.hook import PostImportHook
from looseleaf.devices.touch import GpuTouch, TouchWatch, is_importing

# Effects that are told; one is enough to decide.
EFFECTS_MAX: Final = 5
# Temporary files and folders of one cell that are known as such; further ones count as any file.
TEMPORARY_MAX: Final = 256
_PATH_CHARS_MAX: Final = 80
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_PROCESS: Final = "started a process"
_NETWORK: Final = "used the network"
_PLAIN: Final = {
    "subprocess.Popen": _PROCESS, "os.system": _PROCESS, "os.posix_spawn": _PROCESS, "os.spawn": _PROCESS,
    "os.exec": _PROCESS, "os.fork": _PROCESS, "os.forkpty": _PROCESS, "pty.spawn": _PROCESS,
    "socket.sendto": _NETWORK, "socket.sendmsg": _NETWORK, "socket.bind": _NETWORK, "socket.connect": _NETWORK,
    # A request by a connection that is open already is no event of a socket.
    "http.client.send": _NETWORK,
    "os.kill": "sent a signal", "os.killpg": "sent a signal", "signal.pthread_kill": "sent a signal",
}  # fmt: skip
_ON_PATHS: Final = {
    "os.remove": "removed", "os.rename": "renamed", "os.mkdir": "made", "os.rmdir": "removed", "os.link": "linked",
    "os.symlink": "linked", "os.truncate": "cut", "os.chmod": "changed", "os.chown": "changed",
    "os.setxattr": "changed", "os.removexattr": "changed",
}  # fmt: skip
# `tempfile` tells of each name before it uses it.
_TEMPORARY: Final = frozenset({"tempfile.mkstemp", "tempfile.mkdtemp"})
# Their second argument is -1 or the number of an open folder that the path begins in.
_WITH_FOLDER: Final = frozenset({"os.remove", "os.rmdir"})
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
        self._temporary: set[str] = set()

    def made_temporary(self, path: Any) -> None:
        """`tempfile` is about to make this file or folder, in any thread: what becomes of it is no effect."""
        if len(self._temporary) < TEMPORARY_MAX and isinstance(path, (str, bytes)):
            self._temporary.add(os.fsdecode(path))

    def is_temporary(self, path: str) -> bool:
        """Whether `tempfile` made it for this cell, or the folder that it is in."""
        return bool(self._temporary) and not self._temporary.isdisjoint(_with_parents(path))

    def note(self, what: str) -> None:
        """The cell is about to have this effect."""
        if self._touch.used and self._touch.raises:
            raise GpuTouch(self._touch.used)
        if len(self.seen) < EFFECTS_MAX and what not in self.seen:
            self.seen.append(what)

    def tell(self, what: str) -> None:
        """As `note`, if it is of the cell's thread, of no import and not the kernel's own."""
        if self._touch.is_own_thread() and not is_importing() and not _own.depth:
            self.note(what)


class _Own(threading.local):
    depth = 0


_own: Final = _Own()
_watched: Effects | None = None
_is_hooked = False


@contextmanager
def kernels_own() -> Iterator[None]:
    """Inside, what this thread does is the kernel's own work and no effect of the cell, such as its journal's files."""
    _own.depth += 1
    try:
        yield
    finally:
        _own.depth -= 1


@contextmanager
def watched(effects: Effects) -> Iterator[None]:
    """Inside, what this process does outside is told to `effects`."""
    global _watched
    _add_hook()
    undo: list[Callable[[], None]] = []
    told = [*((*writer, _written_to) for writer in _WRITERS), *(("threading", name, _started) for name in _STARTERS)]

    def tell_of(*each: Any) -> None:
        undo.append(_telling(*each))

    # The cell may be the first to import one.
    hooks = [PostImportHook(each[0], functools.partial(tell_of, *each)) for each in told]
    for hook in hooks:
        hook.start()
    _watched = effects
    try:
        yield
    finally:
        _watched = None
        for hook in hooks:
            hook.stop()
        # One module may have been wrapped twice: cv2 imports itself.
        for each in reversed(undo):
            each()


def note(what: str) -> None:
    """An effect that no audit event tells, such as a question to the person."""
    if (effects := _watched) is not None:
        effects.note(what)


def _add_hook() -> None:
    global _is_hooked
    if not _is_hooked:
        _is_hooked = True
        _folder()
        sys.addaudithook(_hear)


def _hear(event: str, args: tuple[Any, ...]) -> None:
    if (effects := _watched) is not None and event in _TOLD:
        if event in _TEMPORARY:
            effects.made_temporary(args[0])
        elif what := effect_of(event, args):
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

    def undo() -> None:
        # Unless the cell has put another there.
        if getattr(owner, name, None) is telling:
            setattr(owner, name, original)

    setattr(owner, name, telling)
    return undo


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
        path, folder = args[0], args[1] if event in _WITH_FOLDER else -1
        return _on_path(_ON_PATHS[event], path if folder == -1 else _inside(folder, path))
    if event == "sqlite3.connect":
        return "" if args[0] == ":memory:" else _on_path("opened the database", args[0])
    if event.startswith("socket.") and getattr(args[0], "family", None) == getattr(socket, "AF_UNIX", None):
        return "spoke to another process"
    return _PLAIN.get(event, "")


_TOLD: Final = frozenset({"open", "sqlite3.connect", *_PLAIN, *_ON_PATHS, *_TEMPORARY})


@functools.cache
def _folder() -> str:
    """Where tempfile makes its files. Finding out tries the folder: not in a hook that hears of it."""
    return tempfile.gettempdir()


def _inside(folder: int, path: Any) -> Any:
    try:
        return os.path.join(os.readlink(f"/proc/self/fd/{folder}"), os.fsdecode(path))
    except (OSError, TypeError):
        return path


def _with_parents(path: str) -> list[str]:
    return [path, *map(str, PurePath(path).parents)]


def _on_path(verb: str, path: Any) -> str:
    """`verb` with the path; empty for what outlives nothing: devices, the cell's temporary files, open numbers."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        return ""
    text = os.fsdecode(path)
    # A folder is opened for writing only to make a nameless file in it.
    if text in (_folder(), os.devnull) or text.startswith("/proc/"):
        return ""
    if (effects := _watched) is not None and effects.is_temporary(text):
        return ""
    return f"{verb} {text if len(text) <= _PATH_CHARS_MAX else '…' + text[-_PATH_CHARS_MAX:]!r}"
