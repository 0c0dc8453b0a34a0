"""Plays one scenario on a kernel and writes down what the front end hears, with ids replaced by what they stand for."""

from __future__ import annotations

import queue
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIMIT_S = 30.0
GPU = {"looseleaf": {"device": "gpu"}}
_MEMORY = re.compile(r"0x[0-9a-f]{6,}")
_PIDS = re.compile(r"(?<![0-9a-zA-Z])\d{5,}\b|(?<=ipykernel_)\d+")
_RATES = re.compile(r"[\d.?]+\s*it/s")

# (type, the request that it belongs to, content)
Heard = tuple[str, str, Any]


@dataclass
class Play:
    """Sends requests to one kernel and gathers its iopub messages.

    `gates`: a folder in which `open_gate(name)` makes the file that `gate(name)` of a cell waits for.
    """

    client: Any
    gates: Path
    parents: dict[str, str] = field(default_factory=dict)
    comms: dict[str, str] = field(default_factory=dict)
    heard: list[Heard] = field(default_factory=list)
    replies: dict[str, dict[str, Any]] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)
    # Cells that this kernel ran before.
    count: int = 0

    def cell(self, name: str, source: str, *, gpu: bool = False, allow_stdin: bool = False) -> None:
        """Sends a cell that is called `name` from here on."""
        content = {
            "code": source, "silent": False, "store_history": True, "user_expressions": {}, "allow_stdin": allow_stdin,
            "stop_on_error": False,
        }  # fmt: skip
        self._send(name, "execute_request", content, {"cellId": name, **(GPU if gpu else {})})

    def run(self, name: str, source: str, *, gpu: bool = False, answers: tuple[str, ...] = ()) -> None:
        """Sends a cell and waits for its end; answers its questions in turn."""
        self.cell(name, source, gpu=gpu, allow_stdin=bool(answers))
        for answer in answers:
            self.client.get_stdin_msg(timeout=LIMIT_S)
            self.client.input(answer)
        self.ended(name)

    def comm(self, name: str, comm: str, data: dict[str, Any], buffers: list[bytes] | None = None) -> None:
        """Says something to the comm that the page knows as `comm`."""
        content = {"comm_id": self.comm_id(comm), "data": data}
        self._send(name, "comm_msg", content, {}, buffers)

    def update(self, name: str, comm: str, **state: Any) -> None:
        """The person moves a widget."""
        self.comm(name, comm, {"method": "update", "state": state, "buffer_paths": []})

    def open_comm(self, name: str, comm: str, target: str, data: dict[str, Any]) -> None:
        """The page opens a comm."""
        self.comms[f"page-{comm}"] = comm
        content = {"comm_id": f"page-{comm}", "target_name": target, "data": data}
        self._send(name, "comm_open", content, {"version": "1.0.0"})

    def comm_id(self, comm: str) -> str:
        """The id of a comm by its name here."""
        return next(found for found, known in self.comms.items() if known == comm)

    def _send(self, name: str, kind: str, content: Any, metadata: Any, buffers: list[bytes] | None = None) -> None:
        message = self.client.session.msg(kind, content, metadata=metadata)
        self.parents[message["header"]["msg_id"]] = name
        self.client.session.send(self.client.shell_channel.socket, message, buffers=buffers)

    def open_gate(self, name: str) -> None:
        """Lets the code that waits for it go on."""
        (self.gates / name).touch()

    def ended(self, name: str) -> None:
        """Waits for a cell's reply and its idle status."""
        self.until(lambda: name in self.idle)
        while name not in self.replies:
            reply = self.client.get_shell_msg(timeout=LIMIT_S)
            self.replies[self._parent(reply)] = reply["content"]

    def text(self, name: str, text: str) -> None:
        """Waits until this text was heard under this request."""
        self.until(lambda: text in "".join(
            content["text"] for kind, parent, content in self.heard if kind == "stream" and parent == name
        ))  # fmt: skip

    def until(self, done: Callable[[], bool]) -> None:
        """Listens until `done`."""
        limit_s = time.monotonic() + LIMIT_S
        while not done():
            shown = [message for message in self.heard if message[0] != "comm_open"]
            assert time.monotonic() < limit_s, f"nothing more came; heard: {shown}"
            try:
                self._hear(self.client.get_iopub_msg(timeout=0.1))
            except queue.Empty:
                continue

    def _parent(self, message: dict[str, Any]) -> str:
        return self.parents.get(message["parent_header"].get("msg_id", ""), "?")

    def _hear(self, message: dict[str, Any]) -> None:
        kind, parent, content = message["msg_type"], self._parent(message), message["content"]
        if kind == "status":
            if content["execution_state"] == "idle":
                self.idle.add(parent)
            return
        if kind == "execute_input" or parent == "?":
            return
        if kind == "comm_open":
            self.comms[content["comm_id"]] = f"{content['data'].get('state', {}).get('_model_name')}-{len(self.comms)}"
        if content.get("execution_count") is not None:
            content["execution_count"] -= self.count
        content = self._plain({**content, **({"buffers": [bytes(b) for b in message["buffers"]]}
                                             if message.get("buffers") else {})})  # fmt: skip
        if kind == "stream" and self.heard and self.heard[-1][:2] == (kind, parent):
            last = self.heard[-1][2]
            if last["name"] == content["name"]:
                last["text"] += content["text"]
                return
        self.heard.append((kind, parent, content))

    def _plain(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {self._plain(key): self._plain(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [self._plain(item) for item in value]
        if isinstance(value, str):
            for found, known in self.comms.items():
                value = value.replace(found, known)
            return _RATES.sub("N it/s", _PIDS.sub("N", _MEMORY.sub("0xN", value)))
        return value
