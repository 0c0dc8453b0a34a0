"""Widgets that a worker made, as the kernel's front end sees them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from comm.base_comm import BaseComm

# (message type, content, metadata, buffers)
Publish = Callable[[str, dict[str, Any], dict[str, Any], list[bytes]], None]

WORKER_COMMS_MAX: Final = 1000


class WorkerComm(BaseComm):
    """Stands in the kernel's comm manager for a comm of a worker, so that the front end's messages find something.

    It shows what the worker last said (a page that is reloaded asks for it) and takes no changes: the code behind it
    went with its worker.
    """

    def __init__(self, comm_id: str, target_name: str, data: Mapping[str, Any], publish: Publish) -> None:
        self.state = _state_of(data)
        self._publish = publish
        # Opened by the worker already: nothing is announced here.
        super().__init__(target_name=target_name, comm_id=comm_id, data=None, primary=False)

    def publish_msg(
        self,
        msg_type: str,
        data: dict[str, Any] | None = None,
        metadata: dict[str, Any] | None = None,
        buffers: list[bytes] | None = None,
        **keys: Any,
    ) -> None:
        """Sends as the kernel."""
        self._publish(msg_type, {"comm_id": self.comm_id, "data": data or {}, **keys}, metadata or {}, buffers or [])

    def gone(self) -> None:
        """The worker closed it and the front end knows: nothing is left to announce."""
        self._closed = True

    def update(self, data: Mapping[str, Any]) -> None:
        """The worker changed the widget."""
        if data.get("method") == "update":
            self.state.update(_state_of(data))


class WorkerComms:
    """Follows the comm messages of workers. `comm_manager`: the kernel's; `publish` sends on iopub."""

    def __init__(self, comm_manager: Any, publish: Publish) -> None:
        self._manager = comm_manager
        self._publish = publish
        self._comms: dict[str, WorkerComm] = {}

    def follow(self, message: Mapping[str, Any]) -> None:
        """One comm message of a worker, before it is published."""
        comm_id = str(message.get("comm_id", ""))
        data = message.get("data") if isinstance(message.get("data"), dict) else {}
        assert isinstance(data, dict)
        if message["type"] == "comm_open":
            self._open(comm_id, str(message.get("target_name", "")), data)
        elif message["type"] == "comm_msg" and comm_id in self._comms:
            self._comms[comm_id].update(data)
        elif message["type"] == "comm_close":
            self._forget(comm_id)

    def _open(self, comm_id: str, target_name: str, data: dict[str, Any]) -> None:
        if len(self._comms) >= WORKER_COMMS_MAX:
            self._forget(next(iter(self._comms)))
        comm = WorkerComm(comm_id, target_name, data, self._publish)
        comm.on_msg(lambda message: _answer(comm, message))
        self._comms[comm_id] = comm
        self._manager.register_comm(comm)

    def _forget(self, comm_id: str) -> None:
        comm = self._comms.pop(comm_id, None)
        if comm is not None:
            comm.gone()
            self._manager.unregister_comm(comm)


def _state_of(data: Mapping[str, Any]) -> dict[str, Any]:
    # Comms that are no widgets say what they like under this name.
    state = data.get("state")
    return dict(state) if isinstance(state, dict) else {}


def _answer(comm: WorkerComm, message: Mapping[str, Any]) -> None:
    data = message.get("content", {}).get("data") or {}
    if data.get("method") == "request_state":
        comm.send({"method": "update", "state": comm.state, "buffer_paths": []})
