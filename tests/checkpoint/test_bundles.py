"""Very many small objects that two variables share: one unit, the same semantics."""

# Cells stay in the form in which a person would write them.
# ruff: noqa: E501

from __future__ import annotations

CELL = "rows = [{'i': i, 'peers': []} for i in range(6000)]; index = {r['i']: r for r in rows}; rows[5]['peers'].append(rows[9]); one = rows[7]; other = [1]"


def test_bundle_holds_the_shared_objects_in_one_unit(process):
    result = process(f"cell({CELL!r}); save(); again = save(); result = [len(tracker.manifest.units) < 20, again.nothing_changed]")
    assert result == [True, True]
    result = process("""
restore_all()
result = check("[all(index[i] is r for i, r in enumerate(rows)), rows[5]['peers'][0] is rows[9], one is rows[7], len(rows)]")
report = save()
result += [report.units_written, report.nothing_changed]
""")
    assert result == [True, True, True, 6000, 0, True]


def test_bundle_members_keep_their_place_over_partial_restores_and_changes(process):
    process(f"cell({CELL!r}); save()")
    process("""
restore('index')
assert "rows" in tracker.stub_names()
cell("index[3]['i'] = -3; index[8]['new'] = index[9]; del index[0]; index[6000] = {'i': 6000}; extra = index[4]")
import gc; gc.collect()
save()
""")
    process("restore('rows'); cell('rows[11][\"z\"] = 1; rows.pop(12)'); save()")
    result = process("""
restore_all()
result = check("[rows[3]['i'], rows[8]['new'] is rows[9] is index[9], rows[0]['i'], 0 in index, index[6000], extra is rows[4], one is rows[7], index[11]['z'], len(rows), index[12]['i'], index[13] is rows[12]]")
""")
    assert result == [-3, True, 0, False, {"i": 6000}, True, True, 1, 5999, 12, True]


def test_bundle_with_one_unsavable_member_loses_only_what_reaches_it(process):
    result = process("""
cell("rows = [{'i': i} for i in range(5000)]; index = dict(enumerate(rows)); bad = [{'j': 1}]; worse = [bad[0]]; bad[0]['g'] = (i for i in [])")
result = sorted(u.name for u in save().unsaved)
""")
    assert result == ["bad", "worse"]


def test_bundle_of_a_long_chain_is_cut(process):
    process("""
cell('''
class N: pass
nodes = [N() for _ in range(6000)]
for a, b in zip(nodes, nodes[1:]): a.next = b
index = dict(enumerate(nodes))
''')
assert save().unsaved == ()
""")
    result = process("restore_all(); result = check('all(a.next is b for a, b in zip(nodes, nodes[1:])) and index[7] is nodes[7] and type(nodes[0]) is N')")
    assert result is True
