"""`%looseleaf` in a real kernel: older versions looked at, gone back to, taken apart."""

from __future__ import annotations

import re
from typing import Any

import pytest

from looseleaf.checkpoint.history import Change, made_newest
from looseleaf.checkpoint.manifest import UnitHeader, Unsaved, decode_manifest, encode_manifest
from looseleaf.checkpoint.version_list import ListedVersion
from looseleaf.errors import LooseLeafError, NotFound, PreconditionFailed
from looseleaf.ids import CellId, Epoch, ExecutionId
from looseleaf.kernel.history_magics import (
    HELP,
    checkout_text,
    diff_text,
    log_text,
    plain,
    refuse_on_worker,
    release_text,
    restore_text,
)
from looseleaf.kernel.holders import Released
from looseleaf.kernel.run_log import RunLog
from looseleaf.kernel.time_travel import CheckedOut, Restored
from looseleaf.recipe.history_line import parse_history_line


def listed(*numbers: int) -> list[ListedVersion]:
    return [ListedVersion(number, number - 1, 0, number % 2 == 0, 2048, 3, f"x-{number}") for number in numbers]


def test_log_text_names_cells_and_what_is_gone() -> None:
    runs = RunLog()
    runs.add(CellId("c"), "\n%%gpu\n  x = 1\ny = 2", ok=True)
    runs.saved(6)
    runs.add(CellId("c"), "z = 1", ok=True)
    runs.add(CellId("c"), "w" * 200, ok=True)
    runs.saved(7)
    lines = log_text(listed(7, 6, 3), runs, whole=True).splitlines()
    assert [line.split()[0] for line in lines] == ["version", "7", "6", "4-5", "3", "1-2"]
    assert lines[1].endswith("w…  (+1)") and lines[2].endswith("x = 1") and "no longer kept" in lines[3]
    assert "durable" in lines[2] and "staged" in lines[1] and "2.0 KiB" in lines[1]
    assert log_text(listed(7, 6, 3), runs, whole=False).splitlines()[-1].split()[0] == "3"
    assert log_text([], runs, whole=True) == "this session has no saved version yet"


def test_diff_text_is_one_line_a_variable() -> None:
    header = UnitHeader(preview="array([1,\n 2])")
    found = [
        Change("a", "changed", header, header, 3 << 20),
        Change("g", "unsaved", header, None, why_unsaved=Unsaved("g", "GENERATOR", "g[0]")),
    ]
    lines = diff_text(3, 5, found).splitlines()
    assert lines[1].split() == ["a", "changed", "array([1,", "2])", "array([1,", "2])", "3.0", "MiB"]
    assert lines[2].split()[-4:] == ["GENERATOR", "at", "g[0]", "-"]
    assert diff_text(3, 5, []) == "nothing differs between version 3 and version 5"


def test_texts_say_what_was_done_and_how_to_undo_it() -> None:
    done = CheckedOut(3, 9, 8, kept=("gen",), dropped=("conn",), problems=("no such folder",))  # type: ignore[arg-type]
    text = checkout_text(done)
    assert "version 3, now version 9" in text and "checkout 8` undoes it" in text
    assert "gen" in text and "conn" in text and "no such folder" in text
    assert "nothing to do" in checkout_text(CheckedOut(3, 3, 3))  # type: ignore[arg-type]
    restored = Restored(3, 8, ("a", "b"), ("c",))  # type: ignore[arg-type]
    text = restore_text(restored, 9, "")
    assert "a, b: from version 3, now version 9" in text and "restore a b --version 8` undoes it" in text
    assert "the same at version 3: c" in text
    assert "undoes" not in restore_text(Restored(3, 8, ("n",)), 9, "n")  # type: ignore[arg-type]
    assert "not saved yet: no room" in restore_text(Restored(3, 8, ("n",), problem="no room"), 8, "")  # type: ignore[arg-type]


def test_help_lists_every_command_that_the_parser_knows() -> None:
    for words in re.findall(r"^%looseleaf (\w+)", HELP, re.MULTILINE):
        arguments = {"checkout": " 1", "restore": " x"}.get(words, "")
        assert parse_history_line(words + arguments).command == words


def test_error_of_a_magic_is_its_reason_and_text_only() -> None:
    shown: Any = plain(NotFound("VERSION_PRUNED", "version 2 is gone", version=2))
    assert isinstance(shown, NotFound) and type(shown).__name__ == "VERSION_PRUNED"
    assert str(shown) == "version 2 is gone"
    assert shown._render_traceback_() == ["VERSION_PRUNED: version 2 is gone"] and shown.fields == {"version": 2}


@pytest.mark.parametrize(
    "source", ["%looseleaf log", "%%gpu\n%looseleaf checkout 3", "%%gpu\n%%time\nx = 1\n%looseleaf log"]
)
def test_magic_in_a_cell_for_a_worker_is_refused(source: str) -> None:
    with pytest.raises(PreconditionFailed, match="MAGIC_IN_GPU_CELL"):
        refuse_on_worker(source)
    refuse_on_worker("%%gpu\n%time x = 1\nprint('%looseleaf log')")


# -- in a kernel ---------------------------------------------------------------------------------------


COMMIT = "session = get_ipython().kernel.looseleaf; session.changed(); session.commit(); del session"


@pytest.fixture
def own_daemon(new_daemon: Any) -> Any:
    return new_daemon()


@pytest.fixture
def notebook(own_daemon: Any, new_notebook: Any) -> Any:
    """A notebook of this test's own: its versions count from 1. `Notebook.commit()` makes one now."""
    made = new_notebook(own_daemon.path)
    made.commit = lambda: made.ok(COMMIT)
    return made


def test_checkout_goes_back_and_its_undo_comes_back(notebook: Any) -> None:
    notebook.ok("x = [1]; y = {'x': x}; kept = (i for i in range(3))")
    notebook.commit()
    notebook.ok("x.append(2); z = 'new'; __import__('os').environ['H_HISTORY'] = 'later'")
    shown = notebook.ok("%looseleaf checkout -1\nprint(x, y['x'] is x, 'z' in dir(), next(kept))").text
    assert "[1] True False 0" in shown and "left as they are" in shown and "kept" in shown
    before = re.search(r"`%looseleaf checkout (\d+)` undoes it", shown)
    assert before is not None
    assert notebook.ok("__import__('os').environ.get('H_HISTORY', 'none')").result == "'none'"
    notebook.ok("x.append(3)")
    assert notebook.ok("y['x']").result == "[1, 3]"
    notebook.ok(f"%looseleaf checkout {before[1]}")
    assert notebook.ok("(x, y['x'] is x, z, __import__('os').environ['H_HISTORY'], next(kept))").result == (
        "([1, 2], True, 'new', 'later', 1)"
    )


def test_restore_takes_some_variables_and_their_sharing_and_leaves_the_rest(notebook: Any) -> None:
    notebook.ok("import numpy as np; a = np.zeros(100_000); b = {'a': a}; c = {'a': a}")
    notebook.ok("class Net: pass\nn = Net(); n.v = 1")
    notebook.commit()
    notebook.ok("a[0] = 5; c['later'] = 1; n.v = 2; rest = 'here'")
    notebook.ok("%looseleaf restore a b n")
    shown = notebook.ok("(a[0], b['a'] is a, c['a'][0], c['a'] is a, n.v, type(n) is Net, rest)").result
    assert shown.replace("np.float64", "").replace("(0.0)", "0.0").replace("(5.0)", "5.0") == (
        "(0.0, True, 5.0, False, 1, True, 'here')"
    )
    notebook.ok("%looseleaf restore n --as was")
    assert notebook.ok("(n.v, was.v, type(was) is Net)").result == "(1, 2, True)"
    assert "the same" in notebook.ok("%looseleaf restore c --version -1").text


def test_bad_lines_change_nothing_and_say_why(notebook: Any) -> None:
    notebook.ok("x = 1; g = (i for i in range(3))")
    notebook.commit()
    for line, reason in {
        "checkout 99": "VERSION_UNKNOWN", "checkout": "MAGIC_MALFORMED", "frobnicate": "MAGIC_MALFORMED",
        "restore nothing --version 1": "NOT_IN_VERSION", "restore g --version 1": "NOT_IN_VERSION",
        "restore x": "NOT_IN_VERSION", "restore x --version 1 --as In": "NAME_REFUSED", "diff 5 6": "VERSION_UNKNOWN",
    }.items():  # fmt: skip
        outcome = notebook.run(f"%looseleaf {line}")
        assert outcome.error[0] == reason, (line, outcome)
        assert "Traceback" not in "".join(outcome.reply["traceback"]), line
    assert notebook.ok("(x, next(g))").result == "(1, 0)"
    assert "%looseleaf checkout VERSION" in notebook.ok("%looseleaf").text
    assert "a generator is a running function" in notebook.run("%looseleaf restore g --version 1").error[1]


def test_value_that_no_version_holds_is_not_lost_to_a_checkout(notebook: Any) -> None:
    notebook.ok("g = 1; other = 1")
    notebook.commit()
    notebook.ok("g = (i for i in range(3)); other = 2")
    outcome = notebook.run("%looseleaf checkout 1")
    assert outcome.error[0] == "UNSAVED_WOULD_GO" and "'g'" in outcome.error[1]
    assert notebook.ok("(next(g), other)").result == "(0, 2)"
    assert "given up" in notebook.ok("%looseleaf checkout 1 --force").text
    assert notebook.ok("(g, other)").result == "(1, 1)"


def test_pruned_version_is_named_as_such(notebook: Any, own_daemon: Any) -> None:
    for number in range(4):
        notebook.ok(f"x = {number}")
        notebook.commit()
    del own_daemon.store.manifests[2]
    assert "no longer kept" in notebook.ok("%looseleaf log").text
    assert notebook.run("%looseleaf checkout 2").error[0] == "VERSION_PRUNED"
    assert notebook.run("%looseleaf restore x --version 2").error[0] == "VERSION_PRUNED"
    assert "session" in notebook.ok("%looseleaf status").text


def test_without_a_cluster_it_says_so(new_notebook: Any) -> None:
    notebook = new_notebook()
    notebook.ok("x = 1")
    for line in ("log", "status", "diff", "checkout 1", "restore x"):
        assert notebook.run(f"%looseleaf {line}").error[0] == "NO_CLUSTER"
    assert notebook.ok("x").result == "1"


def test_definitions_are_those_of_the_version(notebook: Any) -> None:
    notebook.ok("helper = 'old'\ndef f(): return helper")
    notebook.commit()
    notebook.ok("def f(): return 1 / 0")
    notebook.ok("%looseleaf checkout -1")
    assert notebook.ok("f()").result == "'old'"


def test_kernel_that_lost_the_session_takes_the_version_and_says_so(
    notebook: Any, own_daemon: Any, new_daemon: Any
) -> None:
    notebook.ok("x = [1]\ndef f(): return x")
    notebook.commit()
    notebook.ok("x.append(2); y = 'later'\ndef f(): return y")
    notebook.commit()
    own_daemon.stop()
    store = own_daemon.store
    first, head = (decode_manifest(store.manifests[version]) for version in (min(store.manifests), store.version))
    made = made_newest(
        first, head, session_id=head.session_id, epoch=Epoch(store.epoch), execution_id=ExecutionId("x-1"),
        now_unix_ms=1,
    )  # fmt: skip
    store.commit(encode_manifest(made), made.parent, made.epoch, "x-1")
    new_daemon(store)
    outcome = notebook.ok("print(f(), 'y' in globals())")
    assert f"taken back to version {first.version} from outside" in outcome.text
    assert outcome.text.endswith("[1] False\n")
    notebook.ok(f"%looseleaf checkout {head.version}")
    assert "LooseLeaf:" not in notebook.ok("f()").text and notebook.ok("f()").result == "'later'"


def test_plain_keeps_the_class_that_callers_catch() -> None:
    with pytest.raises(LooseLeafError):
        raise plain(PreconditionFailed("X", "y"))


def test_release_tells_what_went_and_who_did_not_answer() -> None:
    assert release_text(Released(0, [], [])).startswith("no GPU process of this session ended")
    told = release_text(Released(2, ["it"], ["h1", "h2"]))
    assert "2 idle GPU processes" in told and "no version can hold them: it" in told and "no answer from h1, h2" in told
