"""How `looseleaf workers --tree` draws a host's import cache."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.tree import Tree

from looseleaf.cli.status import _pool_lines
from looseleaf.cli.workers import _gpus, grow


def zygote(node_id: int, parent_id: int, imports: list[str], **more: Any) -> dict[str, Any]:
    # 64-bit numbers are texts in JSON.
    return {
        "node_id": str(node_id), "parent_id": str(parent_id), "imports": imports, "state": "serving",
        "pid": 10 + node_id, "pss_bytes": str(3 << 20), "private_bytes": "0", "forks": "2", "import_s": 0.5,
        "used_s_ago": 1.0, "workers": [], **more,
    }  # fmt: skip


def test_gpu_that_only_has_a_workers_context_stands_in_parentheses() -> None:
    assert _gpus({"gpu_indices": [0, 1], "context_gpu_indices": []}) == "0,1"
    assert _gpus({"gpu_indices": [], "context_gpu_indices": [2]}) == "(2)"
    assert _gpus({"gpu_indices": []}) == "-"


def test_status_tells_what_was_opened_before_run_and_what_of_it_was_used() -> None:
    done = {"ordered": 9, "used": 6, "wasted": 2, "contexts": 5, "contexts_used": 3,
            "contexts_wasted": 1, "on_device": 2, "on_device_used": 1, "wasted_gpu_s": 12.4}  # fmt: skip
    pool = {"queued_runs": 0, "booting_hosts": 0, "provisioned": [], "speculation": done}
    assert _pool_lines(pool)[1:] == [
        "preparations: 9 ordered, 6 used, 2 for nothing",
        "contexts opened before Run: 5, 3 used, 1 for nothing",
        "data laid on GPUs before Run: 2, 1 used; 12 GPU-seconds for nothing",
    ]  # fmt: skip
    assert len(_pool_lines({**pool, "speculation": dict.fromkeys(done, 0)})) == 2


def test_tree_shows_children_under_parents_and_workers_under_their_zygote() -> None:
    worker = {"worker_id": "w-1", "stage": "WORKER_STAGE_HOST_READY", "session_id": "s-1"}
    host = {
        "workers": [worker],
        "zygotes": [
            zygote(1, 0, ["torch"]),
            zygote(2, 1, ["pandas"], state="dead", pid=0),
            zygote(3, 2, ["[red]x"], workers=[{"worker_id": "w-1", "pid": 77}, {"worker_id": "w-2", "pid": 78}]),
        ],
    }
    top = Tree("h0")
    grow(top, host)
    console = Console(width=200)
    with console.capture() as capture:
        console.print(top)
    lines = [line.strip("│ └├─") for line in capture.get().splitlines()]
    assert lines == [
        "h0",
        "base torch: serving, 0.50 s of imports, 3.0 MiB, 2 forks, used 1 s ago (pid 11)",
        "+ pandas: dead, 0.50 s of imports, 3.0 MiB, 2 forks, used 1 s ago",
        "+ [red]x: serving, 0.50 s of imports, 3.0 MiB, 2 forks, used 1 s ago (pid 13)",
        "worker w-1 (pid 77): host ready, session s-1",
        "worker w-2 (pid 78): starting",
    ]
