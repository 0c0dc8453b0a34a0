"""Widgets that a worker made, as the kernel's front end finds them when the worker is gone."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from comm.base_comm import BaseComm

from looseleaf.kernel.forwarder import RequestPublisher
from looseleaf.kernel.widget_state import join_state, size_bytes, split_state
from looseleaf.units import MIB

# (message type, content, metadata, buffers)
Publish = Callable[[str, dict[str, Any], dict[str, Any], list[bytes]], None]

# A notebook with more live widgets of workers loses the state of the oldest: a page that is reloaded shows them empty.
SHADOWS_MAX: Final = 1000
SHADOW_BYTES_MAX: Final = 64 * MIB
_READ_ONLY: Final = (
    "LooseLeaf: this widget belongs to a cell that ran on a GPU worker. Its Python side ended with that cell and was "
    "not kept, because no variable holds the widget, so using it changes nothing any more. Assign it to a variable, or "
    "make it in a CPU cell (%%cpu), to keep its callbacks.\n"
)


class WorkerComm(BaseComm):
    """Stands in the kernel's comm manager for a comm of a worker, so that the front end's messages find something.

    It shows what the worker last said (a page that is reloaded asks for it). A change by the front end is taken back:
    the code behind it went with its worker.
    """

    def __init__(self, comm_id: str, target_name: str, publisher: RequestPublisher, publish: Publish) -> None:
        self.state: dict[str, Any] = {}
        self.size_bytes = 0
        # Of the cell that made it.
        self.publisher = publisher
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
        """Somebody else speaks for it, or the front end knows that it is closed: nothing is left to announce."""
        self._closed = True

    def update(self, data: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        """The worker said what its widget holds now."""
        self.state.update(join_state(data, buffers))
        self.size_bytes = size_bytes(self.state)

    def show(self, keys: Mapping[str, Any] | None = None) -> None:
        """Sends the state to the front end: all of it, or of these keys."""
        state = self.state if keys is None else {key: self.state[key] for key in keys if key in self.state}
        plain, paths, buffers = split_state(state)
        self.send({"method": "update", "state": plain, "buffer_paths": paths}, buffers=buffers)


class WorkerComms:
    """Follows the comm messages of workers. `comm_manager`: the kernel's; `publish` sends on iopub. Thread-safe."""

    def __init__(self, comm_manager: Any, publish: Publish) -> None:
        self._manager = comm_manager
        self._publish = publish
        self._comms: OrderedDict[str, WorkerComm] = OrderedDict()
        self._lock = threading.RLock()

    def follow(self, message: Mapping[str, Any], publisher: RequestPublisher) -> None:
        """One comm message of a worker, before it is published."""
        comm_id = str(message.get("comm_id", ""))
        found = message.get("data")
        data = found if isinstance(found, dict) else {}
        buffers = message.get("buffers") or []
        with self._lock:
            if message["type"] == "comm_open":
                self._open(comm_id, str(message.get("target_name", "")), publisher)
            elif message["type"] == "comm_close":
                self.forget(comm_id)
            comm = self._comms.get(comm_id)
            if comm is not None and (message["type"] == "comm_open" or data.get("method") in ("update", "echo_update")):
                comm.update(data, buffers)
                self._keep_limits(but=comm_id)

    def _open(self, comm_id: str, target_name: str, publisher: RequestPublisher) -> None:
        self.forget(comm_id)
        comm = WorkerComm(comm_id, target_name, publisher, self._publish)
        self._comms[comm_id] = comm
        self._manager.register_comm(comm)

    def _keep_limits(self, but: str) -> None:
        total = sum(comm.size_bytes for comm in self._comms.values())
        while len(self._comms) > SHADOWS_MAX or total > SHADOW_BYTES_MAX:
            oldest = next((comm_id for comm_id in self._comms if comm_id != but), None)
            if oldest is None:
                return
            total -= self._comms[oldest].size_bytes
            self.forget(oldest)

    def forget(self, comm_id: str) -> None:
        """Nothing stands for this comm any more; somebody else may."""
        with self._lock:
            comm = self._comms.pop(comm_id, None)
            if comm is not None:
                comm.gone()
                if self._manager.get_comm(comm_id) is comm:
                    self._manager.unregister_comm(comm)

    def get(self, comm_id: str) -> WorkerComm | None:
        """What stands for this comm, as long as the widget itself is not here."""
        with self._lock:
            comm = self._comms.get(comm_id)
            if comm is not None and self._manager.comms.get(comm_id) is not comm:
                # The widget came as a part of a variable, and its own comm took this one's place.
                self.forget(comm_id)
                return None
            return comm

    def all(self) -> list[WorkerComm]:
        """Everything that stands for a comm of a worker."""
        with self._lock:
            return [comm for comm_id in list(self._comms) if (comm := self.get(comm_id)) is not None]

    def answer(self, comm: WorkerComm, data: Mapping[str, Any]) -> str:
        """The front end said `data` to a widget whose code is gone; returns what the person must be told."""
        method = data.get("method")
        if method == "request_state":
            comm.show()
            return ""
        if method == "update":
            state = data.get("state")
            comm.show(state if isinstance(state, dict) else {})
        return _READ_ONLY
