"""What a zygote's rehearsal of a restore leaves: all that is made at a first use, and nothing of the state."""

from __future__ import annotations

import subprocess
import sys

import pytest

from looseleaf.worker import rehearsal

# In a process of its own: here nearly all has been used before.
LOOK = """
import gc, logging, os, random, sys, warnings
import numpy as np
from looseleaf.checkpoint import import_filters
from looseleaf.checkpoint.names import HiddenNames
from looseleaf.checkpoint.paranoid import is_paranoid
from looseleaf.devices.hook import WATCHER
from looseleaf.dirty_tracker import written
from looseleaf.worker.rehearsal import rehearse
from looseleaf.worker.shell import build_shell

shell = build_shell()
warnings.filterwarnings("ignore", category=type("Own", (UserWarning,), {}))
np.seterr(divide="ignore")

def now():
    numpy_state = np.random.get_state()
    return {
        "environment": dict(os.environ), "cwd": os.getcwd(), "path": list(sys.path), "filters": list(warnings.filters),
        "hooks": {name: hooks for name, hooks in WATCHER.hooks.items() if hooks}, "random": random.getstate(),
        "numpy": (numpy_state[1].tolist(), *numpy_state[2:]), "errors": np.geterr(), "gc": gc.isenabled(),
        "logging": (logging.root.handlers, logging.root.level), "names": list(shell.user_ns),
        "tasks": os.listdir("/proc/self/task"), "fds": os.listdir("/proc/self/fd"), "mapped": dict(written._restored),
        "paranoid asked": is_paranoid.cache_info().currsize, "added filters": dict(import_filters._added),
    }

before = now()
assert rehearse()
gc.collect()
after = now()
assert after == before, {name: (before[name], after[name]) for name in before if before[name] != after[name]}
assert "formatters" in shell.display_formatter._trait_values, "the shell's are made at the first restore"
left = [type(one).__name__ for one in gc.get_objects()]
assert not {"StateTracker", "Stub", "Labels"} & {*left}
modules = set(sys.modules)
assert rehearse() and sys.modules.keys() == modules, sys.modules.keys() - modules
"""


def test_rehearsal_leaves_the_process_as_it_was_but_for_first_uses() -> None:
    done = subprocess.run([sys.executable, "-c", LOOK], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    # What it cannot carry, or make again, would be told.
    assert done.stderr == ""


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
