"""The root zygote of a host and forks from it (design §5). The daemon itself never forks without exec."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from looseleaf.environment import Environment
from looseleaf.errors import LooseLeafError, Timeout, Unavailable
from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.core.base_imports import BaseImports
from looseleaf.services.worker_daemon.core.restart_pause import RestartPause
from looseleaf.services.worker_daemon.reaper import Reaper, describe_exit
from looseleaf.services.worker_daemon.scrubbed_env import scrubbed, with_gpus_shown
from looseleaf.services.worker_daemon.zygote_channel import ZygoteChannel

log = structlog.get_logger()

FORK_TIMEOUT_S = 10.0
# A fork waits so long for a zygote that died to be back.
RESTART_WAIT_S = 20.0
EXIT_TIMEOUT_S = 2.0
RESTART_DELAY_S_MIN = 0.5
RESTART_DELAY_S_MAX = 30.0
# One that ends before is started again with a pause.
LIVED_S_MIN = 60.0
# Its memory takes milliseconds to tell, and a fork may wait for its turn.
STAT_TIMEOUT_S = 2.0
# Before a base, whose end costs everybody, is ended for it.
STATS_UNANSWERED_MAX = 2
# Of a start's limit, for one import: one that hangs twice is left out before a cluster's start is given up.
IMPORT_SHARE = 3 / 8
# Zygotes compute nothing; one thread each means no thread pool is lost at a fork. Workers raise it by API.
SINGLE_THREADED = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


@dataclass(frozen=True)
class ZygoteSettings:
    """How to start a root zygote: interpreter, head set, environment on top of the daemon's.

    `user_site`: it finds packages in the user's own folder where a kernel does.
    """

    python: str
    imports: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    log_path: str = os.devnull
    start_timeout_s: float = 120.0
    user_site: bool = True


def python_flags(user_site: bool) -> list[str]:
    """Of zygotes and probes: nothing comes from their working directory, all else from where a kernel has it."""
    return ["-P"] if user_site else ["-P", "-s"]


def import_seconds(told: Iterable[Any]) -> dict[str, float]:
    """What a `READY` says of its `imports`, or a worker of those that it added, in their order."""
    found = {}
    for item in told:
        row = dict(item)
        found[fields.text(row, "name")] = fields.number(row, "seconds")
    return found


class Zygote:
    """One exec'ed single-threaded root zygote; started again when it dies or does not answer."""

    def __init__(self, settings: ZygoteSettings, reaper: Reaper) -> None:
        self.settings = settings
        self.pid = 0
        self.imports: tuple[str, ...] = ()
        # Where it imported from, and the id of what was installed there before; None and empty if it did not say.
        self.environment: Environment | None = None
        self.environment_id = ""
        # Import → seconds that it took, names that are there besides, memory after them.
        self.seconds: dict[str, float] = {}
        self.modules: frozenset[str] = frozenset()
        self.private_bytes = 0
        # Called each time that it is ready; and when it has ended or a start has failed, with whether one did.
        self.on_ready: Callable[[], None] = lambda: None
        self.on_down: Callable[[bool], None] = lambda _hopeless: None
        self._reaper = reaper
        # Set while it serves.
        self._channel: ZygoteChannel | None = None
        self._serving = asyncio.Event()
        self._exited: asyncio.Future[int] | None = None
        self._was_ready = False
        self._serving_since_s = 0.0
        self._base = BaseImports(settings.imports)
        self._pause = RestartPause(RESTART_DELAY_S_MIN, RESTART_DELAY_S_MAX, LIVED_S_MIN)
        self._stats_unanswered = 0
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Execs it and waits until it is ready, without imports that make a start fail; keeps it alive from then on.

        Raises Timeout `ZYGOTE_TIMEOUT` or Unavailable `ZYGOTE_FAILED` if a start failed for another reason, or at one
        import after the other; then no process is left.
        """
        for starts_left in range(self._base.starts_max - 1, -1, -1):
            try:
                await self._start()
                break
            except LooseLeafError as error:
                if not self._blame(error) or not starts_left:
                    raise
                log.error("zygote_start_failed", reason=error.reason, text=error.message)
        self._keeper = asyncio.create_task(self._keep_alive(), context=Context())

    def begin(self) -> None:
        """As `start`, without waiting for it: forks do, and a start that fails is tried again."""
        # In a context of its own: all sessions share it, and the call of one of them may have begun it.
        self._keeper = asyncio.create_task(self._start_and_keep_alive(), context=Context())

    async def _start(self) -> None:
        began_s = time.monotonic()
        channel = self._exec()
        try:
            limit_s = self.settings.start_timeout_s
            ready = await channel.ready(limit_s, IMPORT_SHARE * limit_s)
            self.seconds = import_seconds(fields.sequence(ready, "imports"))
            self.imports = tuple(self.seconds)
            self.modules = frozenset(fields.texts(ready, "modules", []))
            self.private_bytes = fields.integer(ready, "private_bytes", 0)
            self._take_environment(ready)
        except BaseException as error:
            channel.close()
            await self._end()
            if not isinstance(error, LooseLeafError):
                raise
            text = f"{error.message}; its output is in {self.settings.log_path}"
            raise type(error)(error.reason, text, **error.fields) from error
        self._channel = channel
        self._serving.set()
        self._was_ready = True
        self._base.served()
        self._serving_since_s, self._stats_unanswered = time.monotonic(), 0
        self.on_ready()
        log.info(
            "zygote_ready",
            pid=self.pid,
            seconds=round(time.monotonic() - began_s, 3),
            imports=list(self.imports),
            failed=ready.get("failed"),
        )

    def _exec(self) -> ZygoteChannel:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [self.settings.python, *python_flags(self.settings.user_site), "-m", "looseleaf.worker.zygote"]
        command += ["--ctl-fd", str(theirs.fileno()), "--imports", ",".join(self.settings.imports)]
        # For one that outlives this daemon in an import; the daemon itself waits less.
        command += ["--import-limit-s", str(2 * self.settings.start_timeout_s)]
        try:
            with theirs, open(self.settings.log_path, "ab") as log_file:
                process: subprocess.Popen[Any] = subprocess.Popen(
                    command,
                    pass_fds=[theirs.fileno()],
                    stdin=subprocess.DEVNULL,
                    stdout=log_file,
                    stderr=log_file,
                    env=with_gpus_shown({**scrubbed(os.environ)[0], **SINGLE_THREADED, **self.settings.env}),
                    start_new_session=True,
                )
        except OSError as error:
            ours.close()
            text = f"the interpreter {self.settings.python} of workers cannot be started: {error}"
            raise Unavailable("ZYGOTE_FAILED", text) from error
        # The reaper takes the exit status; without this the Popen object would warn about a running child.
        process.returncode = 0
        self.pid = process.pid
        self._exited = self._reaper.exit_status(self.pid)
        return ZygoteChannel(ours)

    async def _end(self) -> None:
        """Closes the channel, on which a zygote exits; kills one that does not. Idempotent."""
        self._serving.clear()
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._exited is None:
            return
        try:
            await asyncio.wait_for(asyncio.shield(self._exited), EXIT_TIMEOUT_S)
        except TimeoutError:
            self._reaper.signal(self.pid, signal.SIGKILL)
            await self._exited

    def _take_environment(self, ready: dict[str, Any]) -> None:
        self.environment_id = fields.text(ready, "environment_id", "")
        if self.environment_id:
            folders = tuple(fields.texts(ready, "site_dirs"))
            self.environment = Environment(fields.text(ready, "interpreter"), folders)

    async def _start_and_keep_alive(self) -> None:
        await self._until_started()
        await self._keep_alive()

    async def _keep_alive(self) -> None:
        while True:
            assert self._exited is not None
            code = await asyncio.shield(self._exited)
            log.warning("zygote_died", pid=self.pid, how=describe_exit(code))
            lived_s = time.monotonic() - self._serving_since_s
            await self._end()
            self.on_down(False)
            await self._wait(lived_s)
            await self._until_started()

    async def _until_started(self) -> None:
        while not await self._restarted():
            self.on_down(True)
            await self._wait(0.0)

    async def _wait(self, lived_s: float) -> None:
        pause_s = self._pause.after(lived_s)
        if pause_s:
            log.warning("zygote_restart_delayed", seconds=pause_s)
            # Nobody should wait for it as for one that is being started.
            self.on_down(True)
            await asyncio.sleep(pause_s)

    async def _restarted(self) -> bool:
        try:
            await self._start()
        except LooseLeafError as error:
            log.error("zygote_restart_failed", reason=error.reason, text=error.message)
            self._blame(error)
            return False
        except Exception:
            log.exception("zygote_restart_failed")
            return False
        return True

    def _blame(self, error: LooseLeafError) -> bool:
        """Whether the next start may go better: a base with less serves, none does not."""
        before = self._base.left
        hopeful = self._base.blame(str(error.fields.get("culprit", "")), str(error.fields.get("name", "")))
        if self._base.left != before:
            dropped = [name for name in before if name not in self._base.left]
            log.warning("base_import_dropped", names=dropped, why=error.message, left=list(self._base.left))
            self.settings = replace(self.settings, imports=self._base.left)
        return hopeful

    async def fork(
        self, title: str, env: dict[str, str], fds: Sequence[int], kind: str = "worker", imports: Sequence[str] = ()
    ) -> int:
        """Forks a process that gets `fds` = [channel, stdin, stdout, stderr]; returns its pid.

        Waits as `until_serving`. Raises Unavailable `ZYGOTE_DOWN`, `ZYGOTE_FAILED` or `FORK_FAILED`, Timeout
        `ZYGOTE_TIMEOUT`.
        """
        channel = await self._serving_channel()
        body = {"title": title, "env": env, "kind": kind, "imports": list(imports)}
        try:
            return await channel.fork(body, fds, FORK_TIMEOUT_S)
        except Timeout:
            # One that hangs would fail every later fork too; they wait for its successor.
            self.kill()
            raise

    async def until_serving(self) -> None:
        """Waits up to `RESTART_WAIT_S` for a zygote that is being started again, and for one that is started for the
        first time as long as that may take. Raises Unavailable `ZYGOTE_DOWN`."""
        await self._serving_channel()

    async def pss_bytes(self) -> int | None:
        """Memory of a zygote that has nothing to do; None if it is busy or down. Raises as `ZygoteChannel.fork`.

        One that does not answer twice in a row is ended: found here, it costs no cell the time of a fork.
        """
        if self._channel is None or self._channel.closed or self._channel.busy:
            return None
        try:
            found = await self._channel.pss_bytes(STAT_TIMEOUT_S)
        except Timeout:
            self._stats_unanswered += 1
            if self._stats_unanswered >= STATS_UNANSWERED_MAX:
                log.error("zygote_hangs", pid=self.pid)
                self.kill()
            raise
        self._stats_unanswered = 0
        return found

    def kill(self) -> None:
        """Ends its process, which is started again."""
        if self._channel is not None:
            self._channel.close()
        self._reaper.signal(self.pid, signal.SIGKILL)

    async def _serving_channel(self) -> ZygoteChannel:
        if self._channel is not None and self._channel.closed:
            # It has just died; its successor sets the event again.
            self._serving.clear()
        try:
            wait_s = RESTART_WAIT_S if self._was_ready else self.settings.start_timeout_s
            await asyncio.wait_for(self._serving.wait(), wait_s)
        except TimeoutError:
            raise Unavailable(
                "ZYGOTE_DOWN",
                "the process that workers are forked from is being started again; nothing was run, run the cell again "
                "in a few seconds",
            ) from None
        assert self._channel is not None
        return self._channel

    async def stop(self) -> None:
        """Ends the zygote; workers forked from it go on."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        await self._end()
