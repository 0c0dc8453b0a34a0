"""Whether the system killed a process for lack of memory, as its own counters tell (jupyter study §2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from looseleaf.units import format_bytes

_ROOT: Final = Path("/")
# What version 1 of control groups calls "no limit" is near 2^63.
_NO_LIMIT_BYTES: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class MemoryGuard:
    """Of this process's control group. `events`: the file with its `oom_kill` counter; `limit`: that with its limit.

    `whole_machine`: the counter is not of a group but of everything that runs here.
    """

    events: Path | None = None
    limit: Path | None = None
    whole_machine: bool = False

    @classmethod
    def find(cls, root: Path = _ROOT) -> MemoryGuard:
        """That of the running process, of version 2 or 1; the whole machine's counter where there is none."""
        for folder, events, limit in own_groups(root):
            if _kills_in(folder / events) is not None:
                return cls(folder / events, folder / limit)
        machine = root / "proc" / "vmstat"
        return cls(machine, whole_machine=True) if _kills_in(machine) is not None else cls()

    def kills(self) -> int | None:
        """Processes killed for lack of memory so far; None if nobody counts them."""
        return _kills_in(self.events) if self.events is not None else None

    def limit_bytes(self) -> int:
        """The memory that the group may have, 0 for no limit."""
        text = _read(self.limit).strip() if self.limit is not None else ""
        return int(text) if text.isdecimal() and int(text) < _NO_LIMIT_BYTES else 0

    def explain(self, kills_before: int | None, peak_bytes: int) -> str:
        """Why a process was killed by SIGKILL, as the rest of a sentence. `peak_bytes`: the most that it had, if known.

        `kills_before`: `kills()` when it began what it was doing. Where the counter is the whole machine's, it may have
        counted somebody else's process: the text says so.
        """
        used = f"it had used up to {format_bytes(peak_bytes)}" if peak_bytes else ""
        kills = self.kills()
        if kills is None or kills_before is None:
            return f" (often the system ran out of memory{f'; {used}' if used else ''})"
        if kills > kills_before:
            limit = self.limit_bytes()
            parts = [f"limit {format_bytes(limit)}" if limit else "", used]
            told = ", ".join(part for part in parts if part)
            source = ", as far as the machine's counters tell" if self.whole_machine else ""
            return f": the system ran out of memory{source}{f' ({told})' if told else ''}"
        return f" ({used})" if used else ""


def over_limit(limit_bytes: int, used_bytes: int) -> str:
    """As `MemoryGuard.explain`, of a process that the daemon itself ended for its memory."""
    told = f"limit {format_bytes(limit_bytes)}, it had used up to {format_bytes(used_bytes)}"
    return f": it used more memory than a cell's process may have here ({told})"


def own_groups(root: Path) -> list[tuple[Path, str, str]]:
    """(folder, file of events, file of the limit): this process's groups, then what a container sees as the root."""
    mount, found = root / "sys" / "fs" / "cgroup", []
    for line in _read(root / "proc" / "self" / "cgroup").splitlines():
        _number, _colon, rest = line.partition(":")
        controllers, _colon, path = rest.partition(":")
        inside = path.lstrip("/")
        if not controllers:
            names = ("memory.events", "memory.max")
            found += [(mount / inside, *names), (mount, *names)]
        elif "memory" in controllers.split(","):
            names = ("memory.oom_control", "memory.limit_in_bytes")
            found += [(mount / "memory" / inside, *names), (mount / "memory", *names)]
    return found


def _kills_in(path: Path) -> int | None:
    for line in _read(path).splitlines():
        name, _space, value = line.partition(" ")
        if name == "oom_kill" and value.strip().isdecimal():
            return int(value)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""
