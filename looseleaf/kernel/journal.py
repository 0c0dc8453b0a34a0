"""What cells have shown, kept on disk as it is sent: a page that was closed and a kernel that died lose nothing.

One folder for each session, see `journal_files`. Written here, by the kernel; read by `journal_reader`, also when the
kernel is gone. Outputs are the person's data: only the owner reads the files, and no log names what is in them.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import os
import shutil
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from looseleaf.kernel.effects import kernels_own
from looseleaf.kernel.journal_files import HEAD, TAILS, folder_of, part_name, sequences_in, stats_in
from looseleaf.kernel.journal_reader import last_pid
from looseleaf.units import MIB

log = logging.getLogger("looseleaf.kernel")

# Of a session; what is kept of its oldest execution goes first. Of one execution: `journal_bytes_max` of [kernel].
EXECUTIONS_MAX: Final = 200
SESSION_BYTES_MAX: Final = 32 * MIB
# Of all sessions of a run folder, looked at when a session begins its journal; the ones written last stay.
SESSIONS_MAX: Final = 50
ALL_BYTES_MAX: Final = 256 * MIB
LINE_CHARS_MAX: Final = 80
# What stays as it is: nothing more is written then. Anything else costs one record.
LASTING_ERRORS: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS})

JOURNALED: Final = frozenset(
    {"stream", "display_data", "update_display_data", "execute_result", "clear_output", "error"}
)


@dataclass
class _Execution:
    """One that is written: `number` of its next record, `sizes` in bytes of its parts, `part` that grows.

    The first half of its bytes is kept for good; behind it two parts take turns, so that the newest is there, too.
    """

    sequence: int
    number: int = 0
    part: str = HEAD
    sizes: dict[str, int] | None = None

    @property
    def size_bytes(self) -> int:
        return sum((self.sizes or {}).values())


class OutputJournal:
    """The journal of one session in `root`. Thread-safe; does nothing in a forked child.

    `title()`: what people call the session. `bytes_max`: of one execution, 0 keeps nothing. A disk that cannot be
    written ends the journal, what is no JSON costs its record; neither ever costs a cell.
    """

    def __init__(self, root: Path, title: Callable[[], str], bytes_max: int) -> None:
        self._root = root
        self._title = title
        self._bytes_max = bytes_max
        self._pid = os.getpid()
        self._folder: Path | None = None
        self._next = 1
        # By the request's id, oldest first.
        self._open: OrderedDict[str, _Execution] = OrderedDict()
        # Of earlier kernels of this session, oldest first: (sequence, bytes).
        self._older: deque[tuple[int, int]] = deque()
        # Of all that is kept, counted along: it is looked at before each cell.
        self._size_bytes = 0
        self._lock = threading.RLock()
        self._off = bytes_max <= 0
        self._missed = False

    def begin(self, session_id: str, request_id: str, *, count: int, cell_id: str, source: str) -> None:
        """A cell of the notebook was sent; what its request shows from now on is kept."""
        if self._off or os.getpid() != self._pid:
            return
        # A run folder that is not there belongs to no cluster.
        if self._folder is None and not self._root.parent.is_dir():
            return
        with self._lock, kernels_own():
            try:
                if self._folder is None:
                    self._begin_folder(session_id)
                execution = _Execution(self._next, sizes={})
                self._next += 1
                line = next((text.strip() for text in source.splitlines() if text.strip()), "")[:LINE_CHARS_MAX]
                self._write(execution, {
                    "t": "begin", "count": count, "cell_id": cell_id, "line": line, "title": self._title(),
                    "pid": self._pid, "unix_ms": _unix_ms(),
                })  # fmt: skip
                self._open[request_id] = execution
                self._keep_limits()
            except OSError as error:
                self._failed(error)

    def end(self, request_id: str, status: str) -> None:
        """The cell has ended; what it left running may still show something."""
        self._record(request_id, {"t": "end", "status": status, "unix_ms": _unix_ms()})

    def take(self, request_id: str, kind: str, content: Mapping[str, Any]) -> None:
        """One output message; of a request that is no cell, or long past, it is not kept."""
        if kind in JOURNALED and request_id in self._open:
            self._record(request_id, {"t": kind, "content": content})

    def _record(self, request_id: str, record: dict[str, Any]) -> None:
        if self._off or os.getpid() != self._pid:
            return
        with self._lock, kernels_own():
            if (execution := self._open.get(request_id)) is None:
                return
            try:
                self._write(execution, record)
            except OSError as error:
                self._failed(error)

    def _failed(self, error: OSError) -> None:
        if error.errno in LASTING_ERRORS:
            self._off = True
            self._open.clear()
            log.warning("journal_ended error=%s", error.strerror)
        elif not self._missed:
            self._missed = True
            log.warning("journal_record_lost error=%s", error.strerror)

    # -- files -----------------------------------------------------------------------------------------

    def _begin_folder(self, session_id: str) -> None:
        self._root.mkdir(mode=0o700, exist_ok=True)
        _forget_old_sessions(self._root, but=session_id)
        folder = folder_of(self._root, session_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._folder = folder
        # A session that another kernel began goes on.
        self._older.extend((sequence, self._kept_bytes(sequence)) for sequence in sorted(sequences_in(self._folder)))
        self._size_bytes = sum(size_bytes for _, size_bytes in self._older)
        self._next = self._older[-1][0] + 1 if self._older else 1

    def _write(self, execution: _Execution, record: dict[str, Any]) -> None:
        cut = {"n": execution.number, "t": "cut", "of": record["t"]}
        try:
            data = _line({"n": execution.number, **record})
        except (TypeError, ValueError, RecursionError):
            # Such as a key that is no text, which Jupyter's session makes one when it sends the message.
            data = _line(cut)
        if len(data) > self._bytes_max // 4:
            data = _line({**cut, "bytes": len(data)})
        execution.number += 1
        assert execution.sizes is not None
        part = execution.part
        if execution.sizes.get(part, 0) + len(data) > self._bytes_max // (2 if part == HEAD else 4):
            part = execution.part = TAILS[1] if part == TAILS[0] else TAILS[0]
            self._size_bytes -= execution.sizes.get(part, 0)
            execution.sizes[part] = 0
            self._path(execution, part).unlink(missing_ok=True)
        # Opened for each record: a file that somebody removes is no reason to lose what follows.
        try:
            handle = _appending(self._path(execution, part))
        except FileNotFoundError:
            # Another kernel, or a person, has removed the folder.
            self._make_folder()
            handle = _appending(self._path(execution, part))
        try:
            os.write(handle, data)
        finally:
            os.close(handle)
        execution.sizes[part] = execution.sizes.get(part, 0) + len(data)
        self._size_bytes += len(data)

    def _make_folder(self) -> None:
        assert self._folder is not None
        self._root.mkdir(mode=0o700, exist_ok=True)
        self._folder.mkdir(mode=0o700, exist_ok=True)

    def _path(self, execution: _Execution, part: str) -> Path:
        assert self._folder is not None
        return self._folder / part_name(execution.sequence, part)

    def _keep_limits(self) -> None:
        """At a cell's begin. What later output of kept cells adds is bounded by theirs."""
        while len(self._older) + len(self._open) > EXECUTIONS_MAX or self._size_bytes > SESSION_BYTES_MAX:
            if self._older:
                sequence, size_bytes = self._older.popleft()
            elif len(self._open) > 1:
                _request_id, oldest = self._open.popitem(last=False)
                sequence, size_bytes = oldest.sequence, oldest.size_bytes
            else:
                return
            self._size_bytes -= size_bytes
            self._remove(sequence)

    def _kept_bytes(self, sequence: int) -> int:
        assert self._folder is not None
        size_bytes = 0
        for part in (HEAD, *TAILS):
            with contextlib.suppress(FileNotFoundError):
                size_bytes += (self._folder / part_name(sequence, part)).stat().st_size
        return size_bytes

    def _remove(self, sequence: int) -> None:
        assert self._folder is not None
        for part in (HEAD, *TAILS):
            (self._folder / part_name(sequence, part)).unlink(missing_ok=True)


def _appending(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _line(record: Mapping[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False, default=repr).encode(
        "utf-8", "backslashreplace"
    ) + b"\n"


def _unix_ms() -> int:
    return int(time.time() * 1000)


def _forget_old_sessions(root: Path, but: str) -> None:
    """Removes the journals written longest ago, so that a new one has room; never one whose kernel runs.

    Other kernels do the same meanwhile: what vanishes is passed over.
    """
    found = []
    for entry in os.scandir(root):
        if entry.is_dir(follow_symlinks=False) and entry.name != folder_of(root, but).name:
            stats = stats_in(Path(entry.path))
            found.append((max((each.st_mtime for each in stats), default=0.0), sum(f.st_size for f in stats), entry))
    total = SESSION_BYTES_MAX
    for place, (_mtime, size, entry) in enumerate(sorted(found, key=lambda each: -each[0])):
        total += size
        if (place + 1 >= SESSIONS_MAX or total > ALL_BYTES_MAX) and not _runs_elsewhere(last_pid(Path(entry.path))):
            shutil.rmtree(entry.path, ignore_errors=True)


def _runs_elsewhere(pid: int) -> bool:
    """Whether it is another process that runs; this one has one journal, and is about to begin it."""
    if pid <= 0 or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
