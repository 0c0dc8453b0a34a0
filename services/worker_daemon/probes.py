"""Finds out which imports a zygote may hold: each set once, in a throw-away process (import-cache study §3.4)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from looseleaf.errors import InvalidArgument, LooseLeafError, Unavailable
from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.core.zygote_facts import (
    DOUBTFUL,
    DOUBTFUL_S,
    ForkProbe,
    ProbeKey,
    ProbeResult,
    Verdict,
)
from looseleaf.services.worker_daemon.probe_table import FILE_BYTES_MAX, ProbeTable, result_of
from looseleaf.services.worker_daemon.process_memory import descendants
from looseleaf.services.worker_daemon.process_stat import process_busy_s
from looseleaf.services.worker_daemon.reaper import Reaper, describe_exit
from looseleaf.services.worker_daemon.zygote import python_flags

log = structlog.get_logger()

PROBE_LIMIT_S: Final = 60.0
# Of the limit; a probe that used more of it computing was slow, else it hung.
BUSY_SHARE: Final = 0.5


@dataclass(frozen=True)
class ProbeSettings:
    """How to exec a probe where no zygote forks one. `env`: the whole environment. `user_site`: as a zygote's."""

    python: str
    env: dict[str, str]
    log_path: str = os.devnull
    limit_s: float = PROBE_LIMIT_S
    user_site: bool = True


@dataclass
class _Told:
    """What a probe has said so far."""

    importing: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    brought: dict[str, frozenset[str]] = field(default_factory=dict)
    result: dict[str, Any] | None = None

    def take(self, line: bytes) -> None:
        """Raises ValueError or InvalidArgument for what no probe says."""
        said = json.loads(line)
        if not isinstance(said, dict):
            raise ValueError("no mapping")
        self.importing = str(said.get("begin", self.importing))
        if took := fields.sequence(said, "took", []):
            name, seconds = took
            told = {"name": name, "seconds": seconds, "modules": said.get("modules", [])}
            self.seconds[fields.text(told, "name")] = fields.number(told, "seconds")
            self.brought[name] = frozenset(fields.texts(told, "modules"))
        if isinstance(result := said.get("result"), dict):
            self.result = result


class Probes:
    """The host's `Prober`: one probe at a time, each set of imports once for an environment."""

    def __init__(self, table: ProbeTable, reaper: Reaper, settings: ProbeSettings) -> None:
        self._table = table
        self._reaper = reaper
        self._settings = settings
        self._lock = asyncio.Lock()
        # Until when a doubtful result counts, on the loop's clock.
        self._doubtful_until_s: dict[ProbeKey, float] = {}
        self._told_of_network = False

    async def _known(self, key: ProbeKey) -> ProbeResult | None:
        """What an earlier probe found."""
        # Files of up to `FILE_BYTES_MAX`, on a disk that may be slow; nobody else has the table's lock meanwhile.
        result = await asyncio.to_thread(self._table.get, key)
        if result is not None and result.verdict in DOUBTFUL:
            until_s = self._doubtful_until_s.get(key, 0.0)
            return result if asyncio.get_running_loop().time() < until_s else None
        return result

    async def probe(self, key: ProbeKey, fork: ForkProbe | None = None) -> ProbeResult:
        """What is known, or what a probe finds now; exec'ed where `fork` is None or fails.

        Whatever the imports do is a verdict. Raises Unavailable `PROBE_FAILED` if no probe could be started.
        """
        async with self._lock:
            if (known := await self._known(key)) is not None:
                return known
            result = await self._run(key, fork)
            doubtful = result.verdict in DOUBTFUL
            if doubtful:
                self._forget_doubts()
                self._doubtful_until_s[key] = asyncio.get_running_loop().time() + DOUBTFUL_S
            await asyncio.to_thread(self._table.add, result, on_disk=not doubtful)
        log.info(
            "imports_probed", imports=list(key.imports), verdict=str(result.verdict), culprit=result.culprit,
            detail=result.detail, seconds=round(sum(result.seconds.values()), 3), private_bytes=result.private_bytes,
        )  # fmt: skip
        return result

    def _forget_doubts(self) -> None:
        now_s = asyncio.get_running_loop().time()
        self._doubtful_until_s = {key: until for key, until in self._doubtful_until_s.items() if until > now_s}

    async def _run(self, key: ProbeKey, fork: ForkProbe | None) -> ProbeResult:
        with ExitStack() as stack:
            ours, theirs = socket.socketpair()
            stack.callback(ours.close)
            with theirs:
                pid = await self._start(key, fork, theirs)
            exited = self._reaper.exit_status(pid)
            told = _Told()
            try:
                async with asyncio.timeout(self._settings.limit_s):
                    await _listen(ours, told)
            except (TimeoutError, ValueError, InvalidArgument) as error:
                late = isinstance(error, TimeoutError)
                verdict, detail = self._when_late(pid) if late else (Verdict.ERROR, "what it said is not understood")
                return ProbeResult(key, verdict, told.seconds, culprit=told.importing, detail=detail)
            finally:
                self._end(pid)
                code = await asyncio.shield(exited)
        if told.result is not None:
            self._tell_of_network(told.result)
            try:
                return result_of(key, told.result, told.seconds, told.brought)
            except (ValueError, LooseLeafError):
                return ProbeResult(key, Verdict.ERROR, told.seconds, detail="what it said is not understood")
        detail = f"its process {describe_exit(code, '')}"
        # By itself, or by a system that ran out of memory: nobody can tell.
        verdict = Verdict.PASSING if code < 0 else Verdict.ERROR
        return ProbeResult(key, verdict, told.seconds, culprit=told.importing, detail=detail)

    def _tell_of_network(self, result: dict[str, Any]) -> None:
        if result.get("has_network") is True and not self._told_of_network:
            self._told_of_network = True
            log.warning("probes_have_network", why="this daemon may make no network namespace")

    async def _start(self, key: ProbeKey, fork: ForkProbe | None, channel: socket.socket) -> int:
        with ExitStack() as stack:
            null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, null)
            output = os.open(self._settings.log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            stack.callback(os.close, output)
            if fork is not None:
                try:
                    return await fork(key.imports, [channel.fileno(), null, output, output])
                except LooseLeafError as error:
                    log.warning("probe_not_forked", reason=error.reason)
            return self._exec(key, channel, null, output)

    def _exec(self, key: ProbeKey, channel: socket.socket, null: int, output: int) -> int:
        command = [self._settings.python, *python_flags(self._settings.user_site), "-m", "looseleaf.worker.probe"]
        command += ["--fd", str(channel.fileno())]
        command += ["--base", ",".join(sorted(key.base)), "--imports", ",".join(key.imports)]
        try:
            process: subprocess.Popen[Any] = subprocess.Popen(
                command, pass_fds=[channel.fileno()], stdin=null, stdout=output, stderr=output,
                env=self._settings.env, start_new_session=True, cwd="/",
            )  # fmt: skip
        except OSError as error:
            text = f"the interpreter {self._settings.python} cannot be started to try imports: {error}"
            raise Unavailable("PROBE_FAILED", text) from error
        # The reaper takes the exit status; without this the Popen object would warn about a running child.
        process.returncode = 0
        return process.pid

    def _when_late(self, pid: int) -> tuple[Verdict, str]:
        limit_s = self._settings.limit_s
        busy_s = process_busy_s(pid)
        if busy_s >= BUSY_SHARE * limit_s:
            return Verdict.SLOW, f"not done after {limit_s:g} s, {busy_s:.0f} of them at work"
        return Verdict.HANG, f"not done after {limit_s:g} s, and waiting"

    def _end(self, pid: int) -> None:
        """Ends the probe with all that it started: whatever left its group would become the daemon's child."""
        # Nothing is reaped meanwhile, so that no number can be another process's.
        family = descendants(pid)
        self._reaper.signal(pid, signal.SIGKILL)
        for child in family:
            try:
                os.kill(child, signal.SIGKILL)
            except ProcessLookupError:
                continue


async def _listen(sock: socket.socket, told: _Told) -> None:
    """Until the result, or the end of what the probe says. Raises ValueError or InvalidArgument for nonsense."""
    # The stream closes its socket; ours is closed by who made it.
    reader, writer = await asyncio.open_connection(sock=sock.dup(), limit=FILE_BYTES_MAX)
    try:
        while told.result is None and (line := await reader.readline()):
            told.take(line)
    finally:
        writer.close()
