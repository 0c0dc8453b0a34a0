"""The worker's main loop: one request of the daemon after the other, on the main thread, where cells expect to run."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import time
from collections.abc import Callable
from typing import Any, Final

from looseleaf import devices
from looseleaf.checkpoint.names import HiddenNames
from looseleaf.errors import InvalidArgument, LooseLeafError
from looseleaf.ids import ExecutionId
from looseleaf.protocol import fields
from looseleaf.protocol.channel import Channel
from looseleaf.protocol.frames import PROTOCOL_VERSION, Message, close_fds
from looseleaf.protocol.rpc import unknown_message
from looseleaf.protocol.state_io import LinkStateIO
from looseleaf.worker.cell_save import CellSaver
from looseleaf.worker.comms import WAITING_MAX, CommInbox, forward_comms
from looseleaf.worker.execution import CellRunner
from looseleaf.worker.inbox import Inbox
from looseleaf.worker.interaction import Interaction
from looseleaf.worker.interrupts import run_interruptible
from looseleaf.worker.lasting_link import LastingLink
from looseleaf.worker.late_imports import LateImports
from looseleaf.worker.left_watch import LeftWatch
from looseleaf.worker.leftovers import end_group, leftovers
from looseleaf.worker.log import log_to
from looseleaf.worker.origin import under
from looseleaf.worker.peak import PeakBytes
from looseleaf.worker.plain import plain
from looseleaf.worker.probe_checks import cuda_is_spoiled
from looseleaf.worker.raw_output import RawOutput
from looseleaf.worker.result_cache import begin_caches
from looseleaf.worker.shell import WorkerShell, add_sources
from looseleaf.worker.stages import WorkerState
from looseleaf.worker.streams import OutputRelay, OutStream
from looseleaf.worker.thread_counts import ComputeThreads
from looseleaf.worker.unsaved import stale_note

log = logging.getLogger("looseleaf.worker")

# Longest wait for a slow daemon when a cell flushes its output, or at the end.
FLUSH_LIMIT_S: Final = 2.0
# Without a request for so long, a worker is taken to be ready: the next steps of a preparation come sooner.
SETTLE_AFTER_S: Final = 0.05


class WorkerRuntime:
    """A forked worker's connection, shell and state. `run` never returns: the process ends by `os._exit`."""

    def __init__(
        self,
        shell: WorkerShell,
        channel: Channel,
        streams: tuple[OutStream, OutStream],
        imports: list[str],
        threads: ComputeThreads,
        log_fd: int,
        environment_id: str = "",
    ) -> None:
        self._shell = shell
        self._imports = imports
        self._environment_id = environment_id
        self._threads = threads
        # What the kernel said last.
        self._thread_count = 0
        self._pid = os.getpid()
        self._execution_id = ""
        self._peak = PeakBytes()
        # The cell that runs; empty between cells.
        self._running = ""
        self._log_fd = log_fd
        self._link = LastingLink(channel, self._take_event, self._take_request, self._leave, self._take_log)
        self._relay = OutputRelay(self._send_output, lambda: self._link.flush(FLUSH_LIMIT_S))
        self._raw = RawOutput(self._relay)
        self._interaction = Interaction(self._ask)
        self._runner = CellRunner(shell)
        self._inbox = Inbox(self._runner.loop)
        self._comms = CommInbox(self._runner.loop, self._comm_done)
        self._left = LeftWatch(self._runner.loop, self._tell_left)
        # Widgets come with the state: their comms must be ours whatever was imported before.
        io = LinkStateIO(self._link.current)
        self._state = WorkerState(
            shell.user_ns, io, HiddenNames(shell), lambda: forward_comms(self._publish),
            lambda name: self._link.send_event("importing", {"name": name}),
        )  # fmt: skip
        self._saver = CellSaver(shell, self._link, io, self._state)
        self._handlers: dict[str, Callable[[Message], Message]] = {
            "prepare": self._among_cells(self._state.prepare), "attach": self._among_cells(self._state.attach),
            "run": self._run_cell,
        }
        shell.publish = self._publish
        for stream in streams:
            stream.connect(self._relay)
        log_to(log_fd)

    def run(self) -> None:
        """Serves the daemon until the connection ends."""
        # Before the threads: while they start, the daemon goes on.
        self._link.say_first("hello", {
            "v": PROTOCOL_VERSION, "role": "worker", "pid": os.getpid(), "zygote_imports": self._imports,
            "environment_id": self._environment_id,
        })
        self._link.start()
        self._relay.start()
        self._raw.start()
        while True:
            self._answer(self._next())

    def _next(self) -> Message:
        """The next request; if none comes for a while, what nobody should wait for is done."""
        if self._threads.settled:
            return self._inbox.next()
        later = self._runner.loop.call_later(SETTLE_AFTER_S, self._threads.settle)
        try:
            return self._inbox.next()
        finally:
            later.cancel()

    def _answer(self, request: Message) -> None:
        request_id = request["id"]
        try:
            handler = self._handlers.get(request["t"])
            if handler is None:
                raise unknown_message(request)
            # Imports outside cells find `get_ipython` and the like as those of a cell do.
            with self._shell.builtin_trap:
                # It came by the connection to the daemon that there is.
                self._saver.follow_link()
                reply = handler(request)
        except Exception as error:
            if not isinstance(error, LooseLeafError):
                log.error("request_failed type=%s", request["t"], exc_info=error)
            self._link.answer(request_id, error)
        else:
            self._link.answer(request_id, reply)

    def _among_cells(self, handler: Callable[[Message], Message]) -> Callable[[Message], Message]:
        """`handler` in the context of cells: what it sets in context variables is for them."""
        context = self._runner.context
        return lambda request: context.run(handler, request)

    # -- on the reader thread --------------------------------------------------------------------------

    def _take_request(self, message: Message, fds: list[int]) -> None:
        close_fds(fds)
        if message["t"] == "shutdown":
            # Also while a cell runs: the daemon knows what it gives up.
            self._link.current.reply(message["id"], {})
            self._link.flush(FLUSH_LIMIT_S)
            os._exit(0)
        if message["t"] == "resume" and self._link.resume(message):
            return
        self._inbox.put(message)

    def _take_event(self, message: Message, fds: list[int]) -> None:
        close_fds(fds)
        if message["t"] == "input_reply":
            refused = message.get("refused") is True or not isinstance(message.get("value"), str)
            number = fields.integer(message, "question", 0)
            self._interaction.answer(number, "" if refused else message["value"], refused)
        elif message["t"] == "comm":
            self._comms.take(message)
        elif message["t"] == "environment":
            # Before the first request, past the zygote, which must not see it.
            for name, value in fields.rows(message, "variables", bytes, bytes):
                os.environb[name] = value
        else:
            log.warning("event_unknown type=%s", message["t"])

    def _take_log(self, fds: list[int]) -> None:
        """The next daemon's pipe takes the place of the one that the last daemon read."""
        if fds:
            os.dup2(fds[0], self._log_fd, inheritable=False)
        close_fds(fds)

    def _leave(self, error: LooseLeafError) -> None:
        # No daemon is there, and with it goes everything that this process may still say or save.
        log.info("connection_ended reason=%s", error.reason)
        end_group()
        os._exit(0)

    # -- output ----------------------------------------------------------------------------------------

    def _send_output(self, message: dict[str, Any]) -> None:
        if message.get("origin") == self._running:
            # Of the cell that runs: the kernel knows that of every output without another origin.
            del message["origin"]
        self._link.tell("output", {"execution_id": self._execution_id, "message": message})

    def _publish(self, message: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            # A process that a cell forked: the pipes and the connection are its parent's.
            sys.stderr.write(f"LooseLeaf: a forked process can print, but not send a {message['type']} message\n")
            return
        self._raw.drain()
        self._relay.publish(message)

    def _ask(self, prompt: str, password: bool, question: int) -> None:
        self._raw.drain()
        self._relay.flush()
        self._link.tell("input_request", {
            "execution_id": self._execution_id, "prompt": plain(prompt), "password": password,
            "question": question,
        })

    def _comm_done(self, origin: str, late: bool) -> None:
        # Before the kernel hears that it is done, all that its callbacks have shown has left.
        self._raw.drain()
        self._relay.flush()
        self._link.tell("comm_done", {"execution_id": self._execution_id, "origin": origin, "late": late})

    def _tell_left(self, items: list[dict[str, str]]) -> None:
        self._raw.drain()
        self._relay.flush()
        self._link.tell("left", {"execution_id": self._execution_id, "items": items})

    # -- cells -----------------------------------------------------------------------------------------

    def _run_cell(self, request: Message) -> Message:
        """Runs, tells the end at once, then saves; see docs/protocol.md: `run`."""
        execution_id = ExecutionId(fields.text(request, "execution_id"))
        source = fields.text(request, "source")
        count = fields.integer(request, "execution_count", minimum=1)
        cell_id = fields.text(request, "cell_id", "")
        # Refused before anything runs if there is no session.
        self._state.tracker  # noqa: B018
        self._link.begin_run(request["id"], execution_id, fields.text(request, "reconnect", ""))
        self._saver.limit(fields.number(request, "save_limit_s", 0.0))
        self._set_up(fields.mapping(request, "context", {}))
        self._left.stop()
        self._execution_id = execution_id
        forward_comms(self._publish)
        devices.backend().reset_touch()
        self._link.run_started()
        self._link.tell("started", {"execution_id": execution_id})
        began_s = time.monotonic()
        self._running = execution_id
        self._comms.open()
        if note := stale_note(self._state.tracker.take_stale()):
            self._relay.write("stderr", note)
        imports = LateImports()
        try:
            with under(execution_id), self._interaction.installed(fields.boolean(request, "allow_stdin", False)):
                reply = self._runner.run(source, count, cell_id or None)
            run_s = time.monotonic() - began_s
            self._serve_comms()
            self._raw.drain()
            self._relay.flush()
        finally:
            self._running = ""
        touched_s = devices.backend().touched()
        left = leftovers(self._runner.loop)
        self._tell_end(reply, {
            "execution_id": execution_id, "run_s": run_s,
            "first_touch_s": None if touched_s is None else max(0.0, touched_s - began_s), "left": left,
            "peak_bytes": self._peak.of_cell(touched=touched_s is not None), "late_imports": imports.count(),
            "cuda_spoiled": cuda_is_spoiled(str(reply.get("evalue", ""))),
        })
        try:
            return self._runner.context.run(self._saver.save, execution_id, source, cell_id, left=bool(left))
        finally:
            if left:
                self._left.start()

    def _serve_comms(self) -> None:
        """The callbacks of what the front end said meanwhile; an interrupt ends one, never the cell's save."""
        for _callback in range(WAITING_MAX):
            try:
                run_interruptible(self._comms.close)
                return
            except KeyboardInterrupt:
                continue

    def _tell_end(self, reply: dict[str, Any], facts: dict[str, Any]) -> None:
        try:
            self._link.tell("ended", {**facts, "reply": plain(reply)})
        except (InvalidArgument, ValueError) as error:
            # What the person's code asks of the front end is of any size and kind: it must not cost the save.
            log.warning("reply_payload_dropped kind=%s", type(error).__name__)
            self._relay.write("stderr", f"LooseLeaf: what this cell asks of the front end cannot be sent: {error}\n")
            self._relay.flush()
            self._link.tell("ended", {**facts, "reply": plain({**reply, "payload": []})})

    def _set_up(self, context: dict[str, Any]) -> None:
        """What the kernel's front end and settings mean for this cell; see docs/protocol.md: `context`."""
        shell = self._shell
        columns = context.get("columns")
        # Where it says nothing new it would only count as a change of the session's environment.
        if type(columns) is int and columns > 0 and columns != shutil.get_terminal_size().columns:
            os.environ["COLUMNS"] = str(columns)
        shell.compiler.next_name = fields.text(context, "cell_file", "")
        if "sources" in context:
            add_sources(shell, fields.rows(context, "sources", str, int, str))
        begin_caches(shell, context)
        request = fields.text(context, "request", "")
        shell.set_parent({"header": {"msg_id": request, "msg_type": "execute_request"}} if request else {})
        threads = fields.integer(context, "threads", 0)
        if 0 < threads != self._thread_count:
            self._threads.set(threads)
            self._thread_count = threads
        self._threads.settle()
        interactivity = fields.text(context, "ast_node_interactivity", "")
        if interactivity:
            shell.ast_node_interactivity = interactivity
