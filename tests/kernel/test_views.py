"""Looking at variables whose values are not in the kernel: nothing is loaded, nothing is raised, the header answers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from looseleaf.kernel.views import without_views

MAKE = """%%gpu
array = np.arange(10000.0).reshape(100, 100)
table = pd.DataFrame({"a": range(5)})
column = table.a.copy()
items, mapping, pair, some, text = [1, 2, 3], {"k": 1}, (1, 2), {1, 2}, "x" * 100_000
tensor = torch.ones(50, 60)
layer = torch.nn.Linear(3, 4)
plain = Plain()
space = types.SimpleNamespace(q=1)
def double(a, b=2):
    return a * b
lines = (i for i in range(3))
"""
# Variable -> type, a part of what is shown of it, how many items it has.
SHOWN: dict[str, tuple[str, str, int | None]] = {
    "array": ("ndarray", "(100, 100), float64", 100), "table": ("DataFrame", "(5, 1)", 5),
    "column": ("Series", "(5,), int64", 5), "items": ("list", "[1, 2, 3]", 3), "mapping": ("dict", "{'k': 1}", 1),
    "pair": ("tuple", "(1, 2)", 2), "some": ("set", "{1, 2}", 2), "text": ("str", "'xxx", 100_000),
    "tensor": ("Tensor", "(50, 60), torch.float32", 50), "layer": ("Linear", "Linear object", None),
    "plain": ("Plain", "Plain object", None), "space": ("SimpleNamespace", "SimpleNamespace object", None),
    "double": ("function", "function double(a, b=2)", None),
}  # fmt: skip


class Looker:
    """A front end that looks; `loads()`: what the kernel fetched since the last call."""

    def __init__(self, notebook: Any, daemon: Any) -> None:
        self.notebook = notebook
        self.client = notebook.client
        self._requests = daemon.requests

    def loads(self) -> list[str]:
        found = [kind for kind, _ in self._requests if kind in ("fetch_units", "map_regions")]
        self._requests.clear()
        return found

    def silently(self, code: str, **content: Any) -> Any:
        """Code that no cell holds, as variable views send it."""
        whole = {
            "code": code, "silent": False, "store_history": False, "user_expressions": {}, "allow_stdin": False,
            "stop_on_error": False, **content,
        }  # fmt: skip
        message = self.client.session.msg("execute_request", whole)
        self.client.shell_channel.send(message)
        outcome = self.notebook.finish(message["header"]["msg_id"])
        assert outcome.reply["status"] == "ok", outcome
        return outcome

    def complete(self, text: str) -> list[str]:
        content = self.client.complete(text, len(text), reply=True, timeout=30)["content"]
        assert content["status"] == "ok"
        return [match.rpartition(".")[2] for match in content["matches"]]

    def inspect(self, text: str) -> str:
        content = self.client.inspect(text, len(text), 0, reply=True, timeout=30)["content"]
        assert content["found"], text
        return str(content["data"]["text/plain"])

    def debug(self, command: str, **arguments: Any) -> Any:
        request = {"type": "request", "seq": 1, "command": command, "arguments": arguments}
        reply = self.notebook.control("debug_request", request)()
        assert reply["success"], reply
        return reply["body"]


@pytest.fixture(scope="module")
def stubs(shared_notebook: Any) -> None:
    shared_notebook.ok("import numpy as np, pandas as pd, torch, types, sys, copy, pickle, threading")
    shared_notebook.ok("class Plain:\n    rate = 3\n    def fit(self, n):\n        'Fits.'\n        return n")
    shared_notebook.ok(MAKE)


@pytest.fixture
def looker(notebook: Any, stubs: None, daemon: Any) -> Iterator[Looker]:
    """Whoever looks; nothing may be loaded meanwhile."""
    found = Looker(notebook, daemon)
    found.loads()
    yield found
    assert found.loads() == []


@pytest.mark.parametrize("jedi", [False, True])
def test_completion_offers_the_members_of_what_is_not_here(looker: Looker, jedi: bool) -> None:
    looker.silently(f"%config IPCompleter.use_jedi = {jedi}")
    assert {"head", "shape"} < set(looker.complete("table.")) and "shape" in looker.complete("tensor.sh")
    assert {"fit", "rate"} <= set(looker.complete("plain.")) and "append" in looker.complete("items.app")
    assert looker.complete("items.sh") == looker.complete("double.sh") == []
    for name in SHOWN:
        looker.complete(f"{name}['")


def test_inspection_tells_what_is_saved(looker: Looker) -> None:
    for name, (kind, shown, _) in SHOWN.items():
        text = looker.inspect(name)
        assert kind in text and shown in text and "not loaded here" in text, text
    assert "n:" in looker.inspect("table.head(") and "Fits." in looker.inspect("plain.fit(")
    assert "GENERATOR" in looker.inspect("lines")


# As the view of VS Code asks, and the variable inspector of JupyterLab.
LIST = """
import json
def described(value):
    kind = type(value)
    found = {"type": f"{kind.__module__}.{kind.__qualname__}", "bases": [base.__name__ for base in kind.__mro__],
             "size": sys.getsizeof(value), "names": [n for n in dir(value) if not n.startswith("_")][:3],
             "value": repr(value)[:300], "dict": hasattr(value, "__dict__"), "shape": None, "count": None}
    if hasattr(value, "shape") and isinstance(value.shape, tuple):
        found["shape"] = str(value.shape)
    if hasattr(value, "__len__"):
        try:
            found["count"] = len(value)
        except TypeError:
            pass
    for wanted in ("dtype", "device", "name", "is_cuda"):
        if hasattr(value, wanted):
            found[wanted] = repr(getattr(value, wanted))
    return found
def inspected(value):
    if type(value).__name__ in ("ndarray", "Series"):
        size = value.nbytes
    elif isinstance(value, torch.Tensor):
        size = value.element_size() * value.nelement()
    elif type(value).__name__ == "DataFrame":
        size = value.memory_usage().sum()
    else:
        size = sys.getsizeof(value)
    shape = [len(value) if isinstance(value, (list, dict)) else None]
    if isinstance(value, pd.DataFrame):
        shape = ", ".join(value.columns.map(str))
    elif isinstance(value, np.ndarray):
        shape = value.__repr__()
    return [size, shape, str(value)[:150], isinstance(value, str), issubclass(type(value), pd.Series)]
NAMES = %who_ls
"""
ASK = "print(json.dumps({n: [described(globals()[n]), inspected(eval(n))] for n in NAMES if n in %r}))"


def test_variable_views_show_what_is_saved(looker: Looker) -> None:
    looker.silently(LIST)
    told = json.loads(looker.silently(ASK % (list(SHOWN),)).text)
    for name, (kind, shown, count) in SHOWN.items():
        described, inspected = told[name]
        assert kind in described["type"] and shown in described["value"] and described["count"] == count
        assert shown in inspected[2]
    assert told["tensor"][0]["shape"] == "torch.Size([50, 60])" and told["array"][0]["dtype"] == "dtype('float64')"
    assert told["items"][0]["shape"] is told["plain"][0]["shape"] is None
    for silent in (True, False):
        reply = looker.silently("1", silent=silent, user_expressions={name: name for name in SHOWN}).reply
        for name, (_, shown, _) in SHOWN.items():
            assert shown in reply["user_expressions"][name]["data"]["text/plain"]


def test_debuggers_view_shows_what_is_saved(looker: Looker) -> None:
    told = {entry["name"]: entry for entry in looker.debug("inspectVariables")["variables"]}
    for name, (kind, shown, _) in SHOWN.items():
        assert kind in told[name]["type"] and shown in told[name]["value"]
        assert shown in looker.debug("richInspectVariables", variableName=name)["data"]["text/plain"]


@pytest.mark.parametrize("cell", ["%whos", "locals()", "print(globals())", "one = 1\n%whos", "%%cpu\n%whos"])
def test_cell_that_only_looks_shows_what_is_saved(looker: Looker, cell: str) -> None:
    outcome = looker.notebook.ok(cell)
    shown = outcome.text or outcome.result
    for kind, preview, _ in SHOWN.values():
        assert f"{kind} (not loaded)" in shown or f"{kind} not loaded: " in shown
        assert preview[:8] in shown or "<...>" in shown


def test_cell_that_only_asks_for_names_or_help_loads_nothing(looker: Looker) -> None:
    assert "table" in looker.notebook.ok("%who").text
    assert "table" in looker.notebook.ok("[n for n in sorted(globals()) if n == 'table'], len(dir())").result
    for cell in ("table?", "table.head?", "double??", "%pdoc table", "%pdef double", "%psource double", "%pfile table"):
        outcome = looker.notebook.ok(cell)
        assert not outcome.kinds or outcome.text, cell
    (page,) = looker.notebook.ok("table?").reply["payload"]
    assert "DataFrame (not loaded)" in page["data"]["text/plain"]


USES = """
heard, go, done = [], threading.Event(), threading.Event()
USES = {
    "isinstance": lambda v: isinstance(v, torch.Tensor), "hasattr": lambda v: hasattr(v, "grad_fn"),
    "copy": copy.copy, "deepcopy": copy.deepcopy, "pickle": pickle.dumps, "float": float, "iter": list,
    "add": lambda v: 1 + v, "set": lambda v: setattr(v, "a", 1), "array": np.asarray, "torch": torch.sum,
    "format": lambda v: f"{v:.2f}", "equal": lambda v: v == 1, "bool": bool, "hash": hash, "index": lambda v: v[0],
}
def work():
    go.wait(20)
    for name, use in USES.items():
        try:
            heard.append((name, use(tensor)))
        except Exception as error:
            heard.append((name, str(error)))
    heard.append(("type", type(tensor).__name__))
    done.set()
threading.Thread(target=work, daemon=True).start()
"""


def test_thread_that_uses_what_is_not_here_is_told_the_name(notebook: Any, stubs: None) -> None:
    notebook.ok(USES)
    notebook.ok("%%gpu\ntensor = torch.zeros(3)")
    told = eval(notebook.ok("go.set(); done.wait(20); heard").result)
    assert told.pop() == ("type", "Tensor (not loaded)") and len(told) == 16
    for name, answer in told:
        assert str(answer).startswith("NOT_RESTORED: `tensor` is saved but not loaded here"), (name, answer)


def test_display_in_a_cell_loads(notebook: Any, stubs: None, daemon: Any) -> None:
    looker = Looker(notebook, daemon)
    assert notebook.ok("items").result == "[1, 2, 3]" and "fetch_units" in looker.loads()
    assert notebook.ok("{k: v for k, v in globals().items() if k == 'pair'}").result == "{'pair': (1, 2)}"


@pytest.mark.parametrize(
    ("cell", "rest"),
    [
        ("%whos", ""), ("x?", ""), ("x.y??\nz", "z"), ("locals()", ""), ("print(globals())", ""), ("%%time\n%whos", ""),
        ("%%cpu\n%who\na", "%%cpu\na"), ("%%gpu\nprint(len(globals()))\nx.cuda()", "%%gpu\nx.cuda()"),
        ("if len(dir()) > 3:\n    x", "if object() > 3:\n    x"),
        *((cell, cell) for cell in (
            "y = locals()", "globals()['x']", "print(vars(x))", "dir(x)", "f(x", "!ls", "%timeit x", "a = 1  # ?",
            "eval('x')", "print(globals(), x)",
        )),
    ],
)  # fmt: skip
def test_what_only_looks_is_left_out(cell: str, rest: str) -> None:
    assert without_views(cell) == rest
