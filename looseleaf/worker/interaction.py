"""`input()` and `getpass()` in a worker: a question to the person by way of the daemon."""

from __future__ import annotations

import builtins
import getpass
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

from IPython.core.error import StdinNotImplementedError

# (prompt, is_password, number of the question)
Ask = Callable[[str, bool, int], None]
_INTERRUPT_POLL_S = 0.1
# As ipykernel says it, of each.
_NOT_SUPPORTED = "{} was called, but this frontend does not support input requests."


class Interaction:
    """Asks by `ask` and waits for `answer`, which is called on another thread.

    Questions are numbered: the answer to one that was interrupted is on its way still and must not answer the next. A
    front end without input, a person who refuses and a forked child raise StdinNotImplementedError in the cell; an
    interrupt while waiting raises KeyboardInterrupt.
    """

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._answers: SimpleQueue[tuple[int, str, bool]] = SimpleQueue()
        self._number = 0
        self._allowed = False
        self._pid = os.getpid()

    def answer(self, number: int, value: str, refused: bool) -> None:
        """Takes the person's answer to question `number`; one that nobody waits for any more is dropped."""
        self._answers.put((number, value, refused))

    def _question(self, prompt: str, password: bool) -> str:
        refusal = _NOT_SUPPORTED.format("getpass" if password else "raw_input")
        if not self._allowed or os.getpid() != self._pid:
            raise StdinNotImplementedError(refusal)
        self._number = number = self._number + 1
        try:
            self._ask(prompt, password, number)
            value, refused = self._wait(number)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Interrupted by user") from None
        if refused:
            raise StdinNotImplementedError(refusal)
        return value

    def _wait(self, number: int) -> tuple[str, bool]:
        # An interrupt that comes just before the wait begins does not end it; Python sees it at the next turn.
        while True:
            try:
                answered, value, refused = self._answers.get(timeout=_INTERRUPT_POLL_S)
            except Empty:
                continue
            if answered == number:
                return value, refused

    def _input(self, prompt: object = "") -> str:
        return self._question(str(prompt), False)

    def _getpass(self, prompt: str = "", stream: Any = None, *, echo_char: str | None = None) -> str:
        return self._question(prompt, True)

    @contextmanager
    def installed(self, allow_stdin: bool) -> Iterator[None]:
        """Inside, `input` and `getpass.getpass` ask the person, or raise if `allow_stdin` is False."""
        saved_input, saved_getpass = builtins.input, getpass.getpass
        self._allowed = allow_stdin
        builtins.input, getpass.getpass = self._input, self._getpass
        try:
            yield
        finally:
            builtins.input, getpass.getpass = saved_input, saved_getpass
            self._allowed = False
