"""A kernel that dies while large memory is in it alone: the notebook goes on, and says which variables are gone."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from looseleaf.checkpoint.lazy import LAZY_MOVE_BYTES_MAX
from looseleaf.cli.main import main

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]

SIZE = LAZY_MOVE_BYTES_MAX + (1 << 20)


def newest_session(cluster: Any, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["session", "list", "--data", str(cluster.record.data), "--json"]) == 0
    return str(json.loads(capsys.readouterr().out)[0]["session_id"])


def test_killed_kernel_takes_bytes_that_were_not_committed_and_the_next_one_names_them(
    new_notebook: Callable[..., Any], cluster: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    # It commits for GPU cells only, as one does that was never idle.
    first = new_notebook(env={"LOOSELEAF_KERNEL_COMMIT_IDLE": "0"})
    first.ok(f"import numpy as np\nlarge = np.zeros({SIZE}, dtype='u1')\nview = large[:5]\nsmall = [1]")
    first.ok("%%gpu\nsmall.append(2)")
    session_id = newest_session(cluster, capsys)
    assert main(["state", "ls", session_id, "--data", str(cluster.record.data), "--json"]) == 0
    listed = {entry["name"]: entry["lazy"] for entry in json.loads(capsys.readouterr().out)["saved"]}
    assert (listed["large"], listed["view"], listed["small"]) == (True, True, False)
    assert main(["session", "log", session_id, "--data", str(cluster.record.data)]) == 0
    assert "lazy" in capsys.readouterr().out
    os.kill(first.pid, signal.SIGKILL)
    second = new_notebook(env={"LOOSELEAF_SESSION": session_id})
    assert second.ok("small").value == "[1, 2]"
    refused = second.run("large.sum()")
    assert refused.status == "error" and "'large'" in refused.error and "kernel" in refused.error, refused
    refused = second.run("%%gpu\nview.sum()")
    assert refused.ename == "UNSAVED_VARIABLE" and "'view'" in refused.error and "committed" in refused.error, refused
    assert second.ok("%%gpu\nsmall.append(3)\nsmall").value == "[1, 2, 3]"
    # Made again it is a variable like any other.
    second.ok("large = np.ones(5)")
    assert second.ok("%%gpu\nlarge.sum()").value == "np.float64(5.0)"
    assert main(["state", "ls", session_id, "--data", str(cluster.record.data), "--json"]) == 0
    unsaved = {entry["name"]: entry["reason"] for entry in json.loads(capsys.readouterr().out)["unsaved"]}
    assert unsaved == {"view": "NOT_COMMITTED"}
