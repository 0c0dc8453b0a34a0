"""Probes of many sets of imports: one process imports the probe, and forks for each set as a zygote does."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

# A fork that will answer is waited for on any machine.
SMOKE_LIMIT_S = 60.0
_HOST = """
import json, os, sys
from looseleaf.subreaper import become_subreaper
from looseleaf.worker.probe import run_probe

become_subreaper()
for imports, limit_s in json.loads(sys.argv[1]):
    read_fd, write_fd = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            run_probe(write_fd, imports, smoke_limit_s=limit_s)
        finally:
            os._exit(0)
    os.close(write_fd)
    with open(read_fd) as pipe:
        said = [json.loads(line) for line in pipe]
    os.waitpid(pid, 0)
    left = open(f"/proc/self/task/{os.getpid()}/children").read().split()
    os.write(int(sys.argv[2]), json.dumps({"pid": pid, "said": said, "left": left}).encode() + b"\\n")
"""

Outcome = dict[str, Any]


def run_probes(
    sets: Mapping[str, list[str]], env: Mapping[str, str], smoke_limits_s: Mapping[str, float] | None = None
) -> dict[str, Outcome]:
    """By name of the set: the probe's result with its `pid`, what it `said` before, and processes that were `left`."""
    limits_s = smoke_limits_s or {}
    work = [[imports, limits_s.get(name, SMOKE_LIMIT_S)] for name, imports in sets.items()]
    read_fd, write_fd = os.pipe()
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _HOST, json.dumps(work), str(write_fd)],
        env={**os.environ, **env}, pass_fds=[write_fd], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as host:  # fmt: skip
        os.close(write_fd)
        with open(read_fd) as pipe:
            rows = [json.loads(line) for line in pipe]
        assert host.stderr is not None
        complaints = host.stderr.read()
    assert len(rows) == len(sets), complaints.decode()
    return {
        name: {**row["said"][-1]["result"], "said": row["said"][:-1], "left": row["left"], "pid": row["pid"]}
        for name, row in zip(sets, rows, strict=True)
    }
