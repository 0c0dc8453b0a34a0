"""IPython's caches in a worker are those that the kernel told, and the reply tells them back."""

from __future__ import annotations

from typing import Any

import pytest

Worker = Any

NOTHING: dict[str, Any] = {"numbers": [], "last": [[True, True, 0]] * 3, "directories": []}


def results(*numbers: int, last: Any = (0, 0, 0), shown: bool = True) -> dict[str, Any]:
    return {"numbers": list(numbers), "last": [[True, shown, number] for number in last], "directories": [["/a", True]]}


def test_caches_hold_what_the_kernel_told(worker: Worker) -> None:
    worker.run("[1]", 4)
    # Another cell of the kernel came between, whose result is a variable here.
    worker.run("_7 = _ = 'seven'\n__ = _4", 8, results=results(4, last=(4, 0, 0)))
    reply = worker.run("print(_, __, sorted(Out), Out[7], _dh)", 9, results=results(4, 7, last=(7, 4, 0)))
    assert worker.text().endswith("seven [1] [4, 7] seven [PosixPath('/a')]\n")
    assert reply["results"] == results(4, 7, last=(7, 4, 0))


def test_result_of_the_cell_is_told_and_moves_the_others_on(worker: Worker) -> None:
    worker.run("_1, _ = 'one', 'one'", 2, results=NOTHING)
    reply = worker.run("'two'", 3, results=results(1, last=(1, 0, 0)))
    assert reply["results"]["numbers"] == [1, 3]
    assert reply["results"]["last"] == [[True, True, 3], [True, True, 1], [True, True, 0]]


def test_persons_own_underscore_is_told_as_such_and_stays(worker: Worker) -> None:
    reply = worker.run("for _ in range(3): pass\n'shown'", 2, results=NOTHING)
    assert reply["results"]["last"] == [[True, False, 2], [True, True, 0], [True, True, 0]]
    reply = worker.run("print(_)\ndel _\n'new'", 3, results=reply["results"])
    assert worker.text() == "2\n"
    assert reply["results"]["last"] == [[True, True, 3], [True, True, 2], [True, True, 0]]


def test_results_are_told_also_by_a_cell_that_fails(worker: Worker) -> None:
    worker.run("_1 = 'one'", 2)
    reply = worker.run("Out.clear()\n1 / 0", 3, results=results(1))
    assert reply["status"] == "error" and reply["results"]["numbers"] == []


def test_tables_that_a_cell_bound_anew_are_not_the_shells(worker: Worker) -> None:
    worker.run("Out = In = [1]", 2, results=NOTHING)
    reply = worker.run("print(Out, In)\n_oh = None", 3, results=NOTHING)
    assert worker.text() == "[1] [1]\n" and reply["results"]["numbers"] == []


def test_inputs_are_those_of_the_kernel(worker: Worker) -> None:
    worker.run("'of another session'", 5)
    rows = [["", ""], ["!x", "get_ipython().system('x')"], ["b", "b"]]
    reply = worker.run("print(In, _i, _ii, _i1, _ih is In)", 3, inputs={"first": 0, "rows": rows})
    own = "print(In, _i, _ii, _i1, _ih is In)"
    assert worker.text() == f"{['', rows[1][1], 'b', own]} b !x !x True\n"
    assert reply["status"] == "ok"


def test_inputs_left_out_are_empty_and_numbers_stay(worker: Worker) -> None:
    worker.run("print(len(In), In[2], repr(In[1]), _i)", 4, inputs={"first": 2, "rows": [["b", "b"], ["c", "c"]]})
    assert worker.text() == "5 b '' c\n"


@pytest.mark.parametrize(
    "context",
    [
        {"results": {**NOTHING, "last": [[True, True, 0]]}},
        {"results": {**NOTHING, "numbers": ["1"]}},
        {"inputs": {"first": 0, "rows": [["a", None]]}},
    ],
)
def test_malformed_caches_are_refused_and_nothing_runs(worker: Worker, context: dict[str, Any]) -> None:
    refused = worker.begin("ran = 1", **context).exception(timeout=30)
    assert refused.reason == "FIELD_MALFORMED"
    assert worker.run("'ran' in globals()")["status"] == "ok" and worker.messages[-1]["data"]["text/plain"] == "False"
