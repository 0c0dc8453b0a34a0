"""What workers and nodes share with the zygote that they were forked from (import-cache study §6, targets 4 and 5)."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may look into a zygote's memory")

# Of a zygote's anonymous memory: what a ready worker has of its own, and what a collection of its garbage adds.
READY_SHARE_MAX = 0.10
COLLECTION_SHARE_MAX = 0.02
# Of the sum of what each process has mapped.
CHAIN_PSS_SHARE_MAX = 0.5
CHAIN = ("wave", "mailbox", "sqlite3", "xmlrpc.client")


def memory_kib(pid: int, name: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))


def test_worker_shares_its_zygotes_memory_also_after_a_collection(
    zygote: Any, make_worker: Callable[..., Any]
) -> None:
    worker = make_worker()
    zygote_kib = memory_kib(zygote.process.pid, "Anonymous")
    ready_kib = memory_kib(worker.pid, "Private_Dirty")
    worker.run("import gc")
    before_kib = memory_kib(worker.pid, "Private_Dirty")
    worker.run("gc.collect()", count=2)
    added_kib = memory_kib(worker.pid, "Private_Dirty") - before_kib
    assert ready_kib <= READY_SHARE_MAX * zygote_kib, (ready_kib, zygote_kib)
    # Without gc.freeze() in the zygote it is a fifth and more.
    assert added_kib <= COLLECTION_SHARE_MAX * zygote_kib, (added_kib, zygote_kib)


def test_chain_of_five_nodes_takes_half_of_what_each_has_mapped(zygote: Any) -> None:
    nodes = [zygote]
    for name in CHAIN:
        nodes.append(nodes[-1].fork_node(name))
        assert nodes[-1].first["t"] == "READY"
    pids = [zygote.process.pid, *(node.pid for node in nodes[1:])]
    pss_kib, rss_kib = (sum(memory_kib(pid, name) for pid in pids) for name in ("Pss", "Rss"))
    for node in reversed(nodes[1:]):
        assert node.close() == 0
    assert pss_kib <= CHAIN_PSS_SHARE_MAX * rss_kib, (pss_kib, rss_kib)
