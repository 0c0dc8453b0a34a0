"""Variables of an older version beside the present ones."""

from __future__ import annotations

from typing import Any

SETUP = """
cell('''
import numpy as np
class Net:
    rate = 1
    def __init__(self, a): self.a = a
def helper(): return 'same'
def loud(): return 'old'
a = np.zeros(100_000); b = {'a': a}; small = 5
net = Net(a); nets = [net, net]; used = [helper, loud]
'''); save()
cell('''
a[0] = 7; b['more'] = 1; small = 6; Net.rate = 2; net.a = a[:3].copy()
def loud(): return 'new'
used.append(loud)
'''); save()
"""
LOAD = """
from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.checkpoint.old_version import let_go, load_copies
tracker.restore([])
old = decode_manifest(io.manifest(1)[1])
def load(*names):
    copies = load_copies(tracker, old, names)
    assert not copies.failed, copies.failed
    return copies.values
"""


def test_copies_share_with_each_other_and_no_data_with_the_present(process: Any) -> None:
    process(SETUP)
    result = process(
        LOAD + "restore_all(); n = tracker.namespace; found = load('a', 'b', 'net', 'nets', 'small')\n"
        "found['a'][1] = 3\n"
        "result = [float(found['a'][0]), found['b'], found['b']['a'] is found['a'], found['net'].a is found['a'],\n"
        "          found['nets'][0] is found['nets'][1] is found['net'], found['small'], float(n['a'][0]),\n"
        "          float(n['a'][1]), n['b']['a'] is n['a'], n['small'], sorted(n['b'])]\n"
        "result[1] = sorted(result[1])"
    )
    assert result == [0.0, ["a"], True, True, True, 5, 7.0, 0.0, True, 6, ["a", "more"]]


def test_code_is_the_present_one_where_that_is_what_was_meant(process: Any) -> None:
    process(SETUP)
    # In a process that has loaded nothing of the present yet.
    result = process(
        LOAD + "found = load('net', 'used'); restore_all(); n = tracker.namespace\n"
        "result = [type(found['net']) is n['Net'], found['net'].rate, found['used'][0] is n['helper'],\n"
        "          found['used'][1](), found['used'][1] is n['loud'], n['loud']()]\n"
        "asked = load('Net', 'net', 'loud')\n"
        "result += [asked['Net'] is n['Net'], asked['Net'].rate, type(asked['net']) is asked['Net'], asked['loud']()]"
    )
    assert result == [True, 2, True, "old", False, "new", False, 1, True, "old"]


def test_copies_that_are_bound_are_saved_as_any_value_and_may_be_let_go(process: Any) -> None:
    process(SETUP)
    result = process(
        LOAD + "from looseleaf.checkpoint.stub import is_stub\n"
        "restore_all(); n = tracker.namespace; n.update(load('a', 'b')); n['was'] = load('net')['net']\n"
        "before = io.put_bytes; report = save(); let_go(tracker, ['a', 'b', 'nobody'])\n"
        "result = [io.put_bytes - before, is_stub(n['a']), is_stub(n['b']), is_stub(n['was']), 'nobody' in n]\n"
        "restore('a'); cell('a[5] = 1'); save()"
    )
    # Content that the store has is not moved again.
    assert result == [0, True, True, False, False]
    assert process(
        "restore_all(); n = tracker.namespace\n"
        "result = [float(n['a'][0]), float(n['a'][5]), n['b']['a'] is n['a'], n['was'].a is n['a'],\n"
        "          float(n['was'].a[5]), len(n['net'].a), type(n['was']) is n['Net']]"
    ) == [0.0, 1.0, True, False, 0.0, 3, True]
