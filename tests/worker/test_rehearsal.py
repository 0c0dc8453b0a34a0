"""What a zygote's rehearsal of a restore leaves: all that is made at a first use, and nothing of the state."""

from __future__ import annotations

import subprocess
import sys

import pytest

from looseleaf.worker import rehearsal

# In a process of its own: here nearly all has been used before.
LOOK = """
import gc, logging, os, random, sys, warnings
import {imports}
import numpy as np
from looseleaf.checkpoint import import_filters
from looseleaf.checkpoint.names import HiddenNames
from looseleaf.checkpoint.paranoid import is_paranoid
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.devices.hook import WATCHER
from looseleaf.dirty_tracker import written
from looseleaf.worker import rehearsal
from looseleaf.worker.rehearsal import rehearse
from looseleaf.worker.shell import build_shell
from looseleaf.worker.zygote_imports import load_later

shell = build_shell()
load_later()
warnings.filterwarnings("ignore", category=type("Own", (UserWarning,), {{}}))
np.seterr(divide="ignore")

def now():
    numpy_state = np.random.get_state()
    return {{
        "environment": dict(os.environ), "cwd": os.getcwd(), "path": list(sys.path), "filters": list(warnings.filters),
        "hooks": {{name: hooks for name, hooks in WATCHER.hooks.items() if hooks}}, "random": random.getstate(),
        "numpy": (numpy_state[1].tolist(), *numpy_state[2:]), "errors": np.geterr(), "gc": gc.isenabled(),
        "logging": (logging.root.handlers, logging.root.level), "names": list(shell.user_ns),
        "tasks": os.listdir("/proc/self/task"), "fds": os.listdir("/proc/self/fd"), "mapped": dict(written._restored),
        "paranoid asked": is_paranoid.cache_info().currsize, "added filters": dict(import_filters._added),
        # The answer of a process that nobody may look into, such as a zygote, is not its workers'.
        "pagemap asked": written.pagemap_support.cache_info().currsize,
        # A warning filter that an import adds would be lost with it.
        "modules": set(sys.modules),
    }}

def check(before):
    gc.collect()
    after = now()
    assert after["modules"] == before["modules"], after["modules"] ^ before["modules"]
    assert after == before, {{name: (before[name], after[name]) for name in before if before[name] != after[name]}}
    left = gc.get_objects()
    kinds = {{type(one).__name__ for one in left}}
    assert not {{"StateTracker", "Stub", "Labels", "Point", "Sequential", "DataFrame"}} & kinds
    assert "Point" not in [one.__name__ for one in object.__subclasses__()]
    assert not any(type(one) is dict and {{"blob", "point"}} <= one.keys() for one in left)

before = now()
"""
WENT_WELL = """
assert rehearse()
check(before)
assert "formatters" in shell.display_formatter._trait_values, "the shell's are made at the first restore"
"""
# In the middle of a restore, when a library is waited for that is not here.
FAILS = """
from looseleaf.devices.hook import PostImportHook
restore = StateTracker.restore
def fails(self, names, **options):
    restore(self, names, **options)
    self.process._hooks.append(hook := PostImportHook("of_nobody", print))
    hook.start()
    raise OSError("no memory files here")
StateTracker.restore = fails
assert not rehearse()
check(before)
"""
CANNOT_MOVE = """
state = rehearsal._state
rehearsal._state = lambda number: {**state(number), "rows": (row for row in "ab")}
assert not rehearse()
check(before)
"""


def run(text: str, imports: str) -> str:
    """What it says on stderr."""
    text = LOOK.format(imports=imports) + text
    done = subprocess.run([sys.executable, "-c", text], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    "imports", ["numpy", pytest.param("torch, pandas, matplotlib.pyplot", marks=pytest.mark.slow)]
)  # fmt: skip
def test_rehearsal_leaves_the_process_as_it_was_but_for_first_uses(imports: str) -> None:
    # What it cannot carry, or make again, would be told.
    assert run(WENT_WELL, imports) == ""


def test_rehearsal_that_fails_or_cannot_move_all_is_told_and_leaves_nothing() -> None:
    said = run(CANNOT_MOVE + FAILS, "numpy")
    assert "rehearsal_incomplete lacking=['rows']" in said
    assert "rehearsal_failed error=OSError" in said


def test_rehearsal_that_fails_is_told_and_costs_nothing_else(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(_number: int) -> None:
        sys.path.append("/of/the/rehearsal")
        raise OSError("no memory files here")

    monkeypatch.setattr(rehearsal, "_round", fails)
    monkeypatch.setattr(rehearsal.log, "propagate", True)
    before = list(sys.path)
    assert not rehearsal.rehearse()
    assert sys.path == before
    assert "rehearsal_failed error=OSError" in caplog.text
