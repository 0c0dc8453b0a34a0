"""Following another holder when the store is away."""

from __future__ import annotations


def test_advance_while_the_store_is_away_changes_nothing_and_the_next_one_does_it_all(process):
    result = process("""
import random
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.errors import Unavailable
cell("a = [1, {}]")
random.seed(1)
save()
here = random.getstate()
other = {}
tracker2 = StateTracker(other, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
tracker2.restore(["a"])
other["a"].append(2)
random.seed(2)
left = random.getstate()
tracker2.save("x-other")
random.setstate(here)
fetch_units = io.fetch_units
def away(hashes):
    raise Unavailable("STORE_DOWN", "nobody answers")
io.fetch_units = away
try:
    advance()
except Unavailable as error:
    reason = error.reason
result = [reason, tracker.version, check("a"), random.getstate() == here]
io.fetch_units = fetch_units
result += [list(advance().dropped), tracker.version, random.getstate() == left]
""")
    assert result == ["STORE_DOWN", 1, [1, {}], True, ["a"], 2, True]


def test_advance_after_a_fallback_never_takes_old_memory_for_what_got_its_id(process):
    result = process("""
from looseleaf.checkpoint.tracker import StateTracker
cell("import numpy as np; a = [1]")
save()
cell("z = np.zeros(100_000); _ = z")
save()
# The host that held version 2 is lost; its ids are given out again.
(io.root / "versions" / "00000002").unlink()
advance()
tracker2 = StateTracker(other := {}, io, session_id="s-test", epoch=2, hidden=lambda n: n.startswith("__"))
tracker2.restore(["a"])
other.update({f"l{i}": [i] for i in range(5)})
tracker2.save("x-other")
advance()
restore(*other)
result = [check(f"l{i}") for i in range(5)]
""")
    assert result == [[0], [1], [2], [3], [4]]


def test_advance_reports_an_unsaved_value_that_holds_a_dropped_member_of_a_bundle(process):
    result = process("""
from looseleaf.checkpoint.bundles import BUNDLE_HEADS_MIN
from looseleaf.checkpoint.tracker import StateTracker
cell(f"import threading; a = [[i] for i in range({BUNDLE_HEADS_MIN + 10})]; b = list(a)")
cell("lock = threading.Lock(); lock.acquire(); mine = [a[3], lock]")
save()
tracker2 = StateTracker(other := {}, io, session_id="s-test", epoch=1, hidden=lambda n: n.startswith("__"))
tracker2.restore(["a", "b"])
other["a"][3].append(1)
tracker2.save("x-other")
result = [list(entry) for entry in advance().stale]
""")
    assert result == [["mine", "mine[0]"]]
