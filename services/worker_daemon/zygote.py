"""The root zygote of a host and forks from it (design §5). The daemon itself never forks without exec."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import time
from dataclasses import dataclass, field
from typing import Any

import msgpack
import structlog

from looseleaf.errors import LooseLeafError, Timeout, Unavailable
from looseleaf.services.worker_daemon.reaper import Reaper, describe_exit

log = structlog.get_logger()

DATAGRAM_BYTES_MAX = 64 * 1024
READY_TIMEOUT_S = 120.0
FORK_TIMEOUT_S = 10.0
RESTART_DELAY_S = 1.0
# Zygotes compute nothing; one thread each means no thread pool is lost at a fork. Workers raise it by API.
SINGLE_THREADED = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS"), "1"
)


@dataclass(frozen=True)
class ZygoteSettings:
    """How to start a root zygote: interpreter, head set, environment on top of the daemon's."""

    python: str
    imports: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    log_path: str = os.devnull


class Zygote:
    """One exec'ed single-threaded root zygote; started again when it dies."""

    def __init__(self, settings: ZygoteSettings, reaper: Reaper) -> None:
        self.settings = settings
        self.pid = 0
        self.imports: tuple[str, ...] = ()
        self._reaper = reaper
        self._control: socket.socket | None = None
        self._lock = asyncio.Lock()
        self._next_id = 1
        self._watch: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> None:
        """Execs it and waits until it is ready. Raises Timeout `ZYGOTE_TIMEOUT` or Unavailable `ZYGOTE_FAILED`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        began = time.monotonic()
        process = self._exec(theirs)
        self.pid, self._control = process.pid, ours
        # The reaper takes the exit status; without this the Popen object would warn about a running child.
        process.returncode = 0
        ready = await self._receive("READY", READY_TIMEOUT_S)
        self.imports = tuple(str(item["name"]) for item in ready["imports"])
        log.info(
            "zygote_ready",
            pid=self.pid,
            seconds=round(time.monotonic() - began, 3),
            imports=list(self.imports),
            failed=ready.get("failed"),
        )
        self._watch = asyncio.create_task(self._restart_when_dead())

    def _exec(self, control: socket.socket) -> subprocess.Popen[bytes]:
        command = [self.settings.python, "-P", "-m", "looseleaf.worker.zygote"]
        command += ["--ctl-fd", str(control.fileno()), "--imports", ",".join(self.settings.imports)]
        with control, open(self.settings.log_path, "ab") as log_file:
            return subprocess.Popen(
                command,
                pass_fds=[control.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env={**os.environ, **SINGLE_THREADED, **self.settings.env},
                start_new_session=True,
            )

    async def _restart_when_dead(self) -> None:
        code = await self._reaper.exit_status(self.pid)
        self._close_control()
        while not self._stopping:
            log.warning("zygote_died", pid=self.pid, how=describe_exit(code))
            await asyncio.sleep(RESTART_DELAY_S)
            try:
                await self.start()
            except LooseLeafError as error:
                log.error("zygote_restart_failed", reason=error.reason, text=error.message)
            else:
                return

    async def fork(self, title: str, env: dict[str, str], fds: list[int]) -> int:
        """Forks a worker that gets `fds` = [channel, stdin, stdout, stderr]; returns its pid.

        Raises Unavailable `ZYGOTE_DOWN`, Timeout `ZYGOTE_TIMEOUT` or Unavailable `FORK_FAILED`.
        """
        async with self._lock:
            control = self._control
            if control is None:
                raise Unavailable(
                    "ZYGOTE_DOWN",
                    "the process that workers are forked from is being started again; nothing "
                    "was run, run the cell again",
                )
            request_id, self._next_id = self._next_id, self._next_id + 1
            data = msgpack.packb({"t": "FORK", "v": 1, "id": request_id, "title": title, "env": env})
            socket.send_fds(control, [data], fds)
            reply = await self._receive("FORKED", FORK_TIMEOUT_S, request_id)
            return int(reply["pid"])

    async def _receive(self, wanted: str, timeout_s: float, request_id: int | None = None) -> dict[str, Any]:
        control = self._control
        if control is None:
            raise Unavailable("ZYGOTE_DOWN", "the process that workers are forked from ended")
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    data = await loop.sock_recv(control, DATAGRAM_BYTES_MAX)
                    if not data:
                        raise Unavailable(
                            "ZYGOTE_FAILED",
                            f"the process that workers are forked from ended while starting; "
                            f"its output is in {self.settings.log_path}",
                        )
                    message: dict[str, Any] = msgpack.unpackb(data)
                    if message.get("t") == "ERR" and message.get("id") in (request_id, 0):
                        raise Unavailable(
                            "FORK_FAILED",
                            f"no worker could be forked: {message.get('text')}",
                            errno=message.get("errno"),
                        )
                    if message.get("t") == wanted and (request_id is None or message.get("id") == request_id):
                        return message
        except TimeoutError:
            raise Timeout(
                "ZYGOTE_TIMEOUT", f"the process that workers are forked from did not answer in {timeout_s:.0f} s"
            ) from None
        except OSError as error:
            raise Unavailable(
                "ZYGOTE_DOWN", f"the process that workers are forked from cannot be reached: {error}"
            ) from error

    def _close_control(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None

    async def stop(self) -> None:
        """Ends the zygote; workers forked from it go on."""
        self._stopping = True
        self._close_control()
        if self._watch is not None:
            self._watch.cancel()
        if self.pid:
            status = self._reaper.exit_status(self.pid)
            try:
                await asyncio.wait_for(asyncio.shield(status), 2.0)
            except TimeoutError:
                os.kill(self.pid, 9)
                await status
