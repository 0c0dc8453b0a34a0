"""What a process carries besides variables goes from the kernel to workers and back, and is one state in both."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

# Bound methods of the shell stand in these modules while a cell runs, in each process its own.
MODULES = "import builtins, getpass, os, random, torch"


def test_settings_of_a_gpu_cell_are_in_force_in_the_kernel(notebook: Any) -> None:
    notebook.ok(f"{MODULES}\nrandom.seed(3); x = torch.ones(3).cuda()")
    first = notebook.ok("%%gpu\nos.environ['SAID'] = 'here'; torch.manual_seed(5); random.random()").value
    assert notebook.ok("os.environ['SAID'], torch.initial_seed()").value == "('here', 5)"
    second = notebook.ok("random.random()").value
    notebook.ok("random.seed(3)")
    assert notebook.ok("[random.random(), random.random()]").value == f"[{first}, {second}]"
    # Each process still asks by its own shell.
    assert notebook.ok("%%gpu\nbuiltins.input('? ')", answer="a").value == "'a'"
    assert notebook.ok("builtins.input('? ')", answer="b").value == "'b'"


def test_cells_that_change_nothing_make_no_version(notebook: Any) -> None:
    notebook.ok(f"{MODULES}\nx = torch.ones(3, device='cuda')")
    # What the worker has imported beyond the kernel is noted once; a traceback imports something, too.
    notebook.ok("%looseleaf log")
    notebook.run("%%gpu\n1 / 0")
    before = version_of(notebook)
    for cell in ("%%gpu\nprint(1)", "%looseleaf log", "%%gpu\nx.sum();", "%looseleaf diff", "%%gpu\n1 / 0", "print(2)"):
        notebook.run(cell)
        assert version_of(notebook) == before, cell
    notebook.ok("%%gpu\nx += 1")
    assert version_of(notebook) > before


def test_function_of_a_library_that_a_gpu_cell_puts_back_is_back_everywhere(notebook: Any) -> None:
    notebook.ok("import textwrap, torch\nx = torch.ones(3, device='cuda')")
    notebook.ok("%%gpu\nkept = textwrap.fill; textwrap.fill = lambda text: 'patched'; textwrap.note = 5")
    assert notebook.ok("textwrap.fill('a'), textwrap.note").value == "('patched', 5)"
    notebook.ok("%%gpu\ntextwrap.fill = kept; del textwrap.note")
    assert notebook.ok("textwrap.fill('a'), hasattr(textwrap, 'note')").value == "('a', False)"
    assert notebook.ok("%%gpu\ntextwrap.fill('b'), hasattr(textwrap, 'note')").value == "('b', False)"


def version_of(notebook: Any) -> int:
    notebook.ok("%looseleaf diff -1")
    found = re.search(r"^version +(\d+)", notebook.ok("%looseleaf status").text, re.MULTILINE)
    assert found is not None
    return int(found[1])
