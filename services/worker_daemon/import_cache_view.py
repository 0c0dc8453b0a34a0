"""The import cache as the wire shows it."""

from __future__ import annotations

from looseleaf.services.worker_daemon.core.zygote_nodes import Node
from looseleaf.services.worker_daemon.import_cache import ImportCache
from looseleaf.v1 import worker_daemon_pb2 as pb

WORKER_TITLE = "ll-worker:"


def zygote_messages(cache: ImportCache, now_s: float) -> list[pb.ZygoteNode]:
    """Every node, parents before their children."""
    return [_message(cache, node, now_s) for node in sorted(cache.rules.nodes.values(), key=lambda node: node.id)]


def _message(cache: ImportCache, node: Node, now_s: float) -> pb.ZygoteNode:
    return pb.ZygoteNode(
        node_id=node.id,
        parent_id=node.parent or 0,
        pid=cache.pid_of(node),
        imports=node.added,
        state=str(node.state),
        pss_bytes=node.pss_bytes,
        private_bytes=node.private_bytes,
        forks=node.forks,
        import_s=cache.rules.times.sum(node.added),
        used_s_ago=max(0.0, now_s - node.used_s),
        generation=node.key.generation,
        workers=[
            pb.ZygoteWorker(worker_id=title.removeprefix(WORKER_TITLE), pid=pid)
            for pid, title in cache.workers_of(node.id)
        ],
    )
