"""What changed between versions, how large variables are, and going back to an old version."""

from __future__ import annotations

from looseleaf.checkpoint.history import changes, checked_out_version, made_newest, usage
from looseleaf.checkpoint.manifest import Manifest, PayloadEntry, RegionRef, UnitEntry, UnitHeader, Unsaved
from looseleaf.ids import Epoch, ExecutionId, PayloadId, SessionId, UnitId, Version

MIB = 1 << 20


def unit(tag: int, size: int = 100, refs: tuple[int, ...] = (), payloads: tuple[int, ...] = ()) -> UnitEntry:
    header = UnitHeader(refs=tuple(map(UnitId, refs)), payloads=tuple(map(PayloadId, payloads)), type_name=f"T{tag}")
    return UnitEntry(bytes([tag]) * 16, size, (), header)


def payload(*tags: int) -> PayloadEntry:
    regions = tuple(RegionRef(bytes([tag]) * 16, 2 * MIB) for tag in tags)
    return PayloadEntry("memory", "cpu", 2 * MIB * len(tags), "xxh3-128", 2 * MIB, regions)


def manifest(version: int, units: dict[int, UnitEntry], payloads: dict[int, PayloadEntry], **more: object) -> Manifest:
    return Manifest(
        SessionId("s-1"), Version(version), next_id=100,
        units={UnitId(key): entry for key, entry in units.items()},
        payloads={PayloadId(key): entry for key, entry in payloads.items()}, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def roots(**names: int) -> dict[str, UnitId]:
    return {name: UnitId(unit_id) for name, unit_id in names.items()}


OLD = manifest(
    3, {1: unit(1), 2: unit(2, refs=(3,)), 3: unit(3, payloads=(9,)), 4: unit(4)}, {9: payload(50, 51)},
    roots=roots(same=1, model=2, gone=4), unsaved=(Unsaved("gen", "GENERATOR", "gen", "", 2),),
)  # fmt: skip
NEW = manifest(
    5, {1: unit(1), 2: unit(2, refs=(3,)), 3: unit(3, payloads=(9,)), 5: unit(5, size=7), 6: unit(6)},
    {9: payload(50, 52)}, roots=roots(same=1, model=2, fresh=5, gen=6),
    unsaved=(Unsaved("sock", "SOCKET", "sock", "", 5), Unsaved("os.environ['X']", "SECRET_ENVIRONMENT", "x", "", 5)),
)  # fmt: skip


def test_changes_name_each_variable_that_two_versions_tell_differently() -> None:
    found = {change.name: (change.kind, change.moved_bytes) for change in changes(OLD, NEW)}
    assert found == {
        "fresh": ("added", 7), "gen": ("saved again", 100), "gone": ("removed", 0), "model": ("changed", 2 * MIB),
        "sock": ("unsaved", 0),
    }  # fmt: skip
    assert changes(NEW, NEW) == []


def test_usage_counts_shared_bytes_for_each_and_own_ones_once() -> None:
    both = manifest(
        1, {1: unit(1, refs=(3,)), 2: unit(2, refs=(3,)), 3: unit(3, payloads=(9,))}, {9: payload(1)},
        roots=roots(a=1, b=2),
    )  # fmt: skip
    assert [(entry.name, entry.reached_bytes, entry.own_bytes) for entry in usage(both)] == [
        ("a", 2 * MIB + 200, 100), ("b", 2 * MIB + 200, 100),
    ]  # fmt: skip


def test_version_made_newest_deletes_what_it_does_not_know() -> None:
    found = made_newest(
        OLD, NEW, session_id=SessionId("s-2"), epoch=Epoch(4), execution_id=ExecutionId("e"), now_unix_ms=7
    )
    assert (found.version, found.parent, found.epoch, found.session_id) == (6, 5, 4, "s-2")
    assert found.roots == OLD.roots and found.units == OLD.units and found.tombstones == ("fresh",)
    assert checked_out_version(found) == checked_out_version(OLD) == 0
    own = made_newest(
        OLD, NEW, session_id=SessionId("s-1"), epoch=Epoch(4), execution_id=ExecutionId("e"), now_unix_ms=7
    )
    assert checked_out_version(own) == 3


def test_session_goes_back_to_an_old_version_and_on_from_there(process):
    process("""
cell("import numpy as np, os; a = np.zeros(100_000); b = {'a': a}; c = 1"); save()
cell("a[5] = 7; c = 2; new = 3; os.environ['H_X'] = '1'"); save()
""")
    result = process("""
restore_all()
n = tracker.namespace
cell("gone = (i for i in range(3)); live = 4; import os; os.environ['H_API_KEY'] = 'k'")
save()
report = tracker.check_out(tracker.io.manifest(1)[1], "x-back")
left = sorted(name for name, _ in tracker.variables())
restore_all()
cell("a[6] = 1")
result = [left, n["c"], float(n["a"][5]), float(n["b"]["a"][6]), n["b"]["a"] is n["a"], tracker.version]
cell("c = 5"); save()
import os
result += [os.environ.get("H_X"), os.environ.get("H_API_KEY")]
""")
    assert result == [["a", "b", "c", "np", "os"], 1, 0.0, 1.0, True, 4, None, "k"]
    assert process("restore_all(); n = tracker.namespace; result = [n['c'], float(n['a'][6])]") == [5, 1.0]
