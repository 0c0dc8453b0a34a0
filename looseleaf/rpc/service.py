"""The life of one service process: build, serve, ready, stop.

A service's `server.py` is a few lines:

    async def build(service: Service[SchedulerConfig]) -> Sequence[Registration]:
        database = await service.run_blocking(open_database, service.config.data)
        service.on_stop(database.aclose)                      # async callable; last registered runs first
        store = CheckpointStoreServiceStub(service.open_channel(service.config.store, peer="store"))
        core = Core(...)
        service.start_task(core.tick_forever(), name="ticks")  # if it fails, the service stops, exit code 1
        service.on_stopping(core.end_streams)                  # sync; runs at SIGTERM, before the grace period
        return [Registration(add_SchedulerServiceServicer_to_server, SchedulerServicer(core))]

    def main(argv: Sequence[str] | None = None) -> int:
        return service_main("scheduler", SchedulerConfig, build, argv)      # looseleaf.rpc.service_main

`build` runs after the address is bound (`service.address` is final) and before the server answers. Health becomes
SERVING right after the start; call `service.hold_ready()` in `build` and later `await service.set_ready(True)` to
decide yourself. In servicers: raise LooseLeafErrors (anything else becomes Internal BUG), use
`await service.run_blocking(f)` for RocksDB, hashing and file work, and `policy.remaining_s()` is the
caller's remaining time.

SIGTERM or SIGINT: health NOT_SERVING, `on_stopping`, running calls get `shutdown_grace_s`, tasks are cancelled,
`on_stop` callbacks, channels closed, socket file removed. A second signal ends the process at once.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Generic, TypeVar

from prometheus_client import CollectorRegistry

from looseleaf.config import ServiceConfig
from looseleaf.errors import CapacityExceeded
from looseleaf.logs import get_logger
from looseleaf.rpc.address import check_listen
from looseleaf.rpc.client import Channel, open_channel
from looseleaf.rpc.metrics import serve_metrics
from looseleaf.rpc.server import Registration, RpcServer

C = TypeVar("C", bound=ServiceConfig)
T = TypeVar("T")

# Blocking calls that may wait for a thread; more means that callers outrun the disk.
BLOCKING_CALLS_MAX: Final = 4_096
# Limit of each `on_stop` callback.
STOP_CALLBACK_TIMEOUT_S: Final = 10.0

log = get_logger()


class Service(Generic[C]):
    """What `build` gets. All methods belong to the event loop's thread, except `request_stop_threadsafe`."""

    def __init__(self, name: str, config: C) -> None:
        self.name = name
        self.config = config
        self.registry = CollectorRegistry()
        self.executor = ThreadPoolExecutor(config.executor_threads_max, thread_name_prefix=name)
        self.stop_requested = asyncio.Event()
        self.exit_code = 0
        self._loop = asyncio.get_running_loop()
        self._server = RpcServer(
            config.listen, registry=self.registry, message_bytes_max=config.message_bytes_max,
            allow_remote_tcp=config.allow_remote_tcp,
        )
        self._auto_ready = True
        self._blocking_calls = 0
        self._channels: list[Channel] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self._on_stopping: list[Callable[[], None]] = []
        self._on_stop: list[Callable[[], Awaitable[None]]] = []

    @property
    def address(self) -> str:
        """The gRPC address that others can dial, with the real port."""
        return self._server.address

    def open_channel(self, target: str, peer: str) -> Channel:
        """A channel that is closed after the service stopped."""
        channel = open_channel(target, peer, message_bytes_max=self.config.message_bytes_max)
        self._channels.append(channel)
        return channel

    def start_task(self, coroutine: Coroutine[Any, Any, Any], name: str) -> asyncio.Task[Any]:
        """Runs work beside the calls; cancelled at the stop, and if it raises, the service stops with exit code 1."""
        task = self._loop.create_task(coroutine, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)
        return task

    async def run_blocking(self, function: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs `function` on one of `executor_threads_max` threads; raises CapacityExceeded EXECUTOR_FULL."""
        if self._blocking_calls >= BLOCKING_CALLS_MAX:
            text = f"{self.name} has too much work waiting; nothing was done, ask again"
            raise CapacityExceeded("EXECUTOR_FULL", text, retry_after_s=1.0)
        self._blocking_calls += 1
        try:
            return await self._loop.run_in_executor(self.executor, functools.partial(function, *args, **kwargs))
        finally:
            self._blocking_calls -= 1

    def on_stopping(self, callback: Callable[[], None]) -> None:
        """Called when the stop begins, to end long streams; must not block."""
        self._on_stopping.append(callback)

    def on_stop(self, callback: Callable[[], Awaitable[None]]) -> None:
        """Awaited after the last call ended, last registered first."""
        self._on_stop.append(callback)

    def hold_ready(self) -> None:
        """In `build`: health stays NOT_SERVING after the start until `set_ready(True)`."""
        self._auto_ready = False

    async def set_ready(self, ready: bool) -> None:
        """Whether health says SERVING."""
        if not (ready and self.stop_requested.is_set()):
            await self._server.set_ready(ready)

    def request_stop(self, why: str, exit_code: int = 0) -> None:
        """Begins an orderly stop; the first exit code that is not 0 wins."""
        self.exit_code = self.exit_code or exit_code
        if not self.stop_requested.is_set():
            log.info("service_stop_requested", why=why)
            self.stop_requested.set()

    def request_stop_threadsafe(self, why: str, exit_code: int = 0) -> None:
        """`request_stop` from any thread."""
        self._loop.call_soon_threadsafe(self.request_stop, why, exit_code)

    def stop_now(self, exit_code: int) -> None:
        """Ends the process at once, leaving no socket file."""
        self._server.remove_socket()
        os._exit(exit_code)

    async def run(self, build: Callable[[Service[C]], Awaitable[Sequence[Registration]]]) -> int:
        """The whole life; returns the exit code. Raises what `build` or the bind raises, after cleaning up."""
        stop_metrics: Callable[[], None] | None = None
        try:
            self._server.bind()
            registrations = await self._built(build)
            if registrations is None:
                return self.exit_code
            if self.config.metrics_port:
                stop_metrics = self._serve_metrics()
            await self._server.start(registrations)
            if self._auto_ready:
                await self.set_ready(True)
            log.info("service_started", address=self.address, pid=os.getpid())
            await self.stop_requested.wait()
        finally:
            await self._stop()
            if stop_metrics is not None:
                stop_metrics()
        log.info("service_stopped", exit_code=self.exit_code)
        return self.exit_code

    def _serve_metrics(self) -> Callable[[], None]:
        config = self.config
        check_listen(f"{config.metrics_host}:{config.metrics_port}", allow_remote_tcp=config.allow_remote_tcp)
        return serve_metrics(config.metrics_port, self.registry, config.metrics_host)

    async def _built(
        self, build: Callable[[Service[C]], Awaitable[Sequence[Registration]]],
    ) -> Sequence[Registration] | None:
        """What `build` gives, or None if the stop was requested meanwhile: a long start must not hold it up."""
        building = asyncio.ensure_future(build(self))
        stopping = asyncio.ensure_future(self.stop_requested.wait())
        try:
            await asyncio.wait({building, stopping}, return_when=asyncio.FIRST_COMPLETED)
            return building.result() if building.done() else None
        finally:
            for task in (building, stopping):
                task.cancel()
            await asyncio.gather(building, stopping, return_exceptions=True)

    async def _stop(self) -> None:
        self.stop_requested.set()
        await self._server.set_ready(False)
        for callback in self._on_stopping:
            self._run_stopping_callback(callback)
        await self._server.stop(self.config.shutdown_grace_s)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for stop in reversed(self._on_stop):
            await self._run_stop_callback(stop)
        for channel in self._channels:
            await channel.close()
        self.executor.shutdown(wait=True, cancel_futures=True)

    # One callback that fails must not keep the others from closing their databases.
    def _run_stopping_callback(self, callback: Callable[[], None]) -> None:
        try:
            callback()
        except Exception as error:
            self._callback_failed(callback, error)

    async def _run_stop_callback(self, callback: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(STOP_CALLBACK_TIMEOUT_S):
                await callback()
        except Exception as error:
            self._callback_failed(callback, error)

    def _callback_failed(self, callback: Callable[[], Any], error: Exception) -> None:
        name = getattr(callback, "__qualname__", repr(callback))
        log.error("stop_callback_failed", callback=name, exc_info=error)
        self.exit_code = self.exit_code or 1

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("background_task_failed", task=task.get_name(), exc_info=error)
            self.request_stop(f"task {task.get_name()} failed", exit_code=1)


def install_signals(service: Service[Any]) -> None:
    """SIGTERM and SIGINT stop the service; the second one ends the process at once."""
    signalled = False

    # Not `stop_requested`: the first signal may fall into a stop that began by itself, and must not cut that short.
    def received(number: signal.Signals) -> None:
        nonlocal signalled
        if signalled:
            service.stop_now(128 + number)
        signalled = True
        service.request_stop(number.name)

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, received, number)
