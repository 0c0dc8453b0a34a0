"""What a process remembers of manifests' rows changes nothing but the time, and has limits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from looseleaf.checkpoint import manifest_rows
from looseleaf.checkpoint.manifest import Manifest, UnitEntry, UnitHeader, decode_manifest, encode_manifest
from looseleaf.checkpoint.manifest_rows import ENTRY_BYTES, Rows
from looseleaf.errors import InvalidArgument


def _entry(text: str) -> UnitEntry:
    return UnitEntry(b"h" * 16, 3, (), UnitHeader(type_name=text))


def _manifest(*texts: str) -> Manifest:
    units = {number: _entry(text) for number, text in enumerate(texts, 1)}
    return Manifest("s", next_id=len(texts) + 1, roots={f"n{number}": number for number in units}, units=units)


class Counting:
    """Rows of plain texts, and how often one was read."""

    def __init__(self) -> None:
        self.count = 0
        self.rows: Rows[str] = Rows(self.read, lambda text: [text])

    def read(self, fields: list[object]) -> tuple[int, str]:
        self.count += 1
        if len(fields) != 2 or not isinstance(fields[1], str) or fields[1] == "bad":
            raise ValueError("no text")
        return int(fields[0]), fields[1]  # type: ignore[call-overload]


def test_a_row_is_read_once_whether_it_was_written_or_read_first():
    one = Counting()
    row = one.rows.row_of(7, "text")
    assert one.rows.entry_of(row) == (7, "text") and one.rows.row_of(7, one.rows.entry_of(row)[1]) == row
    assert one.count == 1
    assert one.rows.entry_of(row) is one.rows.entry_of(row)


def test_the_same_entry_under_another_id_is_another_row():
    one = Counting()
    entry = "text"
    rows = [one.rows.row_of(number, entry) for number in (1, 2)]
    assert [one.rows.entry_of(row)[0] for row in rows] == [1, 2]


def test_what_is_wrong_is_never_remembered():
    one = Counting()
    for _ in range(2):
        with pytest.raises(ValueError, match="no text"):
            one.rows.row_of(1, "bad")
        with pytest.raises(ValueError, match="no text"):
            one.rows.entry_of(b"\x92\x01\xa3bad")
    assert one.count == 4


def test_rows_remembered_are_limited_in_number_and_bytes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manifest_rows, "ROWS_BYTES_MAX", 4 * ENTRY_BYTES + 100)
    monkeypatch.setattr(manifest_rows, "ROW_BYTES_MAX", 50)
    one = Counting()
    texts = [str(number) for number in range(40)]
    for text in [*texts, "x" * 40, "y" * 40, "z" * 40, "w" * 60]:
        one.rows.row_of(1, text)
    for generation in (one.rows._young, one.rows._old):
        assert len(generation.by_entry) <= 4
        assert sum(len(row) + ENTRY_BYTES for row in generation.by_row) <= manifest_rows.ROWS_BYTES_MAX
    assert not any(len(row) > 50 for row in (*one.rows._young.by_row, *one.rows._old.by_row))


def test_a_row_in_use_outlives_the_generations(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(manifest_rows, "ROWS_BYTES_MAX", 5 * ENTRY_BYTES)
    one = Counting()
    kept = "kept"
    row = one.rows.row_of(1, kept)
    for number in range(20):
        one.rows.row_of(2, str(number))
        assert one.rows.row_of(1, kept) == row
    assert one.count == 21


def test_versions_share_the_entries_of_their_unchanged_rows():
    first = decode_manifest(encode_manifest(_manifest("a", "b")))
    second = decode_manifest(encode_manifest(replace(_manifest("a", "c"), version=1)))
    assert second.units[1] is first.units[1] and second.units[2] != first.units[2]


def test_a_changed_entry_of_an_old_id_is_written_anew():
    base = _manifest("a", "b")
    encode_manifest(base)
    changed = replace(base, units={**base.units, 2: _entry("c")})
    assert decode_manifest(encode_manifest(changed)) == changed


def test_an_entry_that_cannot_be_read_back_is_refused_also_the_second_time():
    bad = replace(_manifest("a"), units={1: UnitEntry(b"short", 3, (), UnitHeader())})
    for _ in range(2):
        with pytest.raises(InvalidArgument) as raised:
            encode_manifest(bad)
        assert raised.value.reason == "MANIFEST_FIELD"
