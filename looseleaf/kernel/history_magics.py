"""`%looseleaf`: the session's versions from inside the notebook, as text; always runs in the kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from IPython.core.interactiveshell import InteractiveShell

from looseleaf.checkpoint.history import Change
from looseleaf.checkpoint.manifest import UnitHeader
from looseleaf.checkpoint.version_list import ListedVersion, pruned_ranges
from looseleaf.errors import InvalidArgument, LooseLeafError, PreconditionFailed
from looseleaf.kernel.holders import Released
from looseleaf.kernel.journal_files import journal_root
from looseleaf.kernel.label_log import LabelEntry, LabelLog
from looseleaf.kernel.output_magic import ShownAgain
from looseleaf.kernel.run_log import RunLog
from looseleaf.kernel.session import KernelSession
from looseleaf.kernel.text_table import text_table, when
from looseleaf.kernel.time_travel import CheckedOut, Restored, TimeTravel
from looseleaf.recipe.gpu_line import HELP as GPU_HELP
from looseleaf.recipe.history_line import HISTORY_MAGIC, HistoryLine, parse_history_line
from looseleaf.recipe.transform import transform
from looseleaf.units import format_bytes

TEXT_CHARS_MAX: Final = 60
HELP: Final = """\
%looseleaf log [-n N]                    the session's kept versions, newest first
%looseleaf diff [A] [B]                  what changed from version A (else the one before the newest) to B (else now)
%looseleaf checkout VERSION [--force]    the whole state as it was at VERSION, as a new version: nothing is lost
%looseleaf restore NAME... [--version N] [--as NEWNAME]
                                         only these variables as they were at version N, or before their last change
%looseleaf history [-n N]                the same as log
%looseleaf status                        session, versions, cluster
%looseleaf outputs [CELL] [--session ID] [-n N]
                                         what a cell has shown, also when its page was closed or its kernel died; CELL
                                         is its number or id; without one, which cells there are
%looseleaf pin [TIME]                    keeps the process of each GPU cell, and its GPU, for so long after the cell, as
                                         60s or 5m; without TIME no longer. For one cell: %%gpu --keep TIME
%looseleaf release                       ends this session's idle GPU processes; variables stay as they are saved
%looseleaf explain [-n N]                where the newest cells ran and why, what was run again and what was learned
A version -1 is the one before the newest, -2 the one before that."""


def register_history_magics(
    shell: InteractiveShell, session: KernelSession, travel: TimeTravel, running_source: Callable[[], str],
    labels: LabelLog,
) -> None:  # fmt: skip
    """Makes `%looseleaf` known to `shell`. `running_source()`: the text of the cell that runs."""
    outputs = ShownAgain(journal_root(session.config.run_dir), session)

    def looseleaf(line: str) -> None:
        """Versions of this notebook's state: log, diff, checkout, restore, status; explain: of where cells ran;
        outputs: what cells have shown; release: of GPU processes."""
        try:
            asked = parse_history_line(line)
            if asked.command == "outputs":
                outputs.show(asked)
                return
            explains = asked.command == "explain"
            print(explain_text(labels.newest(asked.limit)) if explains else _answer(asked, session, travel))
            if asked.command in ("checkout", "restore"):
                travel.load_for(running_source())
        except LooseLeafError as error:
            raise plain(error) from None

    register: Any = shell.register_magic_function
    register(looseleaf, "line", HISTORY_MAGIC)


def refuse_on_worker(source: str) -> None:
    """Raises PreconditionFailed `MAGIC_IN_GPU_CELL` if a cell for a worker uses the magic: a worker has one version.

    And InvalidArgument `MAGIC_MALFORMED` if something behind `%%gpu` means nothing.
    """
    cell = transform(source)
    if cell.gpu.problem:
        text = f"{cell.gpu.problem!r} behind %%gpu means nothing; it takes {GPU_HELP}. Nothing was run"
        raise InvalidArgument("MAGIC_MALFORMED", text)
    if f"get_ipython().run_line_magic('{HISTORY_MAGIC}'" in cell.python:
        text = f"%{HISTORY_MAGIC} runs in the notebook's own process and this cell on a GPU: give it a cell of its own"
        raise PreconditionFailed("MAGIC_IN_GPU_CELL", f"{text}; nothing was run")


def plain(error: LooseLeafError) -> LooseLeafError:
    """The same error as a person is to see it in a cell: its reason and its text, no traceback through our code."""
    shown = {
        "_render_traceback_": lambda self: [f"{self.reason}: {self.message}"],
        "__str__": lambda self: self.message,
    }
    made: LooseLeafError = type(error.reason, (type(error),), shown)(error.reason, error.message, **error.fields)
    return made


def _answer(asked: HistoryLine, session: KernelSession, travel: TimeTravel) -> str:
    if asked.command in ("log", "history"):
        kept = travel.versions(asked.limit)
        return log_text(kept, session.runs, whole=len(kept) < asked.limit)
    if asked.command == "release":
        return release_text(session.release_workers())
    if asked.command == "pin":
        session.pinned_s = asked.seconds
        return pin_text(asked.seconds)
    if asked.command == "diff":
        old, new, found = travel.changes(asked.versions)
        return diff_text(old, new, found)
    if asked.command == "checkout":
        return checkout_text(travel.check_out(asked.versions[0], force=asked.force))
    if asked.command == "restore":
        done = travel.restore(asked.names, asked.version, asked.target)
        return restore_text(done, int(session.version), asked.target)
    return _status_text(session, travel) if asked.command == "status" else HELP


def log_text(kept: Sequence[ListedVersion], runs: RunLog, *, whole: bool) -> str:
    """One line for each version and each row of versions that are no longer kept, newest first."""
    if not kept:
        return "this session has no saved version yet"
    rows: list[list[str]] = [["version", "made", "saved", "size", "variables", "cells"]]
    gone = {last: first for first, last in pruned_ranges(kept, whole=whole)}
    for entry in kept:
        rows.append([
            str(entry.version), when(entry.created_unix_ms), "durable" if entry.durable else "staged",
            entry.size, str(entry.roots), _cells(runs.cells_of(entry.version)),
        ])  # fmt: skip
        if entry.parent in gone:
            first = gone[entry.parent]
            rows.append([_span(first, entry.parent), "no longer kept"])
    return text_table(rows)


def diff_text(old: int, new: int, found: Sequence[Change]) -> str:
    """What differs, a variable a line."""
    if not found:
        return f"nothing differs between version {old} and version {new}"
    rows = [["variable", "change", f"version {old}", f"version {new}", "new bytes"]]
    for change in found:
        after = _value(change.after)
        if change.why_unsaved is not None:
            after = f"{change.why_unsaved.reason} at {change.why_unsaved.path}"
        size = format_bytes(change.moved_bytes) if change.moved_bytes else "-"
        rows.append([change.name, change.kind, _value(change.before), after, size])
    return text_table(rows)


def checkout_text(done: CheckedOut) -> str:
    """What a checkout did and how to undo it."""
    if done.version == done.source:
        return f"version {done.source} is the newest: nothing to do"
    what = f"the state is that of version {done.source}, now version {done.version}"
    lines = [f"{what}; `%{HISTORY_MAGIC} checkout {done.before}` undoes it"]
    if done.kept:
        lines.append(f"left as they are, because no version can hold them: {', '.join(done.kept)}")
    if done.dropped:
        lines.append(f"given up, because no version can hold them: {', '.join(done.dropped)}")
    return "\n".join([*lines, *done.problems])


def restore_text(done: Restored, version: int, target: str) -> str:
    """What a restore did and how to undo it."""
    lines = []
    if done.bound:
        where = f"now version {version}" if not done.problem else f"not saved yet: {done.problem}"
        command = f"%{HISTORY_MAGIC} restore {' '.join(done.bound)} --version {done.before}"
        undo = "" if target else f"; `{command}` undoes it"
        lines.append(f"{', '.join(done.bound)}: from version {done.source}, {where}{undo}")
    if done.same:
        lines.append(f"the same at version {done.source}: {', '.join(done.same)}")
    return "\n".join(lines)


def release_text(done: Released) -> str:
    """What `release` did."""
    ended, names = done.ended, ", ".join(done.names)
    processes = "1 idle GPU process" if ended == 1 else f"{ended} idle GPU processes" if ended else "no GPU process"
    lost = f"; gone with what kept them, because no version can hold them: {names}" if names else ""
    silent = f"; no answer from {', '.join(done.silent)}: a process there ends by itself" if done.silent else ""
    return f"{processes} of this session ended; every saved variable is as it was{lost}{silent}"


def pin_text(seconds: float) -> str:
    """What `pin` did."""
    if not seconds:
        return "the GPU process of a cell makes way as usual"
    until = f"`%{HISTORY_MAGIC} release` ends it before"
    return f"from now on the process of a GPU cell keeps its GPU for {seconds:g} s after the cell; {until}"


def explain_text(entries: Sequence[LabelEntry]) -> str:
    """One line for each run, the newest first."""
    if not entries:
        return "no cell has run yet"
    rows = [["run", "label", "sure", "ran on", "cell", "why"]]
    for entry in reversed(entries):
        why = f"{entry.reason} -> {entry.note}" if entry.note else entry.reason
        sure = f"{entry.confidence:.0%}"
        rows.append([str(entry.number), entry.label, sure, entry.ran, _cells([entry.source]), why])
    return text_table(rows)


def _status_text(session: KernelSession, travel: TimeTravel) -> str:
    kept = travel.versions()
    durable = max((entry.version for entry in kept if entry.durable), default=0)
    pending = "changes since are not saved yet" if session.commits.pending else "nothing has changed since"
    return text_table([
        ["session", str(session.session_id)],
        ["version", f"{session.version}; {pending}"],
        ["durable", str(durable) if durable else "no version yet"],
        ["kept", f"{len(kept)}, {kept[-1].version} to {kept[0].version}" if kept else "no version yet"],
    ])  # fmt: skip


def _cells(sources: Sequence[str]) -> str:
    """The last cell's first line, and how many ran before it; empty where that is not known."""
    if not sources:
        return ""
    lines = [line.strip() for line in sources[-1].splitlines() if line.strip()]
    # `%%gpu` alone tells nobody which cell it was.
    first = next((line for line in lines if not line.startswith("%%")), lines[0] if lines else "")
    return _shortened(first) + (f"  (+{len(sources) - 1})" if len(sources) > 1 else "")


def _value(header: UnitHeader | None) -> str:
    return "-" if header is None else _shortened(" ".join(header.preview.split()))


def _shortened(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - 1] + "…"


def _span(first: int, last: int) -> str:
    return str(first) if first == last else f"{first}-{last}"
