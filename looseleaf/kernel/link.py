"""The kernel's connection to its host's daemon, made when needed and made again when lost."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from looseleaf.devices.backend import KINDS, Kind
from looseleaf.devices.description import GpuDescription, of_message
from looseleaf.errors import InvalidArgument, LooseLeafError, Timeout, Unavailable
from looseleaf.kernel_config import KernelConfig
from looseleaf.protocol import fields
from looseleaf.protocol.channel import Channel
from looseleaf.protocol.frames import PROTOCOL_VERSION, Message, close_fds
from looseleaf.protocol.threaded import ThreadedLink

log = logging.getLogger("looseleaf.kernel")

# A daemon that accepts but does not answer is asked again after this long at the latest.
SILENT_RETRY_S_MAX: Final = 60.0


@dataclass(frozen=True)
class Welcome:
    """What the daemon said to our hello.

    `gpus`: what cells may see; `gpu_memory_bytes`: of each, 0 if not told; `gpu`: what real ones are, if told.
    """

    session_id: str
    host_id: str
    device: Kind
    gpus: int
    gpu_memory_bytes: int
    epoch: int
    version: int
    gpu: GpuDescription | None = None

    @classmethod
    def of(cls, body: Message) -> Welcome:
        """Checked. Raises InvalidArgument `FIELD_MALFORMED`."""
        gpus = fields.integer(body, "gpus")
        device = fields.text(body, "device")
        if device not in KINDS:
            raise InvalidArgument("FIELD_MALFORMED", f"the daemon has devices of unknown kind {device!r}")
        return cls(
            fields.text(body, "session_id"), fields.text(body, "host_id"), cast("Kind", device),
            fields.integer(body, "pool_gpus", gpus), fields.integer(body, "gpu_memory_bytes", 0),
            fields.integer(body, "epoch"), fields.integer(body, "version"),
            of_message(fields.mapping(body, "gpu")) if "gpu" in body else None,
        )  # fmt: skip


_Opened = tuple[ThreadedLink, Welcome]


class DaemonLink:
    """At most one connection; `connect` returns the live one or makes it, and refuses at once while the daemon is away.

    `open_aside` makes it on a thread, while the main thread serves others; there are never two tries at a time.
    After a failed try the next one is made no sooner than `reconnect_interval_s` later, and ever later after tries that
    had to time out, so that a kernel without a cluster runs its CPU cells at full speed.
    """

    def __init__(self, config: KernelConfig, on_event: Callable[[Message], None]) -> None:
        self._config = config
        self._on_event = on_event
        self._link: ThreadedLink | None = None
        # A try on a thread that nobody has taken the outcome of.
        self._opening: Future[_Opened] | None = None
        self._next_try_s = 0.0
        self._silent_tries = 0
        self._last_error: LooseLeafError | None = None
        self.welcome: Welcome | None = None

    @property
    def current(self) -> ThreadedLink | None:
        """The connection, if it lives; from any thread."""
        link = self._link
        return link if link is not None and link.error is None else None

    @property
    def live(self) -> ThreadedLink | None:
        """As `current`, and a lost one is put away; main thread only."""
        if self._link is not None and self._link.error is not None:
            log.warning("daemon_lost %s", self._link.error)
            self.close()
        return self._link

    def connect(
        self, session_id: str, title: str, *, insist: bool, running: tuple[str, int] | None = None
    ) -> tuple[ThreadedLink, bool]:
        """The connection and whether it is new. `insist`: try now, however short ago the last try failed.

        Waits for a try that is under way, and takes its outcome. `running`: a cell of this kernel that a worker runs,
        and the epoch in which it does: nobody shall fence it.
        Raises Unavailable `NO_CLUSTER` or the daemon's refusal.
        """
        if (link := self.live) is not None:
            return link, False
        if self._opening is None and self._last_error is not None and not insist and self._paused:
            raise self._last_error
        opening, self._opening = self._opening, None
        try:
            self._link, self.welcome = (
                opening.result() if opening is not None else self._open(session_id, title, running)
            )
        except (OSError, LooseLeafError) as error:
            self._last_error = self._refused(error)
            raise self._last_error from error
        except BaseException:
            # An interrupt: the connection that may still come is nobody's, and raises no epoch under a later cell.
            if opening is not None:
                opening.add_done_callback(_close_opened)
            raise
        self._last_error, self._silent_tries = None, 0
        return self._link, True

    async def open_aside(
        self, session_id: str, title: str, *, insist: bool, running: tuple[str, int] | None = None
    ) -> None:
        """Makes on a thread what `connect` will then find or refuse at once. Main thread only. Raises as `connect`."""
        if self.live is not None or (self._opening is None and not insist and self._paused):
            return
        if self._opening is None:
            self._opening = self._begin(session_id, title, running)
        opening = self._opening
        try:
            await asyncio.wrap_future(opening)
        except (OSError, LooseLeafError) as error:
            # Unless somebody could not wait, and has heard of it.
            if self._opening is opening:
                self._opening, self._last_error = None, self._refused(error)
                raise self._last_error from error

    def _begin(self, session_id: str, title: str, running: tuple[str, int] | None) -> Future[_Opened]:
        opening = Future[_Opened]()
        # Nobody who stops waiting for it can cancel it.
        opening.set_running_or_notify_cancel()

        def work() -> None:
            try:
                opening.set_result(self._open(session_id, title, running))
            except BaseException as error:
                opening.set_exception(error)

        threading.Thread(target=work, name="looseleaf-connect", daemon=True).start()
        return opening

    @property
    def _paused(self) -> bool:
        return time.monotonic() < self._next_try_s

    def _open(self, session_id: str, title: str, running: tuple[str, int] | None) -> _Opened:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.settimeout(self._config.connect_timeout_s)
        try:
            sock.connect(str(self._config.kernel_socket()))
            sock.settimeout(None)
        except BaseException:
            sock.close()
            raise
        link = ThreadedLink(Channel(sock), on_event=self._take_event).start()
        hello = {"v": PROTOCOL_VERSION, "role": "kernel", "session_id": session_id, "title": title, "pid": os.getpid()}
        if running is not None:
            hello["running"], hello["epoch"] = running
        try:
            body, _fds = link.request("hello", hello, timeout_s=self._config.connect_timeout_s)
            welcome = Welcome.of(body)
        except BaseException:
            link.close()
            raise
        return link, welcome

    def _take_event(self, message: Message, fds: list[int]) -> None:
        close_fds(fds)
        self._on_event(message)

    def _refused(self, error: Exception) -> LooseLeafError:
        """The error for the person; also decides when to try again."""
        wait_s = self._config.reconnect_interval_s
        if isinstance(error, (TimeoutError, Timeout)):
            self._silent_tries += 1
            wait_s = min(self._config.connect_timeout_s * 2**self._silent_tries, SILENT_RETRY_S_MAX)
        self._next_try_s = time.monotonic() + wait_s
        if isinstance(error, LooseLeafError) and not isinstance(error, (Timeout, Unavailable)):
            # The daemon is there and says no: its own words tell why.
            return error
        where: Path = self._config.kernel_socket()
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return Unavailable(
            "NO_CLUSTER",
            f"no LooseLeaf cluster answers at {where} ({why}). CPU cells run as usual; a GPU cell needs one: start it "
            "with `looseleaf up`, then run the cell again. No variable was changed",
        )

    def close(self) -> None:
        """Ends the connection, also one that is being made."""
        if (opening := self._opening) is not None:
            self._opening = None
            opening.add_done_callback(_close_opened)
        if self._link is not None:
            self._link.close()
            self._link = None


def _close_opened(opening: Future[_Opened]) -> None:
    if opening.exception() is None:
        opening.result()[0].close()
