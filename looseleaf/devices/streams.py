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


class StreamRegistry:
    """The current stream of each thread and device."""

    def __init__(self, gpus: VirtualGpus) -> None:
        self.gpus = gpus
        self._local = threading.local()

    def default(self, device: Any = None) -> Stream:
        """Stream 0 of a device."""
        return Stream(self._index(device), stream_id=0)

    def current(self, device: Any = None) -> Stream:
        """What `set` chose for the device in this thread."""
        index = self._index(device)
        chosen: dict[int, Stream] = getattr(self._local, "streams", {})
        return chosen.get(index) or Stream(index, stream_id=0)

    def set(self, stream: Stream | None) -> None:
        """Make it current on its device and make its device current; None changes nothing."""
        if stream is None:
            return
        if not hasattr(self._local, "streams"):
            self._local.streams = {}
        self._local.streams[stream.device.index] = stream
        self.gpus.current = stream.device.index

    def classes(self) -> dict[str, Any]:
        """`Stream`, `ExternalStream` and `Event` for `torch.cuda`; making one uses the device."""
        registry = self

        class BoundStream(Stream):
            def __init__(self, device: Any = None, priority: int = 0, **kwargs: Any) -> None:
                registry.gpus.touch()
                super().__init__(registry._index(device), priority=priority)

            def __enter__(self) -> Stream:
                self._before = registry.current(self.device)
                registry.set(self)
                return self

            def __exit__(self, *exc: object) -> None:
                registry.set(self._before)

        class BoundEvent(Event):
            def __init__(self, enable_timing: bool = False, *args: Any, **kwargs: Any) -> None:
                registry.gpus.touch()
                super().__init__(enable_timing)

        for name, cls in (("Stream", BoundStream), ("Event", BoundEvent)):
            cls.__name__ = cls.__qualname__ = name
            cls.__module__ = "torch.cuda.streams"
        return {"Stream": BoundStream, "ExternalStream": BoundStream, "Event": BoundEvent}

    def answers(self) -> dict[str, Callable[..., Any]]:
        """The functions of `torch.cuda` about streams."""
        return {
            "current_stream": self.current, "default_stream": self.default, "set_stream": self.set,
            "get_stream_from_external": lambda data_ptr, device=None: self.default(device),
        }

    def _index(self, device: Any) -> int:
        return self.gpus.current if device is None else requested(self.gpus, device)


class Stream:
    """A queue whose work is always done."""

    def __init__(self, index: int, priority: int = 0, stream_id: int | None = None) -> None:
        self.device = torch.device("cuda", index)
        self.device_index = index
        self.priority = priority
        self.stream_id = next(_stream_ids) if stream_id is None else stream_id
        self.cuda_stream = self.stream_id

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

    def record_event(self, event: Event | None = None) -> Event:
        """An event that happened now."""
        made = Event(enable_timing=True) if event is None else event
        made.record(self)
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device, self.stream_id) == (other.device, other.stream_id)

    def __hash__(self) -> int:
        return hash((self.device_index, self.stream_id))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


class Event:
    """A moment on the host's monotonic clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.enable_timing = enable_timing
        self._at_s: float | None = None

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
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self._at_s is None or end_event._at_s is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._at_s - self._at_s) * 1000.0
