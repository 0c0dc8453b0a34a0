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
