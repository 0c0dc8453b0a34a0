"""Runs session steps in processes of their own, forked from one with the libraries imported, over files.

`DirectoryIO` keeps the store in a directory; `Nursery` is used by the test process, `main` is its child.
"""

from __future__ import annotations

import gc
import json
import mmap
import os
import struct
import subprocess
import sys
import traceback
from pathlib import Path

from looseleaf.errors import Conflict, NotFound
from looseleaf.units import REGION_BYTES


class DirectoryIO:
    """StateIO over files: `regions` are slots of one file that is mapped privately, as a host's arena is."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)
        for name in ("units", "regions", "versions"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self.put_bytes = 0

    def have_regions(self, refs, session_bytes=0):
        return [i for i, ref in enumerate(refs) if not self._region(ref).exists()]

    def put_regions(self, items):
        for ref, data in items:
            assert len(data) == ref.length_bytes <= REGION_BYTES
            self._region(ref).write_bytes(data)
            self.put_bytes += len(data)

    def put_units(self, items):
        for unit_hash, data in items:
            (self.root / "units" / unit_hash.hex()).write_bytes(data)

    def commit(self, manifest_bytes, parent, epoch, execution_id):
        if self._head() != parent:
            raise Conflict("MANIFEST_MOVED", "somebody else was first")
        (self.root / "versions" / f"{parent + 1:08}").write_bytes(manifest_bytes)
        return parent + 1

    def manifest(self, version):
        version = version or self._head()
        path = self.root / "versions" / f"{version:08}"
        return {"version": version, "epoch": 1, "durable_version": 0}, path.read_bytes() if path.exists() else None

    def fetch_units(self, hashes):
        return {unit_hash: (self.root / "units" / unit_hash.hex()).read_bytes() for unit_hash in hashes}

    def map_regions(self, refs):
        size = sum(ref.length_bytes for ref in refs)
        memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        at = 0
        for ref in refs:
            if not self._region(ref).exists():
                raise NotFound("REGION_UNKNOWN", "a region is not there")
            memory[at : at + ref.length_bytes] = self._region(ref).read_bytes()
            at += ref.length_bytes
        return memory

    def map_many(self, groups):
        return [self.map_regions(refs) for refs in groups]

    def unmap_regions(self, refs):
        pass

    def _region(self, ref):
        return self.root / "regions" / f"{ref.region_id.hex()}-{ref.length_bytes}"

    def _head(self):
        return max((int(path.name) for path in (self.root / "versions").iterdir()), default=0)


def hidden(name: str) -> bool:
    return name.startswith("__") or name in ("In", "Out", "_", "get_ipython")


class Driver:
    """What a step's code may use: `cell`, `check`, `save`, `restore`, and the tracker itself as `tracker`."""

    def __init__(self, root: Path, namespace: dict) -> None:
        from looseleaf.checkpoint.tracker import StateTracker

        self.io = DirectoryIO(root)
        self.namespace = namespace
        self.tracker = StateTracker(namespace, self.io, session_id="s-test", epoch=1, hidden=hidden)
        self.count = 0

    def cell(self, source: str) -> None:
        exec(compile(source, "<cell>", "exec", dont_inherit=True), self.namespace)

    def check(self, expression: str):
        return eval(expression, self.namespace)

    def save(self):
        self.count += 1
        return self.tracker.save(f"x-{os.getpid()}-{self.count}")

    def restore(self, *names: str):
        report = self.tracker.restore(names)
        assert not report.failed, report.failed
        return report

    def restore_all(self):
        self.tracker.restore([])
        return self.restore(*self.tracker.manifest.roots)

    def advance(self):
        return self.tracker.advance(self.io.manifest(0)[1])


def _run_step(root: str, source: str) -> dict:
    import __main__

    namespace = __main__.__dict__
    for name in [name for name in namespace if not name.startswith("__")]:
        del namespace[name]
    driver = Driver(Path(root), namespace)
    scope = {
        "driver": driver, "tracker": driver.tracker, "io": driver.io, "cell": driver.cell, "check": driver.check,
        "save": driver.save, "restore": driver.restore, "restore_all": driver.restore_all, "advance": driver.advance,
        "result": None,
    }  # fmt: skip
    exec(compile(source, "<step>", "exec"), scope)
    return {"result": scope["result"]}


def _child(root: str, source: str, write_fd: int) -> None:
    try:
        answer = _run_step(root, source)
        data = json.dumps(answer, default=str).encode()
    except BaseException:
        data = json.dumps({"error": traceback.format_exc()}).encode()
    os.write(write_fd, struct.pack("<I", len(data)))
    view = memoryview(data)
    while view:
        view = view[os.write(write_fd, view) :]
    os._exit(0)


def main() -> None:
    import numpy  # noqa: F401, ICN001
    import pandas  # noqa: F401, ICN001
    import torch

    import looseleaf.checkpoint.tracker  # noqa: F401
    from looseleaf.checkpoint.module_code import BASELINE

    torch.set_num_threads(1)
    # The first optimizer of a process imports the compiler; better once here than in every step.
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    # As a zygote does.
    BASELINE.begin()
    gc.freeze()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        request = json.loads(line)
        read_fd, write_fd = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(read_fd)
            _child(request["root"], request["source"], write_fd)
        os.close(write_fd)
        with os.fdopen(read_fd, "rb") as pipe:
            data = pipe.read()
        _, status = os.waitpid(pid, 0)
        text = data[4:].decode() if len(data) > 4 else json.dumps({"error": f"the child died: {status}"})
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


class Nursery:
    """Starts the process with the libraries once; `run` forks a clean process from it and returns its `result`."""

    def __init__(self) -> None:
        here = str(Path(__file__).parent)
        code = f"import sys; sys.path.insert(0, {here!r}); import checkpoint_nursery as n; n.main()"
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def run(self, root: Path, source: str):
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"root": str(root), "source": source}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, answer["error"]
        return answer["result"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=30)
        assert self._process.stdout is not None
        self._process.stdout.close()


class MemoryIO(DirectoryIO):
    """The same without files, for properties that are tried many times."""

    def __init__(self) -> None:
        self.units: dict[bytes, bytes] = {}
        self.regions: dict[bytes, bytes] = {}
        self.versions: list[bytes] = []

    def have_regions(self, refs, session_bytes=0):
        return [i for i, ref in enumerate(refs) if ref.region_id not in self.regions]

    def put_regions(self, items):
        self.regions.update((ref.region_id, bytes(data)) for ref, data in items)

    def put_units(self, items):
        self.units.update(items)

    def commit(self, manifest_bytes, parent, epoch, execution_id):
        if len(self.versions) != parent:
            raise Conflict("MANIFEST_MOVED", "somebody else was first")
        self.versions.append(manifest_bytes)
        return len(self.versions)

    def manifest(self, version):
        version = version or len(self.versions)
        head = {"version": version, "epoch": 1, "durable_version": 0}
        return head, self.versions[version - 1] if 0 < version <= len(self.versions) else None

    def fetch_units(self, hashes):
        return {unit_hash: self.units[unit_hash] for unit_hash in hashes}

    def map_regions(self, refs):
        return bytearray(b"".join(self.regions[ref.region_id] for ref in refs))
