"""Texts that no one should write, and that notebooks have: each has facts, a recipe and a place in the log."""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looseleaf.recipe import CellRun, ExecutionLog, NameFacts, Payload, analyze

CORPUS = Path(os.environ.get("LOOSELEAF_CORPUS", Path(__file__).parents[3] / "shared" / "corpus"))
DEEP = 3000


def ask_all(text: str, log: ExecutionLog | None = None) -> None:
    """Every question about `text` has an answer: while it is typed, at Run, with headers, in the log, failed or not."""
    log = log or ExecutionLog()
    log.record(CellRun(log.length + 1, "a", "import torch\na = b = 1\ndef f(x): return a + x", ok=True))
    headers = {"a": NameFacts(payloads={1: Payload("cuda:0", 1 << 30)}), "f": NameFacts(kind="function")}
    for known in (None, headers):
        for editing in (True, False):
            analysis = analyze(text, cell_id="c", log=log, headers=known, version=1, editing=editing)
            assert 0 <= analysis.recipe.confidence <= 1
            assert analysis.recipe.reason.endswith(".")
            assert set(analysis.recipe.names) <= set(log.definitions if known is None else known)
    log.record(CellRun(log.length + 1, "c", text, ok=True))
    log.record(CellRun(log.length + 1, "c", text, ok=False))
    assert analyze("f(b)", cell_id="d", log=log, headers=None, version=1).recipe is not None


@pytest.mark.parametrize(
    "text",
    [
        "", "\n", " ", "\\", "#", "'''", '"""a', "x = <YOUR CODE>", "def f(", "if x:", "if x:\n", "return 1", "yield",
        "await x", "nonlocal x", "global a\na = 2", "break", "def f(a, a): pass", "x = 1\x00", "\x00", "\ufeffx = a",
        "def f():\n\tx\n        y", "  a\n b", "print 'a'", "print a,", "exec 'x'", "raise E, 'a'", "`a`", "a <> b",
        "0777", "ur'a'", "lambda (x, y): x", "except E, e: pass",
        "a\r\nb\r\n", "a\rb", "a\n\rb", "x = 1\r\n%time a\r\n!ls\r", "a\x0cb\x0c", "a\u2028b", "a\x85b", "a\x1ab",
        "🙂 = 1", "x = a🙂", "é = a\nprint(é)", "ﬁ = a\nprint(fi)", "变量 = a", "x\u200b = 1", "“a”", "a–b",
        "print = a", "type = int\nlist = [type]", "def print(*x): return a\nprint(1)", "__builtins__ = {}",
        "__builtins__['print'] = f", "del print", "import builtins\nbuiltins.print = f", "del __builtins__",
        "globals = a\nglobals()", "get_ipython = f\nget_ipython()", "def get_ipython(): return a", "super = f",
        "None = 1", "True = 2", "__debug__ = 1", "class int(int): pass", "open = f; eval = f; eval('a')",
        "=%\\", "=!\\", "a =%\\\n",
        "%", "%%", "!", "!!", "?", "??", "a?b", "%%time", "%%time\n%%time\na", "%%unknown\n(", "%%gpu 0\na", "%%gpu -1",
        "%%gpu 99999999999999999999\na", "%run", "%run -i a.py", "%time", "%timeit", "%%timeit\n", "%%capture\n(",
        "%%writefile\na", "%%writefile /etc/x\na", "%%bash", "!{", "!{a", "!{a}}", "!{a!r:>{b}}", "!$", "!echo ${a}",
        "%time (", "x = %time (", "%%R -i a,b -o c", "%load_ext", "%magic a b c", "%looseleaf", "%looseleaf restore",
        "%looseleaf restore a b --as", "%looseleaf checkout x", "f'{a", "f'{a!x}'", "f'{'", "f'{a:{b:{f}}}'",
        "f'{f'{a}'}'", "match a:\n  case", "type X = a", "def f[T](x: T): pass", "try:\n  a\nexcept* E: b",
        "a = a = a", "a, *b, *c = x", "(a := 1)", "[a := 1 for a in b]", "lambda: (yield)", "*a", "**a", "a[b:=1]",
        "from . import a", "from .. import *", "from a import (", "import a.b.c.d as e, f", "from __future__ import x",
        "import", "from a import", "from *", "import a as", "@", "@f\n", "@f\nx = 1", "async", "async def f(): a",
        "eval('eval(\"a\")')", "exec('exec(\"exec(1\")')", "exec('\\x00')", "eval('(' * 999)", "a.query('@')",
        "globals()[a]", "globals()['']", "vars()['x'] = a", "__import__('')", "__import__('.a')", "sys.modules[a]",
    ],
)  # fmt: skip
def test_odd_text_has_an_answer(text: str) -> None:
    ask_all(text)


@pytest.mark.parametrize(
    "text",
    [
        "x = " + "+".join(["a"] * DEEP),
        "x = " + ".".join(["a"] * DEEP),
        "x = a" + ".b()" * DEEP,
        "x = a" + "[0]" * DEEP,
        "x = " + "not " * DEEP + "a",
        "x = " + "-" * DEEP + "a",
        "x = " + "(" * 150 + "a" + ")" * 150,
        "x = " + "(" * DEEP + "a" + ")" * DEEP,
        "x = " + "[" * 150 + "a" + "]" * 150,
        "x = " + "f(" * 90 + "a" + ")" * 90,
        "x = " + "lambda: " * 400 + "a",
        "x = " + "a if b else " * 500 + "a",
        "x = " + "(lambda: " * 80 + "a" + ")" * 80,
        "x = " + " and ".join(["a"] * DEEP),
        "x = " + " < ".join(["a"] * DEEP),
        "x = " + "**".join(["a"] * 500),
        "x = " + "''" * DEEP,
        "\n".join(" " * i + "if a:" for i in range(90)) + "\n" + " " * 90 + "a",
        "\n".join(" " * i + "def f():" for i in range(60)) + "\n" + " " * 60 + "a",
        "\n".join(" " * i + "class K:" for i in range(60)) + "\n" + " " * 60 + "a",
        "\n".join(" " * i + "try:" for i in range(19)) + "\n" + " " * 19 + "a\n"
        + "\n".join(" " * i + "finally: b" for i in reversed(range(19))),
        "if a: pass\n" + "elif a: pass\n" * 1500,
        "f" * 100_000,
        "a;" * 20_000,
        "'" + "x" * 500_000 + "'",
        "a = '''" + "{b}\n" * 50_000 + "'''",
        "f'" + "{a}" * 2000 + "'",
        "%%time\n" * 500 + "a",
        "def f(" + ", ".join(f"x{i}=a" for i in range(2000)) + "): pass",
        "[" + " ".join(f"[x{i} for x{i} in a]," for i in range(1000)) + "]",
    ],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_deep_or_long_text_has_an_answer(text: str) -> None:
    ask_all(text)


@pytest.mark.parametrize("depth", [300, 900])
def test_deep_text_still_names_what_it_needs(ask, depth: int) -> None:
    recipe = ask("x = " + " + ".join(["a"] * depth) + "\ny = b", "a = b = c = 1").recipe
    assert recipe.names == ("a", "b")
    assert "x" in recipe.defines


def test_deep_text_that_uses_the_gpu_is_no_cpu_cell_for_sure(ask) -> None:
    text = "y = " + "(lambda: " * 80 + "x.cuda()" + ")" * 80 + "\nx.cuda()"
    assert ask(text, "import torch\nx = torch.zeros(1)").recipe.label == "gpu"


def test_deep_text_with_little_of_the_stack_left_has_an_answer() -> None:
    def down(levels: int) -> None:
        if levels:
            down(levels - 1)
        else:
            ask_all("x = f(a)(b)[a] + f(b)\ndef g(y):\n  return [y for y in f(y)]\ng(x)")

    down(sys.getrecursionlimit() - 400)


def test_cell_of_ten_thousand_lines_has_exact_needs(ask) -> None:
    text = "\n".join(f"v{i} = v{i - 1} + a" for i in range(1, 10_000))
    recipe = ask(f"v0 = b\n{text}", "a = b = c = 1").recipe
    assert recipe.names == ("a", "b")
    assert not recipe.partial


def test_session_of_a_thousand_cells_is_remembered(session, ask) -> None:
    cells = [f"def f{i}(): return f{i - 1}() + x{i}\nx{i} = {i}" for i in range(1, 1000)]
    names = set(ask("f999()", "def f0(): return 0", *cells).state_names)
    assert names == {f"f{i}" for i in range(1000)} | {f"x{i}" for i in range(1, 1000)}


@pytest.mark.parametrize(
    ("cells", "needs"),
    [
        (["print = max", "print(1, 2)"], {"print"}),
        (["type = int; list = [1]", "isinstance(list, type)"], {"list", "type"}),
        (["def print(*x): return log\nlog = []", "print(1)"], {"log", "print"}),
        (["__builtins__ = {}", "x = __builtins__"], {"__builtins__"}),
        (["eval = float", "eval('a')"], {"eval"}),
        (["变量 = 1", "变量 + 1"], {"变量"}),
        # Python reads both names as one
        (["ﬁ = 1", "fi + 1"], {"fi"}),
        (["a = 1\r\nb = 2\r\n", "a\r\nb"], {"a", "b"}),
    ],
)
def test_names_that_hide_others_are_needed(ask, cells: list[str], needs: set[str]) -> None:
    *earlier, target = cells
    assert set(ask(target, *earlier).state_names) == needs


PIECES = [
    "a", "b", "f", "x = ", "def f(x):\n    ", "class K(a):\n    ", "for a in b:\n    ", "if a:\n    ", "(", ")", "[",
    "]", "{", "}", "\n", "\n    ", ":", ",", ".", "%time ", "%%capture out\n", "!ls ", "{a}", "$b", "'", '"""',
    "f'{a}'", "#", "import torch\n", "from a import *\n", "lambda x: ", "yield ", "await ", "global a\n", "del a\n",
    "a := 1", "*", "**", "try:\n    ", "except E as a:\n    ", "\\\n", "\x00", "\t", "🙂", "=", "==", "eval('a')",
    "exec('b = a')", "globals()", ".cuda()", ".to(device)", "match a:\n    case ", "with a as b:\n    ", "async ",
    "print a", "%run ", "?", "%%gpu\n",
]  # fmt: skip


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.text(max_size=80), st.lists(st.sampled_from(PIECES), max_size=25).map("".join)))
def test_any_text_has_an_answer(text: str) -> None:
    ask_all(text)


def mutated(source: str, chance: random.Random) -> str:
    """`source` with a piece lost, doubled, replaced or moved."""
    for _ in range(chance.randint(1, 3)):
        start = chance.randrange(len(source) + 1)
        end = min(len(source), start + chance.randint(0, 40))
        piece = chance.choice(["", source[start:end] * 2, chance.choice(PIECES), source[end : end + 20]])
        source = source[:start] + piece + source[end:]
    return source


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the corpus of real notebooks is not on this machine")
def test_damaged_cells_of_real_notebooks_have_an_answer() -> None:
    chance = random.Random(6)
    notebooks = sorted(CORPUS.glob("*.ipynb"))
    for path in chance.sample(notebooks, min(8, len(notebooks))):
        cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
        log = ExecutionLog()
        for cell in chance.sample(cells, min(8, len(cells))):
            ask_all(mutated("".join(cell["source"]), chance), log)
