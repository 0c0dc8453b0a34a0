"""Tables of a session's versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from looseleaf.checkpoint.version_list import ListedVersion
from looseleaf.cli import session
from looseleaf.cli.options import run_dir_of
from looseleaf.cli.session import version_rows
from looseleaf.errors import LooseLeafError, NotFound, Unavailable
from looseleaf.kernel.journal_files import folder_of, journal_root


def test_versions_that_are_no_longer_kept_are_shown_by_range() -> None:
    kept = [ListedVersion(n, n - 1, 1_000, n == 4, 2048, 3, f"x-{n}") for n in (9, 8, 4, 2)]
    rows = version_rows(kept, whole=True)
    assert [(row[0], row[5] == "no longer kept") for row in rows] == [
        (9, False), (8, False), ("5-7", True), (4, False), ("3", True), (2, False), ("1", True),
    ]  # fmt: skip
    assert rows[0][2:5] == ["no", 3, "2.0 KiB"] and rows[3][2] == "yes" and rows[0][6] == "x-9"
    lazy = ListedVersion(1, 0, 0, False, 2048, 1, "x", 3 << 20)
    assert version_rows([lazy], whole=True)[0][4] == "2.0 KiB, 3.0 MiB lazy"
    assert version_rows(kept, whole=False)[-1][0] == 2


def shown(data: Path) -> Path:
    """A folder with what a session's cells have shown."""
    folder = folder_of(journal_root(run_dir_of(data)), "s-abc")
    folder.mkdir(parents=True)
    return folder


def test_removal_without_a_cluster_deletes_nothing(tmp_path: Path) -> None:
    folder = shown(tmp_path)
    with pytest.raises(NotFound, match="CLUSTER_NOT_RUNNING"):
        session.remove("s-abc", yes=True, data=tmp_path)
    assert folder.is_dir()


@pytest.mark.parametrize(
    ("error", "goes"),
    [(NotFound("SESSION_UNKNOWN", "none"), True), (NotFound("ANYTHING", "else"), False),
     (Unavailable("STORE_DOWN", "away"), False)],
)  # fmt: skip
def test_removal_deletes_outputs_alone_only_if_the_store_has_no_such_session(
    error: LooseLeafError, goes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise error

    folder = shown(tmp_path)
    monkeypatch.setattr(session, "ask_store", refuse)
    if goes:
        session.remove("s-abc", yes=True, data=tmp_path)
    with pytest.raises(type(error), match=error.reason):
        session.remove("s-abc", yes=True, data=tmp_path)
    assert folder.is_dir() is not goes
