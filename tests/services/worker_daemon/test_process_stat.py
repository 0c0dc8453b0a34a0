from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from looseleaf.services.worker_daemon.process_stat import process_busy_s, process_ticks


def test_process_that_has_ended_has_no_beginning_from_its_end_on() -> None:
    process = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    assert process.stdin is not None and process_ticks(process.pid) is not None
    process.stdin.close()
    # What is left of it until its parent waits for it is nobody to come back to.
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert process_ticks(process.pid) is None
    process.wait()
    assert process_ticks(process.pid) is None and process_busy_s(process.pid) == 0.0


def test_name_of_a_process_is_not_taken_for_its_state(tmp_path: Path) -> None:
    named = tmp_path / "a) Z 1 (b"
    named.symlink_to(shutil.which("cat") or "")
    own = process_ticks(os.getpid())
    process = subprocess.Popen([str(named)], stdin=subprocess.PIPE)
    ticks = process_ticks(process.pid)
    process.communicate()
    assert own is not None and ticks is not None and ticks >= own


def test_busy_time_is_what_the_system_tells_this_process_itself() -> None:
    times = os.times()
    assert process_busy_s(os.getpid()) >= times.user + times.system - 0.02
