"""The socket that this host's kernels connect to, and what is left of those that go."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Callable, Iterable

import structlog

from looseleaf.errors import LooseLeafError
from looseleaf.ids import Epoch, SessionId
from looseleaf.services.worker_daemon.arena_mappers import orphans_gone
from looseleaf.services.worker_daemon.kernel_connection import KernelConnection, PoolGpu
from looseleaf.services.worker_daemon.peer_process import PeerProcess
from looseleaf.services.worker_daemon.relay_clients import RelayClients
from looseleaf.services.worker_daemon.state_requests import StateOwner, StateRequests
from looseleaf.services.worker_daemon.unix_listener import accept_all, listening, refuse_taken
from looseleaf.services.worker_daemon.wire import Body

log = structlog.get_logger()


class KernelEndpoint:
    """Accepts kernels on a Unix socket of mode 0600; refuses more than `kernels_max` at once.

    `host`: what the answer to a kernel's hello says of this host, and `pool_gpu` of the GPUs that its cells get.
    `worker_pids`: this daemon's workers, which map the arena too.
    """

    def __init__(
        self,
        path: str,
        new_requests: Callable[[StateOwner], StateRequests],
        clients: RelayClients,
        host: Body,
        kernels_max: int,
        pool_gpu: PoolGpu | None = None,
        worker_pids: Callable[[], Iterable[int]] = list,
    ) -> None:
        self.path = path
        self._worker_pids = worker_pids
        self._new_requests = new_requests
        self._clients = clients
        self._host = host
        self._kernels_max = kernels_max
        self._pool_gpu = pool_gpu
        # Called when a kernel takes a session over, with the epoch that fences its earlier owners.
        self.on_owner: Callable[[SessionId, Epoch], None] = lambda _session, _epoch: None
        self._sock: socket.socket | None = None
        self._accepting: asyncio.Task[None] | None = None
        self._connections: set[KernelConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._peers: set[PeerProcess] = set()

    @property
    def kernels(self) -> int:
        """Connected kernels."""
        return len(self._connections)

    @property
    def sessions(self) -> list[SessionId]:
        """Their sessions, sorted."""
        return sorted({connection.session_id for connection in self._connections} - {SessionId("")})

    def refuse_taken(self) -> None:
        """Raises Unavailable `SOCKET_TAKEN` if another daemon answers where this one is to listen."""
        refuse_taken(self.path)

    def start(self) -> None:
        """Begins to listen. Raises Unavailable `SOCKET_TAKEN` if another daemon answers there."""
        self._sock = listening(self.path, self._kernels_max)
        self._accepting = asyncio.create_task(accept_all(self._sock, self._take))

    def _take(self, sock: socket.socket) -> None:
        if len(self._connections) >= self._kernels_max:
            log.warning("kernel_refused", limit=self._kernels_max)
            sock.close()
            return
        peer = PeerProcess(sock)
        owner = StateOwner()
        requests = self._new_requests(owner)
        connection = KernelConnection(sock, owner, requests, self._clients, self._host, self._pool_gpu, self.on_owner)
        self._connections.add(connection)
        self._peers.add(peer)
        task = asyncio.create_task(self._serve(connection, requests, peer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, connection: KernelConnection, requests: StateRequests, peer: PeerProcess) -> None:
        try:
            await connection.serve()
            self._connections.discard(connection)
            # A kernel whose connection broke lives on, and with it its mappings of the arena; so may its children.
            await peer.exited()
            self._peers.discard(peer)
            if peer.is_seen:
                await self._free_workers(connection)
            if requests.maps_regions:
                await orphans_gone(requests.regions.arena.inodes, self._live)
        finally:
            self._peers.discard(peer)
            self._connections.discard(connection)
            peer.close()
            await requests.close()

    async def _free_workers(self, connection: KernelConnection) -> None:
        """What was kept for a kernel whose process has ended by itself holds no GPU until its time is over."""
        session_id = connection.session_id
        if not connection.keeps or session_id in self.sessions:
            return
        try:
            # Every worker of the session would go, on all hosts: a kernel that took it over elsewhere keeps its own.
            if not await connection.is_owner():
                return
            evicted, _silent = await self._clients.evict_workers(session_id)
        except LooseLeafError as error:
            log.warning("workers_not_freed", session=session_id, reason=error.reason)
        else:
            log.info("workers_freed", session=session_id, workers=evicted)

    def _live(self) -> set[int]:
        return {*(peer.pid for peer in self._peers), *self._worker_pids()}

    async def stop(self) -> None:
        """Closes the socket and every connection; kernels go on as CPU kernels."""
        if self._sock is not None and self._accepting is not None:
            self._accepting.cancel()
            await asyncio.gather(self._accepting, return_exceptions=True)
            self._sock.close()
            os.unlink(self.path)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
