"""Cells that a kernel takes for CPU cells and that use a GPU: taken back, run on one, learned; and the reverse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300)]

HELPER = """
def up(t):
    return t.cuda()

def careful(t):
    try:
        return t.cuda()
    except Exception:
        return t

def stubborn(t):
    try:
        return t.cuda()
    except:
        print('on the CPU then')
        return t

def nothing(t):
    return t
"""


def test_cell_that_uses_a_gpu_on_the_cpu_is_taken_back_and_run_on_one(notebook: Any, tmp_path: Path) -> None:
    (tmp_path / "own_helper.py").write_text(HELPER)
    notebook.ok("import random, torch, own_helper\nxs, t, gen = [1], torch.ones(3), (n for n in range(3))")
    source = "xs.append(len(xs)); random.seed(1); print('seen', xs)\ny = own_helper.up(t)\nprint(y.device)\nlen(xs)"
    first = notebook.ok(source)
    assert first.report["run_again"] and first.report["label"] == "gpu" and first.report["gpu"] is not None
    assert first.kinds.index("clear_output") == first.kinds.index("stream") + 1
    assert first.kinds.count("clear_output") == 1 and first.value == "2" and "error" not in first.kinds
    assert notebook.ok("print(xs, In[-2] == " + repr(source) + ", Out[2], _2)").text == "[1, 1] True 2 2\n"
    again = notebook.ok(source)
    assert again.report["run_again"] is None and again.value == "3" and "was learned" in again.report["reason"]
    for swallowing in ("careful", "stubborn"):
        kept = notebook.ok(f"xs.append(5)\nz = own_helper.{swallowing}(t)\nz.is_cuda, len(xs)")
        assert kept.value == f"(True, {4 if swallowing == 'careful' else 5})" and kept.report["run_again"]
    # What went outside is not repeated, nor what no version can bring back.
    for effect, said in (("open('out.txt', 'a').write('x')", "out.txt"), ("next(gen)", "`gen`"), ("!true", "process")):
        source = f"{effect}\nw = own_helper.up(t)"
        refused = notebook.run(source)
        assert refused.ename == "RERUN_REFUSED" and said in refused.error, refused
    assert (tmp_path / "out.txt").read_text() == "x"
    told = notebook.ok("%looseleaf explain").text
    assert "learned: gpu, at most" in told
    assert told.count("run again on a GPU; learned: gpu") == 3 and told.count("not run again; learned: gpu") == 3
    # The reverse: a cell that looks like one for a GPU.
    where = notebook.ok("class Place:\n    device = 'cpu'\nplace = Place()\nplace.__class__ = Place")
    assert where.report["path"] == "cpu"
    found = [notebook.ok("moved = own_helper.nothing(t).to(vars(Place)['device'])").report for _ in range(2)]
    assert [report["path"] == "cpu" for report in found][1], found
