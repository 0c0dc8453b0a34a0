"""One submitted cell from the kernel's side: outputs are shown, questions asked, interrupts passed on."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any, Final

from looseleaf.errors import InvalidArgument, LooseLeafError, Unavailable
from looseleaf.kernel.forwarder import RequestPublisher, publish_output
from looseleaf.kernel.stdin import InputRefused
from looseleaf.protocol import fields
from looseleaf.protocol.frames import Message
from looseleaf.protocol.threaded import ThreadedLink

log = logging.getLogger("looseleaf.kernel")

# Events of a running cell that wait for the kernel's event loop; beyond it the daemon is not read.
EVENTS_WAITING_MAX: Final = 256
WAIT_FOR_ROOM_S: Final = 0.002
# Events behind a cell's outcome that wait until its version is taken over; more of them are shown at once.
EVENTS_BEHIND_MAX: Final = 4096
# Streamed text that waits is sent in messages of about this size.
STREAM_CHARS_MAX: Final = 1 << 20
# The worker is killed by the third interrupt, or by one that comes when the first had no effect for so long.
INTERRUPTS_BEFORE_KILL: Final = 2
INTERRUPT_GRACE_S: Final = 5.0
STILL_RUNS: Final = (
    "LooseLeaf: the cell still runs {seconds:g} s after the interrupt, as one does that waits for the GPU; another "
    "interrupt ends its GPU process, and what this cell has changed is lost then\n"
)
# What texts of one message have in common.
STREAM_KEYS: Final = ("type", "name", "origin")
NEWS: Final = frozenset({"recipe", "queue", "lease", "stage"})
# The wire's WorkerStage of a cell that has begun.
RUNNING: Final = 6
# What a host's next daemon says of a cell for which the last one had only begun to make a worker ready.
NOT_STARTED: Final = "CELL_NOT_STARTED"
# What tells that a host has the cell, or is about to.
HOST_NEWS: Final = frozenset({"lease", "stage"})
# Comm messages that wait for the cell; more of them wait for its end.
COMMS_WAITING_MAX: Final = 1000

Ask = Callable[[str, bool], Awaitable[str]]
# The connection to the daemon that is there again after one was lost; raises LooseLeafError if none comes.
Rejoin = Callable[[LooseLeafError], Awaitable[ThreadedLink]]


@dataclass
class GpuCellResult:
    """What became of the cell.

    `reply`: the cell's own (status, ename, ...), empty if it never ended. `saved`: the save's outcome. `error`: instead
    of `saved`, what the system could not do; nothing was shown for it yet. `news`: the last recipe, queue, lease and
    stage events.
    """

    reply: dict[str, Any] = field(default_factory=dict)
    saved: dict[str, Any] | None = None
    error: LooseLeafError | None = None
    news: dict[str, Any] = field(default_factory=dict)


class GpuCell:
    """Runs one submitted cell to its end; used once.

    Everything is published by the coroutine that serves the request, through that request's publisher, so every output
    belongs to it. `note`: what is told of the cell once it has begun there.
    """

    def __init__(
        self, link: ThreadedLink, body: Message, publisher: RequestPublisher, ask: Ask | None, note: str = "",
        rejoin: Rejoin | None = None,
    ) -> None:
        self._link = link
        self._body = body
        self._publisher = publisher
        self._ask = ask
        self._note = note
        self._rejoin = rejoin
        # The worker's number of its last event that was taken.
        self._heard = 0
        # What a daemon that was lost may not have passed on: the last answer, an interrupt.
        self._last_answer: dict[str, Any] | None = None
        self._unsent_interrupt: dict[str, Any] | None = None
        self._execution_id = fields.text(body, "execution_id")
        # In order of arrival; None is the end.
        self._waiting: deque[Message | None] = deque()
        self._arrived = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._taken = 0
        self._handled = 0
        # Its outcome is known.
        self._closed = False
        # So is what came behind it: later events are somebody else's. Under the lock no event falls between both.
        self._handed_over = False
        self._hand_over_lock = threading.RLock()
        self._question: asyncio.Task[None] | None = None
        # Comm messages of the front end that the worker has, by their ids; the results say whether it dealt with them.
        self._comms: dict[str, Future[bool]] = {}
        self._result = GpuCellResult()
        self._submitted = False
        self._interrupted_early = False
        self._interrupts = 0
        self._first_interrupt_s = 0.0
        self._reminder: asyncio.TimerHandle | None = None

    @property
    def news(self) -> dict[str, Any]:
        """As in its result, so far."""
        return self._result.news

    def take_event(self, message: Message) -> bool:
        """Whether it is an event of this cell. On the reader thread; waits while the kernel is far behind.

        Once the outcome is known it never waits: the main thread may wait for a reply that only this thread can read.
        """
        if message.get("execution_id") != self._execution_id:
            return False
        while self._taken - self._handled >= EVENTS_WAITING_MAX and not self._is_closed():
            time.sleep(WAIT_FOR_ROOM_S)
        with self._hand_over_lock:
            if self._handed_over or len(self._waiting) >= EVENTS_BEHIND_MAX:
                return False
            self._taken += 1
            self._waiting.append(message)
            number = message.get("n")
            self._heard = max(self._heard, number) if type(number) is int else self._heard
        self._loop.call_soon_threadsafe(self._arrived.set)
        return True

    def _end(self, _done: object) -> None:
        self._waiting.append(None)
        self._arrived.set()

    async def _next(self) -> Message | None:
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()
        event = self._waiting.popleft()
        self._handled += 1
        return event

    async def run(self) -> GpuCellResult:
        """The result. Errors of the system are in it, never raised."""
        result = self._result
        try:
            body = await self._carried()
            result.saved = fields.mapping(body, "saved")
        except LooseLeafError as error:
            result.error = error
        finally:
            self._closed = True
            self._stop_asking()
            self._forget_reminder()
            for waiting in list(self._comms.values()):
                _resolve(waiting, False)
        return result

    async def _carried(self) -> Message:
        """What the daemon answers at the end, or the one that has come in its place while the cell ran."""
        type_, body = "submit", self._body
        while True:
            try:
                return await self._ask_daemon(type_, body)
            except LooseLeafError as error:
                if type_ == "resume" and not isinstance(error, Unavailable) and error.reason != NOT_STARTED:
                    text = "the daemon that was started anew cannot follow this cell; whether it finished is not known"
                    raise Unavailable("HOST_LOST", text) from error
                # Before its lease nobody says which host may have it: only the store's head tells.
                if error.reason != "PEER_CLOSED" or self._rejoin is None or not HOST_NEWS & self._result.news.keys():
                    raise
                self._link = await self._rejoin(error)
            lease = self._result.news.get("lease", {})
            type_ = "resume"
            body = {
                "execution_id": self._execution_id, "host_id": fields.text(lease, "host_id"),
                "lease_id": fields.text(lease, "lease_id"), "heard": self._heard,
            }  # fmt: skip

    async def _ask_daemon(self, type_: str, body: Message) -> Message:
        future = asyncio.wrap_future(self._link.request_future(type_, body))
        future.add_done_callback(self._end)
        self._submitted = True
        if self._interrupted_early:
            self.interrupt()
        self._tell_again()
        while (event := await self._next()) is not None:
            self._handle(event)
        answer, _fds = future.result()
        return answer

    def _tell_again(self) -> None:
        if self._last_answer is not None:
            # The worker drops it if it has had it.
            self._tell("input_reply", self._last_answer)
        if (interrupt := self._unsent_interrupt) is not None:
            self._unsent_interrupt = None
            self._tell("interrupt", interrupt)

    def rest(self) -> list[Message]:
        """Events that came behind the cell's outcome: of what it left running. It takes no more of them."""
        with self._hand_over_lock:
            self._handed_over = True
            rest = [event for event in self._waiting if event is not None]
            self._waiting.clear()
            return rest

    def _handle(self, event: Message) -> None:
        kind = event.get("kind")
        if kind == "output":
            self._publish(event)
        elif kind == "input_request":
            self._stop_asking()
            self._last_answer = None
            self._question = self._loop.create_task(self._answer_input(event))
        elif kind == "ended":
            self._stop_asking()
            self._forget_reminder()
            self._result.reply = fields.mapping(event, "reply")
        elif kind == "comm_done":
            if (future := self._comms.pop(fields.text(event, "origin", ""), None)) is not None:
                _resolve(future, not fields.boolean(event, "late", False))
        elif kind in NEWS:
            self._result.news[str(kind)] = {
                key: value for key, value in event.items() if key not in ("t", "id", "kind", "execution_id")
            }
            if kind == "stage" and event.get("stage") == RUNNING:
                self._begin()

    def _begin(self) -> None:
        self._publisher.line.end()
        if note := self._note:
            self._note = ""
            publish_output(self._publisher, {"type": "stream", "name": "stderr", "text": note})

    def _publish(self, event: Message) -> None:
        try:
            message = fields.mapping(event, "message")
            if message.get("type") == "stream":
                message = {**message, "text": message.get("text", "") + self._more_of(message)}
            publish_output(self._publisher.of(message.get("origin")), message)
        except InvalidArgument as error:
            log.warning("output_dropped %s", error)
        except Exception as error:
            # The cell runs on and will commit: it must be followed to its end. The text may hold values.
            log.error("output_dropped error=%s", type(error).__name__)

    def _more_of(self, first: Mapping[str, Any]) -> str:
        """The text of the messages of the same stream that wait behind: front ends lose messages that come too fast."""
        texts: list[str] = []
        chars = 0
        while self._waiting and chars < STREAM_CHARS_MAX:
            event = self._waiting[0]
            message = event.get("message") if event is not None and event.get("kind") == "output" else None
            if not isinstance(message, dict) or any(message.get(key) != first.get(key) for key in STREAM_KEYS):
                break
            self._waiting.popleft()
            self._handled += 1
            texts.append(str(message.get("text", "")))
            chars += len(texts[-1])
        return "".join(texts)

    async def _answer_input(self, event: Message) -> None:
        prompt, password = fields.text(event, "prompt", ""), fields.boolean(event, "password", False)
        question = fields.integer(event, "question", 0)
        answer: dict[str, Any] = {
            "execution_id": self._execution_id, "value": "", "refused": True, "question": question,
        }  # fmt: skip
        if self._ask is not None:
            try:
                answer.update(value=await self._ask(prompt, password), refused=False)
            except InputRefused:
                log.info("input_refused")
            except Exception:
                # Without an answer the cell would wait for ever.
                log.exception("question_failed")
        self._last_answer = answer
        self._tell("input_reply", answer)

    def _stop_asking(self) -> None:
        if self._question is not None:
            self._question.cancel()
            self._question = None

    def send_comm(self, origin: str, message: Mapping[str, Any]) -> Future[bool]:
        """Hands the worker a comm message of the front end: whether it has dealt with it. From any thread."""
        future: Future[bool] = Future()
        if self._closed or not self._submitted or len(self._comms) >= COMMS_WAITING_MAX:
            future.set_result(False)
            return future
        self._comms[origin] = future
        self._tell("comm", {"execution_id": self._execution_id, "origin": origin, "message": dict(message)})
        if self._is_closed():
            _resolve(future, False)
        return future

    def _is_closed(self) -> bool:
        # Another thread closes it.
        return self._closed

    def interrupt(self) -> None:
        """From any thread: KeyboardInterrupt in the cell; when that does not help, the end of its worker."""
        self._interrupted_early = not self._submitted
        if not self._submitted:
            return
        now_s = time.monotonic()
        self._first_interrupt_s = self._first_interrupt_s or now_s
        waited_long = self._interrupts > 0 and now_s - self._first_interrupt_s >= INTERRUPT_GRACE_S
        kill = self._interrupts >= INTERRUPTS_BEFORE_KILL or waited_long
        self._interrupts += 1
        if self._interrupts == 1:
            self._loop.call_soon_threadsafe(self._remind_later)
        body = {"execution_id": self._execution_id, "kill": kill}
        if self._link.error is not None:
            # The last one is the strongest.
            self._unsent_interrupt = body
        self._tell("interrupt", body)

    @property
    def impatient(self) -> bool:
        """The person has pressed stop so often that nothing is waited for any more."""
        return self._interrupts > INTERRUPTS_BEFORE_KILL

    def _remind_later(self) -> None:
        if not self._closed and not self._result.reply:
            self._reminder = self._loop.call_later(INTERRUPT_GRACE_S, self._remind)

    def _remind(self) -> None:
        text = STILL_RUNS.format(seconds=INTERRUPT_GRACE_S)
        publish_output(self._publisher, {"type": "stream", "name": "stderr", "text": text})

    def _forget_reminder(self) -> None:
        if self._reminder is not None:
            self._reminder.cancel()
            self._reminder = None

    def _tell(self, type_: str, body: Message) -> None:
        """Sends a request whose reply nobody waits for: the cell's end may be quicker than it."""
        try:
            self._link.request_future(type_, body).add_done_callback(_log_refusal)
        except LooseLeafError as error:
            log.info("request_not_sent type=%s %s", type_, error)


def _resolve(future: Future[bool], result: bool) -> None:
    try:
        future.set_result(result)
    except InvalidStateError:
        return  # whoever waits was cancelled, or told by two threads at the cell's end


def _log_refusal(future: Future[Any]) -> None:
    if (error := future.exception()) is not None:
        log.info("request_refused %s", error)
