"""The output journal: what is kept, what is cut, and what a reader sees of it."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from looseleaf.errors import NotFound
from looseleaf.kernel import journal
from looseleaf.kernel.journal import OutputJournal
from looseleaf.kernel.journal_files import folder_of, sequences_in
from looseleaf.kernel.journal_reader import (
    executions_of,
    find_execution,
    fold,
    outputs_of,
    sessions_in,
    text_of,
)
from looseleaf.kernel.outgoing import watch_outgoing

BYTES_MAX = 4000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "outputs"


def begun(root: Path, request_id: str = "m", count: int = 1, bytes_max: int = BYTES_MAX, session: str = "s-1") -> Any:
    made = OutputJournal(root, lambda: "a.ipynb", bytes_max)
    made.begin(session, request_id, count=count, cell_id=f"cell-{count}", source="\n# first\nx = 1")
    return made


def said(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"name": name, "text": text}


def test_outputs_of_a_cell_are_there_while_it_runs_and_after_its_kernel(root: Path) -> None:
    kept = begun(root)
    kept.take("m", "stream", said("a\n"))
    kept.take("m", "stream", said("b\n"))
    [entry] = executions_of(root, "s-1")
    assert (entry.count, entry.cell_id, entry.line, entry.status) == (1, "cell-1", "# first", "")
    assert (entry.title, entry.pid) == ("a.ipynb", os.getpid())
    kept.take("m", "execute_result", {"data": {"text/plain": "5", "text/html": "<b>5</b>"}, "execution_count": 1})
    kept.end("m", "ok")
    # Of a thread that the cell left.
    kept.take("m", "stream", said("late\n"))
    assert executions_of(root, "s-1")[0].status == "ok"
    assert text_of(outputs_of(root, "s-1", 1)) == "a\nb\n5  [text/html]\nlate\n"
    assert [each.session_id for each in sessions_in(root)] == ["s-1"]


def test_only_outputs_of_the_notebooks_cells_are_kept(root: Path) -> None:
    kept = begun(root)
    kept.take("somebody", "stream", said("silent"))
    kept.take("m", "comm_msg", {"data": {}})
    kept.take("m", "status", {"execution_state": "busy"})
    assert outputs_of(root, "s-1", 1) == []


def test_long_output_keeps_its_beginning_and_its_end_and_says_what_is_missing(root: Path) -> None:
    kept = begun(root)
    for number in range(1000):
        kept.take("m", "stream", said(f"line {number}\n"))
    kept.end("m", "ok")
    folder = folder_of(root, "s-1")
    assert sum(path.stat().st_size for path in folder.iterdir()) <= BYTES_MAX
    lines = text_of(outputs_of(root, "s-1", 1)).splitlines()
    assert lines[0] == "line 0" and lines[-1] == "line 999" and executions_of(root, "s-1")[0].status == "ok"
    [note] = [line for line in lines if "LooseLeaf" in line]
    shown = sum(line.startswith("line") for line in lines)
    assert f"{1000 - shown} messages between were not kept" in note


def test_output_that_is_too_large_is_named_in_its_place(root: Path) -> None:
    kept = begun(root)
    kept.take("m", "display_data", {"data": {"image/png": "x" * BYTES_MAX}})
    kept.take("m", "stream", said("after\n"))
    text = text_of(outputs_of(root, "s-1", 1))
    assert "one display_data of" in text and text.endswith("after\n")


def test_oldest_executions_go_first(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "EXECUTIONS_MAX", 3)
    kept = begun(root, "m-1")
    for number in range(2, 6):
        kept.begin("s-1", f"m-{number}", count=number, cell_id="", source="")
    assert [entry.count for entry in executions_of(root, "s-1")] == [5, 4, 3]
    kept.take("m-1", "stream", said("of a cell long past"))
    assert sequences_in(folder_of(root, "s-1")) == {3, 4, 5}
    # The session's next kernel counts on, and its limit is of all.
    begun(root, "n-1")
    assert [(entry.sequence, entry.count) for entry in executions_of(root, "s-1")] == [(6, 1), (5, 5), (4, 4)]


def test_bytes_are_counted_along_as_they_lie_on_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SESSION_BYTES_MAX", 3 * BYTES_MAX)
    begun(root, "m-0").take("m-0", "stream", said("of an earlier kernel"))
    kept = begun(root, "m-1")
    for cell in range(1, 8):
        for number in range(100 * (cell % 3)):
            kept.take(f"m-{cell}", "stream", said(f"line {number}\n"))
        kept.begin("s-1", f"m-{cell + 1}", count=cell + 1, cell_id="", source="")
        assert kept._size_bytes == sum(path.stat().st_size for path in folder_of(root, "s-1").iterdir())
    assert len(sequences_in(folder_of(root, "s-1"))) < 9


def test_bytes_of_a_session_and_of_all_have_limits(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SESSION_BYTES_MAX", 3000)
    kept = begun(root, "m-1", bytes_max=40_000)
    for number in range(2, 5):
        kept.take(f"m-{number - 1}", "stream", said("x" * 2000))
        kept.begin("s-1", f"m-{number}", count=number, cell_id="", source="")
    assert [entry.count for entry in executions_of(root, "s-1")] == [4, 3]
    # The session's next kernel counts what the one before has left.
    again = begun(root, "n-1", bytes_max=40_000)
    again.take("n-1", "stream", said("x" * 2000))
    again.begin("s-1", "n-2", count=2, cell_id="", source="")
    assert 3 not in sequences_in(folder_of(root, "s-1")) and 5 in sequences_in(folder_of(root, "s-1"))
    monkeypatch.setattr(journal, "SESSIONS_MAX", 2)
    for place, session in enumerate(("s-2", "s-3")):
        for path in root.rglob("*.0"):
            os.utime(path, (1000 + place, 1000 + place))
        begun(root, session=session)
    assert {each.session_id for each in sessions_in(root)} == {"s-2", "s-3"}


def test_disk_that_cannot_be_written_costs_the_journal_and_no_cell(root: Path) -> None:
    root.write_text("a file where the folder should be")
    kept = begun(root)
    kept.take("m", "stream", said("a"))
    kept.end("m", "ok")
    assert executions_of(root, "s-1") == []


def test_without_a_run_folder_or_with_no_bytes_nothing_is_written(tmp_path: Path, root: Path) -> None:
    begun(tmp_path / "nowhere" / "outputs").take("m", "stream", said("a"))
    begun(root, bytes_max=0).take("m", "stream", said("a"))
    assert not (tmp_path / "nowhere").exists() and not root.exists()


def test_record_that_was_cut_by_the_kernels_end_is_left_out(root: Path) -> None:
    kept = begun(root)
    kept.take("m", "stream", said("a\n"))
    path = next(folder_of(root, "s-1").iterdir())
    path.write_bytes(path.read_bytes() + b'{"n":2,"t":"stream","content":{"na')
    assert text_of(outputs_of(root, "s-1", 1)) == "a\n"


def test_fold_is_what_a_page_shows() -> None:
    def shown(*records: tuple[str, dict[str, Any]]) -> str:
        return text_of(fold([{"t": kind, "content": content} for kind, content in records]))

    bar = {"data": {"text/plain": "bar 0"}, "transient": {"display_id": "d"}}
    update = {"data": {"text/plain": "bar 9"}, "transient": {"display_id": "d"}}
    assert shown(("display_data", bar), ("stream", said("a")), ("update_display_data", update)) == "bar 9\na"
    assert shown(("stream", said("a")), ("clear_output", {"wait": False}), ("stream", said("b"))) == "b"
    assert shown(("stream", said("a")), ("clear_output", {"wait": True})) == "a"
    assert shown(("stream", said("a")), ("clear_output", {"wait": True}), ("stream", said("b"))) == "b"
    assert shown(("error", {"traceback": ["\x1b[31mE\x1b[0m", "at 1"]})) == "E\nat 1\n"


def test_execution_is_found_by_number_or_cell_and_the_newest_counts(root: Path) -> None:
    kept = begun(root, "m-1", count=7)
    kept.begin("s-1", "m-2", count=8, cell_id="cell-7", source="again")
    entries = executions_of(root, "s-1")
    assert find_execution(entries, "7").sequence == 1 and find_execution(entries, "cell-7").sequence == 2
    with pytest.raises(NotFound, match="OUTPUTS_UNKNOWN"):
        find_execution(entries, "9")


@pytest.mark.parametrize("odd", [{(1, 2): 3}, {"deep": {b"key": 1}}, {None: {(): ()}}])
def test_output_that_is_no_json_costs_its_record_and_no_cell(root: Path, odd: Any) -> None:
    kept = begun(root)
    kept.take("m", "display_data", {"data": {"application/json": odd}, "metadata": {}})
    ring: list[Any] = []
    ring.append(ring)
    kept.take("m", "display_data", {"data": {"application/json": ring}, "metadata": {}})
    kept.take("m", "stream", said("after\n"))
    text = text_of(outputs_of(root, "s-1", 1))
    assert text.count("one display_data could not be kept") == 2 and text.endswith("after\n")


def test_watcher_that_fails_stops_no_message_and_no_other_watcher(caplog: pytest.LogCaptureFixture) -> None:
    class Session:
        def send(self, _stream: Any, msg_or_type: Any, *_rest: Any) -> str:
            return f"sent {msg_or_type}"

    def fail(*_args: Any) -> None:
        raise TypeError("keys must be str")

    seen: list[str] = []
    session = Session()
    watch_outgoing(session, fail, lambda _request, kind, _content: seen.append(kind))
    assert session.send(None, "stream", {"text": "a"}, {"header": {"msg_id": "m"}}) == "sent stream"
    assert seen == ["stream"] and "message_not_watched" in caplog.text


def test_folder_that_somebody_removes_costs_only_what_was_in_it(root: Path) -> None:
    kept = begun(root)
    kept.take("m", "stream", said("gone\n"))
    shutil.rmtree(root)
    kept.take("m", "stream", said("there\n"))
    assert "there\n" in text_of(outputs_of(root, "s-1", 1))


@pytest.mark.parametrize(("number", "goes_on"), [
    (errno.ENOSPC, False), (errno.EACCES, False), (errno.EROFS, False), (errno.EDQUOT, False),
    (errno.EMFILE, True), (errno.EINTR, True), (errno.EIO, True),
])  # fmt: skip
def test_only_errors_that_stay_end_the_journal(
    root: Path, monkeypatch: pytest.MonkeyPatch, number: int, goes_on: bool
) -> None:
    kept = begun(root)

    def refuse(_path: Path) -> int:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(journal, "_appending", refuse)
        kept.take("m", "stream", said("lost\n"))
    kept.take("m", "stream", said("after\n"))
    assert ("after\n" in text_of(outputs_of(root, "s-1", 1))) == goes_on


def test_journal_of_a_kernel_that_runs_is_never_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "SESSIONS_MAX", 1)
    begun(root, session="s-ended")
    alive = OutputJournal(root, lambda: "a.ipynb", BYTES_MAX)
    alive._pid = os.getppid()
    with monkeypatch.context() as patched:
        patched.setattr(os, "getpid", os.getppid)
        alive.begin("s-runs", "m", count=1, cell_id="", source="")
    begun(root, session="s-new")
    assert {each.session_id for each in sessions_in(root)} == {"s-runs", "s-new"}


def test_what_vanishes_while_it_is_looked_at_is_passed_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other kernels remove folders and files at any time, also between a listing and a look at what was listed."""
    begun(root, session="s-1")
    begun(root, session="s-2")
    scandir = os.scandir

    def vanishing(path: Any) -> Any:
        entries = list(scandir(path))
        for entry in entries if Path(path) != root else ():
            os.unlink(entry.path)
        if Path(path) == folder_of(root, "s-2"):
            os.rmdir(path)
        return iter(entries)

    monkeypatch.setattr(os, "scandir", vanishing)
    assert {each.session_id for each in sessions_in(root)} <= {"s-1", "s-2"}
    kept = begun(root, session="s-3")
    kept.take("m", "stream", said("a\n"))
    monkeypatch.undo()
    assert text_of(outputs_of(root, "s-3", 1)) == "a\n"
