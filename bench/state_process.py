"""A process that holds a session's state as a worker does, on a virtual GPU, and other ways to store the same bytes.

It is the product's own path: `StateTracker` over the worker protocol to a real daemon, its arena and a real store. The
references get the same tensors without the virtual device, in the same process, so that nothing of ours slows them.

`StateProcess` drives it from a benchmark: one call, one line of JSON each way.
"""

from __future__ import annotations

import argparse
import gc
import json
import mmap
import os
import pickle
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

VARIABLES = 20
TENSOR_BYTES = 4 << 20
POLL_S = 0.002
LIMIT_S = 120.0


class StateProcess:
    """Starts the process; its public methods are called by name. Use it with `with`."""

    def __init__(self, endpoint: Path, folder: Path, session: str = "") -> None:
        command = [sys.executable, __file__, str(endpoint), str(folder), session]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def call(self, method: str, *args: Any) -> Any:
        """The answer, plain values. Raises RuntimeError if the process failed; its stderr says why."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps([method, args]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"{method} ended the process that holds the state")
        return json.loads(answer)

    def task(self, method: str, *args: Any) -> Callable[[], Any]:
        """A task for `alternate`."""
        return lambda: self.call(method, *args)

    def __enter__(self) -> StateProcess:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._process.communicate(timeout=LIMIT_S)


class State:
    """A session of `VARIABLES` variables, each a list of tensors on cuda:0. Tasks return seconds by name."""

    def __init__(self, endpoint: Path, folder: Path, session: str) -> None:
        import torch

        from looseleaf import devices

        torch.set_num_threads(1)
        devices.install("worker", "emulated", 1)
        devices.attach([0])
        self._endpoint = endpoint
        self._folder = folder
        self.namespace: dict[str, Any] = {}
        self._connect(session)
        self._spare: Any = None
        self._shared = -1

    def _connect(self, session: str) -> None:
        """A connection as a kernel or worker has it, and a tracker that knows nothing yet."""
        from looseleaf.checkpoint.tracker import StateTracker
        from looseleaf.ids import Epoch, SessionId
        from looseleaf.protocol.channel import Channel
        from looseleaf.protocol.frames import PROTOCOL_VERSION
        from looseleaf.protocol.state_io import LinkStateIO
        from looseleaf.protocol.threaded import ThreadedLink

        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        sock.connect(str(self._endpoint))
        self._link = ThreadedLink(Channel(sock)).start()
        hello = {"v": PROTOCOL_VERSION, "role": "kernel", "session_id": session, "title": "bench", "pid": os.getpid()}
        welcome, _ = self._link.request("hello", hello, timeout_s=LIMIT_S)
        self.session = welcome["session_id"]
        self._io = LinkStateIO(self._link)
        self.tracker = StateTracker(
            self.namespace, self._io, session_id=SessionId(self.session), epoch=Epoch(welcome["epoch"]),
            hidden=lambda _name: False,
        )  # fmt: skip

    def close(self) -> None:
        """Ends the connection."""
        self._io.close()
        self._link.close()

    # -- making and changing ----------------------------------------------------------------------------

    def fill(self, size_mib: int, tensor_bytes: int = TENSOR_BYTES) -> dict[str, Any]:
        """Makes the state, of tensors of about that size but at least one a variable, and saves it once."""
        import torch

        each = max(1, round((size_mib << 20) / VARIABLES / tensor_bytes))
        elements = (size_mib << 20) // VARIABLES // each // 4
        for number in range(VARIABLES):
            self.namespace[f"v{number:02}"] = [torch.randn(elements).cuda() for _ in range(each)]
        self._save()
        return {"session": self.session, "bytes": sum(tensor.nbytes for tensor in self._tensors())}

    def _tensors(self, names: Iterable[str] | None = None) -> list[Any]:
        return [tensor for name in names or self.namespace for tensor in self.namespace[name]]

    def _change(self, fraction: float) -> int:
        """Other values in that share of all regions, evenly spread; of more than 0 at least one; returns bytes."""
        from looseleaf.units import REGION_BYTES

        step = REGION_BYTES // 4
        regions = [(tensor, start) for tensor in self._tensors() for start in range(0, tensor.numel(), step)]
        count = max(round(fraction * len(regions)), int(fraction > 0))
        changed_bytes = 0
        for number in range(count):
            tensor, start = regions[number * len(regions) // count]
            tensor[start : start + step].add_(1.0)
            changed_bytes += min(step, tensor.numel() - start) * tensor.element_size()
        return changed_bytes

    # -- saving -----------------------------------------------------------------------------------------

    def save(self, fraction: float) -> dict[str, float]:
        """Seconds until *staged*, and until *durable*, after a change of that share of the regions."""
        self._change(fraction)
        gc.collect()
        return self._save()

    def save_counted(self, fraction: float) -> dict[str, float]:
        """Seconds until *staged* after such a change; bytes of its dirty regions, and of all that left this process."""
        from looseleaf.checkpoint.manifest import encode_manifest
        from looseleaf.ids import new_execution_id

        dirty_bytes = self._change(fraction)
        gc.collect()
        began_s = time.perf_counter()
        report = self.tracker.save(new_execution_id())
        staged_s = time.perf_counter() - began_s
        moved = report.bytes_moved + len(encode_manifest(self.tracker.manifest))
        return {"staged": staged_s, "dirty_bytes": dirty_bytes, "moved_bytes": moved}

    def save_restored(self, fraction: float) -> dict[str, float]:
        """Seconds until *staged* of two saves of a state that was restored and read, each after such a change."""
        self._begin_again()
        names = _names(VARIABLES)
        self.tracker.restore(names)
        _read(self._views(names))
        return {save: self.save(fraction)["staged"] for save in ("first", "second")}

    def arena_memory(self) -> dict[str, int]:
        """Bytes of host arenas in this process's memory, as the system counts them (proc(5): smaps)."""
        found = dict.fromkeys(("Rss", "Pss", "Private_Dirty", "Anonymous"), 0)
        inside = False
        with open("/proc/self/smaps") as smaps:
            for line in smaps:
                key, _, value = line.partition(":")
                if "-" in key.split(" ", 1)[0]:
                    inside = "/memfd:looseleaf-arena" in line
                elif inside and key in found:
                    found[key] += int(value.split()[0]) << 10
        return found

    def _save(self) -> dict[str, float]:
        from looseleaf.ids import new_execution_id

        began_s = time.perf_counter()
        self.tracker.save(new_execution_id())
        staged_s = time.perf_counter() - began_s
        while self._io.manifest()[0]["durable_version"] < self.tracker.version:
            if time.perf_counter() - began_s > LIMIT_S:
                raise TimeoutError(f"version {self.tracker.version} did not become durable in {LIMIT_S} s")
            time.sleep(POLL_S)
        return {"staged": staged_s, "durable": time.perf_counter() - began_s}

    def torch_save(self, synced: bool) -> float:
        """Into a file beside the store's; `synced`: until it would survive a loss of power."""
        import torch

        path = self._folder / "state.pt"

        def write() -> None:
            torch.save(self.namespace, path)
            if synced:
                with open(path, "rb") as file:
                    os.fsync(file.fileno())

        return self._raw_s(write)

    def cloudpickle_dump(self) -> float:
        """Into a file, unsynced."""
        import cloudpickle

        def write() -> None:
            with open(self._folder / "state.pkl", "wb") as file:
                cloudpickle.dump(self.namespace, file)

        return self._raw_s(write)

    def memcpy(self, names: list[str] | None = None) -> float:
        """Into memory that is there already."""
        from looseleaf.dirty_tracker import copy_into

        sources = self._views(names)
        total = sum(len(source) for source in sources)
        if self._spare is None or len(self._spare) != total:
            self._spare = None
            self._spare = mmap.mmap(-1, total)
            self._spare.write(bytes(total))
        began_s, at = time.perf_counter(), 0
        for source in sources:
            copy_into(self._spare, at, source, 0, len(source))
            at += len(source)
        return time.perf_counter() - began_s

    def scan(self) -> float:
        """XXH3-128 of every region, by one thread: reads all, writes nothing."""
        sources = self._views()
        return _timed_s(lambda: _read(sources))

    def _views(self, names: Iterable[str] | None = None) -> list[memoryview]:
        from looseleaf import devices

        with devices.raw():
            return [memoryview(tensor.numpy()).cast("B") for tensor in self._tensors(names)]

    def _raw_s(self, work: Callable[[], Any]) -> float:
        from looseleaf import devices

        gc.collect()
        with devices.raw():
            return _timed_s(work)

    def requests(self, count: int) -> list[float]:
        """Seconds of each of `count` small requests, one after the other."""
        return [_timed_s(self._io.manifest) for _ in range(count)]

    # -- restoring --------------------------------------------------------------------------------------

    def make_files(self, count: int) -> int:
        """The first `count` variables as `torch_load` and the others read them; returns their bytes."""
        import cloudpickle
        import torch

        from looseleaf import devices

        self._begin_again()
        names = _names(count)
        self.tracker.restore(names)
        with devices.raw():
            chosen = {name: self.namespace[name] for name in names}
            torch.save(chosen, self._folder / f"{count}.pt")
            with open(self._folder / f"{count}.pkl", "wb") as file:
                cloudpickle.dump(chosen, file)
        self._write_shared(self._views(names))
        return sum(tensor.nbytes for tensor in self._tensors(names))

    def _write_shared(self, views: Iterable[memoryview]) -> None:
        if self._shared >= 0:
            os.close(self._shared)
        self._shared = os.memfd_create("bench")
        with open(self._shared, "wb", closefd=False) as file:
            file.writelines(views)

    def _begin_again(self) -> None:
        """As a new worker of the session."""
        self.namespace.clear()
        self.close()
        self._connect(self.session)
        gc.collect()

    def restore(self, count: int) -> dict[str, float]:
        """Seconds to all variables, to a preparation's end, from there to all variables, and to the last byte read."""
        self._begin_again()
        names = _names(count)
        began_s = time.perf_counter()
        # As a worker does: the version first, then what of it the cell needs.
        self.tracker.restore((), soon=names)
        opened_s = time.perf_counter() - began_s
        report = self.tracker.restore(names)
        mapped_s = time.perf_counter() - began_s
        assert sorted(report.restored) == names, report
        _read(self._views(names))
        return {
            "mapped": mapped_s, "prepared": opened_s, "attached": mapped_s - opened_s,
            "read": time.perf_counter() - began_s,
        }  # fmt: skip

    def map_closure(self, count: int) -> float:
        """Seconds of the calls that map all payloads of the first `count` variables, by a process that has mapped none.

        It is a part of what a preparation does, which fetches the version and its small objects first.
        """
        self._begin_again()
        self.tracker.restore(())
        payloads = self.tracker.manifest.payloads
        groups = [payloads[payload_id].regions for payload_id in self.tracker.manifest.closure(_names(count)).payloads]
        began_s = time.perf_counter()
        mapped = self._io.map_many(groups)
        taken_s = time.perf_counter() - began_s
        assert len(mapped) == len(groups)
        return taken_s

    def torch_load(self, count: int, mapped: bool) -> dict[str, float]:
        """Seconds to the return of `torch.load`, and to the last byte read."""
        import torch

        return self._load(lambda: torch.load(self._folder / f"{count}.pt", mmap=mapped))

    def cloudpickle_load(self, count: int) -> dict[str, float]:
        """As `torch_load`; what cloudpickle wrote is read by pickle."""

        def load() -> Any:
            with open(self._folder / f"{count}.pkl", "rb") as file:
                return pickle.load(file)

        return self._load(load)

    def _load(self, load: Callable[[], dict[str, Any]]) -> dict[str, float]:
        from looseleaf import devices

        self.namespace.clear()
        gc.collect()
        with devices.raw():
            began_s = time.perf_counter()
            found = load()
            loaded_s = time.perf_counter() - began_s
            _read([memoryview(tensor.numpy()).cast("B") for tensors in found.values() for tensor in tensors])
            return {"loaded": loaded_s, "read": time.perf_counter() - began_s}

    def mmap_read(self) -> float:
        """A private writable mapping of shared memory with the same bytes, made and read once: a restore's least."""
        began_s = time.perf_counter()
        with mmap.mmap(self._shared, 0, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as memory:
            _read([memory])
        return time.perf_counter() - began_s

    def memcpy_of(self, count: int) -> float:
        """`memcpy` of variables that were restored and read."""
        self.restore(count)
        return self.memcpy(_names(count))


def _names(count: int) -> list[str]:
    return [f"v{number:02}" for number in range(count)]


def _read(buffers: Iterable[Any]) -> None:
    from looseleaf.dirty_tracker import region_hashes

    for buffer in buffers:
        region_hashes(buffer, threads=1)


def _timed_s(work: Callable[[], Any]) -> float:
    began_s = time.perf_counter()
    work()
    return time.perf_counter() - began_s


def main() -> None:
    """Answers calls until stdin ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("endpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("session")
    options = parser.parse_args()
    state = State(options.endpoint, options.folder, options.session)
    for line in sys.stdin:
        method, args = json.loads(line)
        print(json.dumps(getattr(state, method)(*args)), flush=True)
    state.close()


if __name__ == "__main__":
    main()
