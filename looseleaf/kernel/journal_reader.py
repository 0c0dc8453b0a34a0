"""Reading an output journal: which executions there are, and what each has shown, as a page would show it.

Needs no kernel and no cluster. A record that was cut in two by the end of its kernel is left out.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from looseleaf.errors import NotFound
from looseleaf.kernel.journal_files import HEAD, TAILS, folder_of, part_name, sequences_in, stats_in

_TERMINAL_CODES: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One execution. `sequence` counts over all kernels of the session, `count` is the number that the notebook shows.

    `status`: "ok", "error", or empty for one that runs or whose kernel ended before it. `line`: the cell's first one.
    """

    sequence: int
    count: int
    cell_id: str
    line: str
    title: str
    pid: int
    began_unix_ms: int
    status: str


@dataclass(frozen=True, slots=True)
class SessionJournal:
    """A session of which there is a journal. `title`: its notebook; `newest_unix_ms`: when it was last written."""

    session_id: str
    title: str
    executions: int
    newest_unix_ms: int


def sessions_in(root: Path) -> list[SessionJournal]:
    """All sessions with a journal, the newest first; `root` is the folder `outputs` of the run folder."""
    found = []
    try:
        folders = [Path(entry.path) for entry in os.scandir(root) if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    for folder in folders:
        sequences = sequences_in(folder)
        entry = _entry(folder, max(sequences)) if sequences else None
        if entry is not None:
            newest = max((each.st_mtime for each in stats_in(folder)), default=0.0)
            found.append(SessionJournal(folder.name, entry.title, len(sequences), int(newest * 1000)))
    return sorted(found, key=lambda session: -session.newest_unix_ms)


def last_pid(folder: Path) -> int:
    """The process of the kernel that began the newest execution in a session's folder; 0 if that cannot be told."""
    sequences = sequences_in(folder)
    entry = _entry(folder, max(sequences)) if sequences else None
    return entry.pid if entry is not None else 0


def executions_of(root: Path, session_id: str) -> list[JournalEntry]:
    """The session's executions that are kept, the newest first; none if it has no journal."""
    folder = folder_of(root, session_id)
    entries = (_entry(folder, sequence) for sequence in sorted(sequences_in(folder), reverse=True))
    return [entry for entry in entries if entry is not None]


def find_execution(entries: Sequence[JournalEntry], wanted: str) -> JournalEntry:
    """The newest one with this number in the notebook, or of the cell with this id.

    Raises NotFound `OUTPUTS_UNKNOWN`.
    """
    for entry in entries:
        if wanted in (str(entry.count), entry.cell_id):
            return entry
    text = f"no outputs of {wanted!r} are kept; name a cell by its number, as 7 for Out[7], or by its id"
    raise NotFound("OUTPUTS_UNKNOWN", text, wanted=wanted)


def outputs_of(root: Path, session_id: str, sequence: int) -> list[dict[str, Any]]:
    """What an execution has shown, each as {"t": type, "content": ...}, as a page would show it now: texts joined,
    displays updated, cleared ones gone. A note stands where something was not kept."""
    return list(fold(_records(folder_of(root, session_id), sequence)))


def _records(folder: Path, sequence: int) -> Iterator[dict[str, Any]]:
    """Records in order, with {"t": "missing", "records": N} where the ring has dropped some."""
    parts = [_part(folder / part_name(sequence, part)) for part in (HEAD, *TAILS)]
    expected = 0
    for record in sorted((record for part in parts for record in part), key=lambda record: record["n"]):
        if record["n"] > expected:
            yield {"t": "missing", "records": record["n"] - expected}
        expected = record["n"] + 1
        yield record


def _part(path: Path) -> list[dict[str, Any]]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict) and isinstance(record.get("n"), int) and isinstance(record.get("t"), str):
            records.append(record)
    return records


def _entry(folder: Path, sequence: int) -> JournalEntry | None:
    first: dict[str, Any] | None = None
    status = ""
    for part in (HEAD, *TAILS):
        for record in _part(folder / part_name(sequence, part)):
            if record["t"] == "begin":
                first = record
            elif record["t"] == "end":
                status = str(record.get("status", ""))
    if first is None:
        return None
    return JournalEntry(
        sequence, int(first.get("count", 0)), str(first.get("cell_id", "")), str(first.get("line", "")),
        str(first.get("title", "")), int(first.get("pid", 0)), int(first.get("unix_ms", 0)), status,
    )  # fmt: skip


def fold(records: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The outputs that a page shows after these records (Jupyter's rules for clear_output and display ids)."""
    shown: list[dict[str, Any]] = []
    clears = False
    for record in records:
        kind, content = record["t"], record.get("content", {})
        if kind in ("begin", "end"):
            continue
        if kind == "clear_output":
            clears = bool(content.get("wait"))
            if not clears:
                shown.clear()
            continue
        if kind == "update_display_data":
            _update(shown, content)
            continue
        if clears:
            shown.clear()
            clears = False
        if kind in ("cut", "missing"):
            shown.append(_stream(_note(record), "stderr"))
        elif kind == "stream" and shown and _is_stream(shown[-1], content.get("name")):
            shown[-1]["content"]["text"] += content.get("text", "")
        else:
            shown.append({"t": kind, "content": dict(content)})
    return shown


def _is_stream(output: Mapping[str, Any], name: Any) -> bool:
    return bool(output["t"] == "stream" and output["content"].get("name") == name)


def _update(shown: list[dict[str, Any]], content: Mapping[str, Any]) -> None:
    wanted = (content.get("transient") or {}).get("display_id")
    for output in shown:
        if wanted and (output["content"].get("transient") or {}).get("display_id") == wanted:
            output["content"].update(data=content.get("data", {}), metadata=content.get("metadata", {}))


def _stream(text: str, name: str) -> dict[str, Any]:
    return {"t": "stream", "content": {"name": name, "text": text}}


def _note(record: Mapping[str, Any]) -> str:
    if record["t"] == "cut" and "bytes" not in record:
        return f"\n[LooseLeaf: one {record.get('of')} could not be kept: it is no JSON]\n"
    if record["t"] == "cut":
        return f"\n[LooseLeaf: one {record.get('of')} of {record.get('bytes')} bytes is too large to be kept]\n"
    return f"\n[LooseLeaf: {record['records']} messages between were not kept: the journal of one cell is full]\n"


def text_of(outputs: Iterable[Mapping[str, Any]]) -> str:
    """Outputs as a terminal shows them: texts and the plain form of everything else, without colours."""
    parts = []
    for output in outputs:
        content = output["content"]
        if output["t"] == "stream":
            parts.append(str(content.get("text", "")))
        elif output["t"] == "error":
            parts.append(traceback_of(content) + "\n")
        else:
            data = content.get("data", {})
            others = ", ".join(sorted(set(data) - {"text/plain"}))
            parts.append(f"{data.get('text/plain', '')}{f'  [{others}]' if others else ''}\n")
    return _TERMINAL_CODES.sub("", "".join(parts))


def traceback_of(content: Mapping[str, Any]) -> str:
    """The text of an error message."""
    lines = content.get("traceback") or [f"{content.get('ename')}: {content.get('evalue')}"]
    return "\n".join(map(str, lines))
