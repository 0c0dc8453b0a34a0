"""Tests run in a shell's background, where SIGINT is ignored, can interrupt what they start."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

INTERRUPTING = '''
import signal, subprocess, sys

def test_child_is_interrupted():
    child = subprocess.Popen([sys.executable, "-c", "print(flush=True); input()"], stdin=subprocess.PIPE,
                             stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    with child:
        child.stdout.readline()
        child.send_signal(signal.SIGINT)
        child.stdin.write(b"\\n")
    assert child.returncode == -signal.SIGINT
'''


def test_child_of_a_test_is_interrupted_though_the_run_ignores_interrupts(tmp_path: Path) -> None:
    shutil.copy(Path(__file__).with_name("conftest.py"), tmp_path)
    (tmp_path / "test_interrupting.py").write_text(INTERRUPTING)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    run = f"trap '' INT; exec {sys.executable} -m pytest -q -p no:cacheprovider {tmp_path}"
    environ = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        ["sh", "-c", run], capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=environ,
    )
    assert done.returncode == 0, done.stdout + done.stderr
