"""Restores whose objects run code of the session while they are made."""

from __future__ import annotations


def test_restore_of_an_object_whose_making_reads_other_variables_succeeds(process):
    process("""
cell('''
def size():
    return 3
class Sized:
    def __init__(self):
        self.items = [0] * size()
    def __getstate__(self):
        return {"nothing": None}
    def __setstate__(self, state):
        self.items = [1] * size()
sized = Sized()
holder = [sized, 5]
''')
save()
""")
    assert process("restore('holder'); result = check('[holder[0].items, holder[1]]')") == [[1, 1, 1], 5]
