"""Warnings name the person's line, also where calls go through the virtual device."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Prints (warning's first word, file, line) of each warning that is shown.
START = """
import sys, warnings
import torch
def show(message, category, filename, lineno, file=None, line=None):
    print(str(message).split()[0], filename, lineno)
{install}
warnings.showwarning = show
warnings.simplefilter("default")
"""
INSTALL = "from looseleaf import devices\ndevices.install('reference', 'emulated', 1)"
CELL = """
for _ in range(2):
    torch.empty(0).std()
torch.empty(0).std()
x = torch.ones(2)
x.storage()
x.storage()
def inner():
    warnings.warn("own", stacklevel=2)
inner()
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    torch.empty(0).std()
print(len(seen), seen[0].filename, seen[0].lineno)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.empty(0).std()
with warnings.catch_warnings():
    warnings.simplefilter("error")
    try:
        torch.empty(0).std()
    except UserWarning as error:
        print("raised", str(error).split()[0])
"""


def shown(install: str) -> list[str]:
    program = f"{START.format(install=install)}\nexec(compile({CELL!r}, 'cell', 'exec'), globals())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def plain() -> list[str]:
    return shown("")


@pytest.mark.slow
def test_warnings_are_shown_as_often_and_where_torch_shows_them_without_us(plain: list[str]) -> None:
    assert "std(): cell 3" in plain and "own cell 10" in plain, plain
    assert shown(INSTALL) == plain


@pytest.mark.slow
def test_warnings_are_shown_as_before_after_uninstall(plain: list[str]) -> None:
    assert shown(f"{INSTALL}\ndevices.uninstall()") == plain
