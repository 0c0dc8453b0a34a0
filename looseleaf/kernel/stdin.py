"""`input()` of a cell that runs on a worker: asked on this kernel's stdin channel (Jupyter messaging)."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

import zmq

log = logging.getLogger("looseleaf.kernel")

POLL_INTERVAL_S: Final = 0.02
EOF: Final = "\x04"


class InputRefused(Exception):
    """The person or the front end gave no answer."""


async def ask_person(session: Any, socket: Any, ident: Any, parent: Any, prompt: str, password: bool) -> str:
    """The person's answer to `prompt`; cancelling gives the question up.

    Asks without blocking the event loop, so that interrupts, edits and the rest of the cell's outputs are served
    meanwhile. Raises InputRefused at the person's end-of-file.
    """
    # An answer to an earlier question that was given up must not count for this one.
    while socket.poll(0, zmq.POLLIN):
        socket.recv_multipart(zmq.NOBLOCK)
    asked = session.send(socket, "input_request", {"prompt": prompt, "password": password}, parent, ident=ident)
    while True:
        if not socket.poll(0, zmq.POLLIN):
            await asyncio.sleep(POLL_INTERVAL_S)
            continue
        try:
            _ident, reply = session.recv(socket, mode=zmq.NOBLOCK)
        except ValueError as error:
            # A message that is not signed with this kernel's key.
            log.warning("stdin_message_refused %s", error)
            continue
        if reply is None or reply["msg_type"] != "input_reply" or _answers_another(reply, asked):
            continue
        value = reply["content"].get("value")
        if not isinstance(value, str) or value == EOF:
            raise InputRefused
        return value


def _answers_another(reply: Any, asked: Any) -> bool:
    """Whether the front end says that its answer is to another question; some do not say, and answer the newest."""
    question = (reply.get("parent_header") or {}).get("msg_id")
    return question is not None and question != asked["header"]["msg_id"]
