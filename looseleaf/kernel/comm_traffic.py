"""What the front end says to comms: to the cell that runs elsewhere, to widgets here, to widgets whose worker is gone.

As on an ordinary kernel, callbacks run when the cell is over or awaits. Those of this process wait for the end of a
GPU cell, because they may write state, and the right to commit is with the cell (design §3: write token).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

import comm

from looseleaf.errors import LooseLeafError
from looseleaf.kernel.before_cell import load_names
from looseleaf.kernel.callback_needs import stubs_for_callbacks, stubs_of_library
from looseleaf.kernel.comms import WorkerComm, WorkerComms
from looseleaf.kernel.forwarder import Publishers, RequestPublisher, error_text, publish_output
from looseleaf.kernel.gpu_run import GpuRun
from looseleaf.kernel.session import KernelSession
from looseleaf.kernel.widget_state import split_state

log = logging.getLogger("looseleaf.kernel")

# Messages that wait for the end of a GPU cell. Front ends wait for each widget's last message before the next one.
HELD_MAX: Final = 1000
WIDGET_LIBRARY: Final = "ipywidgets"
WIDGET_TARGET: Final = "jupyter.widget"
CONTROL_TARGET: Final = "jupyter.widget.control"

StockHandler = Callable[[Any, Any, Any], Any]
# Calls on the main thread and waits.
OnMain = Callable[[Callable[[], None]], "Future[None]"]


@dataclass(frozen=True)
class CommPlaces:
    """What the traffic goes between.

    `running()`: the GPU cell that runs, if one does; `status` publishes one; `changed`: state may have been written.
    """

    session: KernelSession
    worker_comms: WorkerComms
    publishers: Publishers
    running: Callable[[], GpuRun | None]
    status: Callable[[str, Any], None]
    on_main: OnMain
    changed: Callable[[], None]


class CommTraffic:
    """Serves comm messages of the front end; on the thread of the shell or subshell that they came to."""

    def __init__(self, places: CommPlaces) -> None:
        self._places = places
        self._held = 0
        self._told: weakref.WeakSet[RequestPublisher] = weakref.WeakSet()

    def handler(self, kind: str, stock: StockHandler) -> Callable[[Any, Any, Any], Awaitable[None]]:
        """Serves messages of this kind in place of `stock`, the ordinary kernel's handler."""

        async def handle(stream: Any, ident: Any, message: Any) -> None:
            try:
                await self.serve(kind, stock, stream, ident, message)
            finally:
                self._places.changed()

        return handle

    async def serve(self, kind: str, stock: StockHandler, stream: Any, ident: Any, message: Any) -> None:
        """One message; `stock` is the ordinary kernel's handler of its kind."""
        run = self._places.running()
        if run is None:
            await self._serve_here(kind, stock, stream, ident, message)
            return
        served = kind != "comm_open" and await self._serve_there(run, kind, message)
        if served:
            await _over(run)
        elif not await self._hold(message):
            return
        # On the main thread no status was sent: the cell was busy. It belongs to the message all the same.
        on_main = threading.current_thread() is threading.main_thread()
        if on_main:
            self._places.status("busy", message)
        try:
            if not served:
                await self._serve_here(kind, stock, stream, ident, message)
        finally:
            if on_main:
                self._places.status("idle", message)

    async def _serve_there(self, run: GpuRun, kind: str, message: Any) -> bool:
        """Whether the cell's worker has such a comm and has dealt with the message."""
        origin = f"comm-{message['header']['msg_id']}"
        self._places.publishers.request(message).known_as(origin)
        content, buffers = message["content"], message.get("buffers") or ()
        told = {
            "type": kind, "comm_id": str(content.get("comm_id", "")), "data": content.get("data") or {},
            "metadata": message.get("metadata") or {}, "buffers": [bytes(buffer) for buffer in buffers],
        }  # fmt: skip
        return await asyncio.wrap_future(run.send_comm(origin, told))

    async def _hold(self, message: Any) -> bool:
        """Waits until no GPU cell runs; False if too many messages wait already: this one is dropped, and says so."""
        if self._held >= HELD_MAX:
            log.error("comm_message_dropped held=%s", self._held)
            self._say(message, f"{HELD_MAX} changes of widgets wait for the running GPU cell; this one was dropped")
            return False
        self._held += 1
        try:
            while (run := self._places.running()) is not None:
                await _over(run)
        finally:
            self._held -= 1
        return True

    async def _serve_here(self, kind: str, stock: StockHandler, stream: Any, ident: Any, message: Any) -> None:
        content = message["content"]
        comm_id = str(content.get("comm_id", ""))
        data = content.get("data") if isinstance(content.get("data"), dict) else {}
        if kind == "comm_open":
            if content.get("target_name") == CONTROL_TARGET:
                self._open_control(comm_id)
            else:
                stock(stream, ident, message)
            return
        shadow = self._places.worker_comms.get(comm_id)
        try:
            if shadow is None or data.get("method") != "request_state":
                await self._load(stubs_of_library(self._places.session, WIDGET_LIBRARY))
                shadow = self._places.worker_comms.get(comm_id)
            if shadow is None:
                found = comm.get_comm_manager().comms.get(comm_id)
                callbacks = [getattr(found, name, None) for name in ("_msg_callback", "_close_callback")]
                await self._load(stubs_for_callbacks(self._places.session, callbacks))
        except LooseLeafError as error:
            self._say(message, f"what this widget calls was not run: {error_text(error)}")
            return
        if shadow is None:
            stock(stream, ident, message)
        elif kind == "comm_close":
            self._places.worker_comms.forget(comm_id)
        else:
            self._answer(shadow, data)

    def _say(self, message: Any, text: str) -> None:
        output = {"type": "stream", "name": "stderr", "text": f"LooseLeaf: {text}\n"}
        publish_output(self._places.publishers.request(message), output)

    async def _load(self, names: list[str]) -> None:
        if not names:
            return
        if threading.current_thread() is threading.main_thread():
            load_names(self._places.session, names)
        else:
            await asyncio.wrap_future(self._places.on_main(lambda: load_names(self._places.session, names)))

    def _answer(self, shadow: WorkerComm, data: Mapping[str, Any]) -> None:
        text = self._places.worker_comms.answer(shadow, data)
        if text and shadow.publisher not in self._told:
            # Once for each cell, where its widgets are shown.
            self._told.add(shadow.publisher)
            publish_output(shadow.publisher, {"type": "stream", "name": "stderr", "text": text})

    def _open_control(self, comm_id: str) -> None:
        """A page that is reloaded asks for every widget at once: those of this process and those of workers."""
        control = comm.create_comm(comm_id=comm_id, target_name=CONTROL_TARGET, primary=False)
        comm.get_comm_manager().register_comm(control)
        control.on_msg(lambda message: self._answer_control(control, message))

    def _answer_control(self, control: Any, message: Any) -> None:
        if (message["content"].get("data") or {}).get("method") != "request_states":
            return
        states = {shadow.comm_id: shadow.state for shadow in self._places.worker_comms.all()
                  if shadow.target_name == WIDGET_TARGET}  # fmt: skip
        library = sys.modules.get("ipywidgets.widgets.widget")
        for comm_id, widget in list(getattr(library, "_instances", {}).items()):
            states[comm_id] = widget.get_state()
        models = {comm_id: _model(state) for comm_id, state in states.items()}
        plain, paths, buffers = split_state(models)
        control.send({"method": "update_states", "states": plain, "buffer_paths": paths}, buffers=buffers)


def _model(state: Mapping[str, Any]) -> dict[str, Any]:
    named = {key: state.get(f"_{key}") for key in ("model_name", "model_module", "model_module_version")}
    return {**named, "state": dict(state)}


async def _over(run: GpuRun) -> None:
    await asyncio.wrap_future(run.over)
