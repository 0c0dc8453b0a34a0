"""The check of `conftest.py` that no test leaves anything behind, on tests that do."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

LEAKY = '''
import os, subprocess, threading
import pytest

kept = []
shared_name = f"/dev/shm/looseleaf-test-{os.getpid()}"

@pytest.fixture(scope="module")
def shared():
    with open(os.devnull) as file:
        yield file

def test_clean(shared, tmp_path):
    thread = threading.Thread(target=subprocess.run, args=(["true"],))
    thread.start()
    thread.join()
    os.close(os.open(tmp_path, os.O_RDONLY))

def test_leaves_process():
    kept.append(subprocess.Popen(["sleep", "60"]))

def test_leaves_thread():
    gate = threading.Event()
    kept.append(gate)
    threading.Thread(target=gate.wait, name="waiting").start()

def test_leaves_fd():
    kept.append(os.pipe())

def test_leaves_memory():
    open(shared_name, "w").close()

def test_first_call_of_a_jupyter_client():
    from jupyter_core.utils import ensure_event_loop

    ensure_event_loop()

@pytest.mark.leaks_ok("to show that it can be")
def test_excused():
    kept.append(os.pipe())

def test_failed():
    kept.append(os.pipe())
    assert False

def test_end():
    os.unlink(shared_name)
    kept[0].kill(), kept[0].wait(), kept[1].set()
'''


def test_whatever_a_test_leaves_behind_fails_it_by_name(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    conftest = (tmp_path / "conftest.py").read_text()
    (tmp_path / "conftest.py").write_text(conftest.replace("LEAK_GRACE_S = 5.0", "LEAK_GRACE_S = 0.05"))
    (tmp_path / "test_leaky.py").write_text(LEAKY)
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    leaks_ok(reason): may leave something behind\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rEf", str(tmp_path)]
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=environ)
    assert "1 failed, 8 passed, 4 errors" in done.stdout, done.stdout + done.stderr
    for leak in (r"process \d+ \(sleep 60", "thread 'waiting'", r"fd \d+ -> pipe", "shared memory looseleaf-test-"):
        assert re.search(f"AssertionError: the test left behind: {leak}", done.stdout), (leak, done.stdout)
