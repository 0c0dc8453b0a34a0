"""Arrow data: what shares buffers shares them after a restore, and only what changed moves."""

from __future__ import annotations

import pytest

pytest.importorskip("pyarrow", reason="pyarrow is not installed")

NUMBERS = "import pyarrow as pa\nbig = pa.array(range(100_000))\n"


def test_slices_tables_and_chunks_share_their_buffers_across_variables_and_workers(process):
    process(f"""
cell('''{NUMBERS}
small = big.slice(10, 5)
table = pa.table({{"a": big}}); chunked = pa.chunked_array([big, small]); batch = pa.record_batch({{"a": big}})
alias = big
''')
save()
""")
    result = process("""
restore_all()
n = tracker.namespace
at = lambda array: array.buffers()[1].address
where = at(n["big"])
others = [n["small"], n["table"]["a"].chunk(0), n["chunked"].chunk(1), n["batch"].column(0)]
moved = save().bytes_moved
cell("more = big.slice(3)")
same = [at(one) == where for one in others]
result = [n["alias"] is n["big"], n["small"].to_pylist(), same, where % 64, moved, save().bytes_moved < 50_000]
""")
    assert result == [True, [10, 11, 12, 13, 14], [True] * 4, 0, 0, True]


def test_subset_of_arrow_variables_restores_alone(process):
    process(f"cell('''{NUMBERS}other = pa.array(range(200_000))'''); save()")
    result = process("report = restore('big'); result = [report.mapped_bytes, len(tracker.namespace['big'])]")
    assert result == [800_000, 100_000]


@pytest.mark.parametrize("make", [
    "pa.array([1, None, 3])", "pa.array(['a', None, 'ccc'])", "pa.array(['x', 'y', 'x']).dictionary_encode()",
    "pa.array([[1], None, [2, 3]])", "pa.array([{'a': 1, 'b': 'x'}, None])", "pa.array([], pa.int64())",
    "pa.array([True, None, False]).slice(1)", "pa.nulls(3)", "pa.array([b'a', b'bb'], pa.large_binary())",
    "pa.table({'a': [1, 2], 'b': ['x', None]})", "pa.py_buffer(b'abc' * 50_000)",
    "pa.array(range(9000)).view(pa.timestamp('ms'))",
    "pa.array([1.5] * 9000, pa.float32())", "pa.table({'k': pa.array(['v'] * 9000).dictionary_encode()})",
])  # fmt: skip
def test_each_kind_of_arrow_data_comes_back_equal(process, make):
    process(f"cell('import pyarrow as pa\\nvalue = {make.replace(chr(39), chr(34))}'); save()")
    result = process(f"""
restore_all()
import pyarrow as pa
value, wanted = tracker.namespace["value"], {make}
if hasattr(value, "validate"):
    value.validate(full=True)
result = [value.equals(wanted), str(getattr(value, "type", type(value))) == str(getattr(wanted, "type", type(wanted)))]
""")
    assert result == [True, True]


def test_frame_with_arrow_strings_shares_and_moves_once(process):
    pytest.importorskip("pandas", reason="pandas is not installed")
    process("""
cell('''
import pandas as pd
frame = pd.DataFrame({"s": pd.array([f"user-{i}" for i in range(50_000)], dtype="string[pyarrow]")})
part = frame["s"].iloc[:100]
''')
save()
""")
    result = process("""
restore_all()
n = tracker.namespace
cell('frame["n"] = range(len(frame))')
result = [n["frame"]["s"].iloc[-1], n["part"].iloc[99], save().bytes_moved < 1_000_000]
""")
    assert result == ["user-49999", "user-99", True]


def test_memory_of_dead_arrays_is_not_taken_for_that_of_new_ones(process):
    result = process("""
cell('''
import pyarrow as pa
a = pa.array(range(100_000))
''')
save()
for start in range(5):
    cell(f'''
del a
a = pa.array(range({start}, 100_000 + {start}))
''')
    save()
result = tracker.namespace["a"][0].as_py()
""")
    assert result == 4
    assert process("restore_all(); result = tracker.namespace['a'][0].as_py()") == 4
