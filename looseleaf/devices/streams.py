"""`torch.cuda.Stream` and `Event` on virtual devices: everything is done when the call returns, so they only keep time.

Imported only after torch.
"""

from __future__ import annotations

import importlib
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any

from looseleaf.devices.requests import requested
from looseleaf.devices.virtual import VirtualGpus

torch: Any = importlib.import_module("torch")
_stream_ids = count(1)
_CUDA_TYPE = 1  # torch's number of this kind of device
_new_stream = torch.Stream.__new__


class StreamRegistry:
    """The current stream of each thread and device."""

    def __init__(self, gpus: VirtualGpus) -> None:
        self.gpus = gpus
        self._local = threading.local()
        self._stream_type, self._event_type = self._bound()

    def default(self, device: Any = None) -> Stream:
        """Stream 0 of a device."""
        return self._stream_type(self.index(device), stream_id=0)

    def current(self, device: Any = None) -> Stream:
        """What `set` chose for the device in this thread."""
        index = self.index(device)
        chosen: dict[int, Stream] = getattr(self._local, "streams", {})
        return chosen.get(index) or self._stream_type(index, stream_id=0)

    def set(self, stream: Stream | None) -> None:
        """Make it current on its device and make its device current; None changes nothing."""
        if stream is None:
            return
        if not hasattr(self._local, "streams"):
            self._local.streams = {}
        self._local.streams[stream.device.index] = stream
        self.gpus.current = stream.device.index

    def index(self, device: Any) -> int:
        """The device that a function of streams means."""
        return self.gpus.current if device is None else requested(self.gpus, device)

    def _bound(self) -> tuple[type[Stream], type[Event]]:
        registry = self

        class BoundStream(Stream):
            def __new__(cls, device: Any = None, priority: int = 0, **kwargs: Any) -> Any:
                index = registry.index(device)
                if "stream_id" not in kwargs:
                    registry.gpus.touch()
                return Stream.made(cls, index, priority, kwargs.get("stream_id"))

            def __enter__(self) -> Stream:
                self._before = registry.current(self.device)
                registry.set(self)
                return self

            def __exit__(self, *exc: object) -> None:
                registry.set(self._before)

            def record_event(self, event: Event | None = None) -> Event:
                made = registry._event_type() if event is None else event
                made.record(self)
                return made

        class BoundEvent(Event):
            def __new__(cls, *args: Any, **kwargs: Any) -> Any:
                registry.gpus.touch()
                return super().__new__(cls, *args, **kwargs)

        for name, kind in (("Stream", BoundStream), ("Event", BoundEvent)):
            kind.__name__ = kind.__qualname__ = name
            kind.__module__ = "torch.cuda.streams"
        return BoundStream, BoundEvent

    def classes(self) -> dict[str, Any]:
        """`Stream`, `ExternalStream` and `Event` for `torch.cuda`; making one uses the device."""
        return {"Stream": self._stream_type, "ExternalStream": self._stream_type, "Event": self._event_type}

    def generic_classes(self) -> dict[str, Any]:
        """`Stream` and `Event` for `torch` itself, which serve any kind of device and mean CUDA if none is named."""
        return {
            "Stream": generic(torch.Stream, self._stream_type),
            "Event": generic(torch.Event, lambda device, *args, **kwargs: self._event_type(*args, **kwargs)),
        }

    def answers(self) -> dict[str, Callable[..., Any]]:
        """The functions of `torch.cuda` about streams."""
        return {
            "current_stream": self.current, "default_stream": self.default, "set_stream": self.set,
            "get_stream_from_external": lambda data_ptr, device=None: self.default(device),
        }


def generic(real: Any, make: Callable[..., Any]) -> Any:
    """A class in the place of `real` whose CUDA objects `make(device, ...)` makes, and that knows all of `real`'s."""

    class Kind(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real)

        def __subclasscheck__(cls, subclass: Any) -> bool:
            return issubclass(subclass, real)

        def __call__(cls, device: Any = None, *args: Any, **kwargs: Any) -> Any:
            if device is not None and not isinstance(device, int) and torch.device(device).type != "cuda":
                return real(device, *args, **kwargs)
            return make(device, *args, **kwargs)

    return Kind(real.__name__, (), {"__module__": "torch", "__doc__": real.__doc__})


class Stream(torch.Stream):  # type: ignore[misc]
    """A queue whose work is always done."""

    priority: int

    @staticmethod
    def made(kind: Any, index: int, priority: int, stream_id: int | None) -> Any:
        """A stream of type `kind` on a virtual device; without an id, a new one."""
        number = next(_stream_ids) if stream_id is None else stream_id
        made = _new_stream(kind, stream_id=number, device_index=index, device_type=_CUDA_TYPE)
        made.priority = priority
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property
    def cuda_stream(self) -> int:
        """A number in the place of the driver's handle; 0 is the default stream's, as on CUDA."""
        return int(self.stream_id)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Least and greatest priority."""
        return (0, -5)

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def query(self) -> bool:
        """Always done."""
        return True

    def is_capturing(self) -> bool:
        """There are no graphs to capture."""
        return False

    def wait_stream(self, stream: Any) -> None:
        """The other one is done."""

    def wait_event(self, event: Any) -> None:
        """It has happened."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device, self.stream_id) == (other.device, other.stream_id)

    def __hash__(self) -> int:
        return hash((self.device_index, self.stream_id))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event(torch.Event):  # type: ignore[misc]
    """A moment on the host's monotonic clock."""

    _timed: bool
    _at_s: float | None

    def __new__(cls, enable_timing: bool = False, *args: Any, **kwargs: Any) -> Any:
        made = super().__new__(cls, "cpu")
        made._timed, made._at_s = bool(enable_timing), None
        return made

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    @property
    def device(self) -> Any:
        """A virtual device; events of all of them keep the same time."""
        return torch.device("cuda", 0)

    def record(self, stream: Any = None) -> None:
        """It happens now: all earlier work is done."""
        self._at_s = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """It has happened."""

    def query(self) -> bool:
        """Always done."""
        return True

    def synchronize(self) -> None:
        """Nothing to wait for."""

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`; ValueError if either was not recorded or keeps no time."""
        if not (self._timed and end_event._timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at_s is None or end_event._at_s is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at_s - self._at_s) * 1000.0

    def __repr__(self) -> str:
        return "<torch.cuda.Event uninitialized>" if self._at_s is None else f"<torch.cuda.Event {id(self):#x}>"
