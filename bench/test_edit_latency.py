"""From an edit to the prepare request that the scheduler gets: a frontend process with a real store and a real session.

A cell is typed a few characters at a time into a session of 200 variables, whose newest version the store has, beside a
model on the virtual GPU. What arrives is taken by a scheduler in this process that answers at once: nothing of a
preparation is in the figure. Edits that need no worker, as before the cell names anything, are not counted.

The whole way is measured on a cluster as people have it, with the message that a page sends on the kernel's control
channel: to the answer for a cell that needs no worker, and to the prepare request at the scheduler for one that needs
one. Both while the notebook is idle and while one of its GPU cells runs.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from alternating import Rounds, Target, alternate, publish
from kernels import Kernel
from noting_scheduler import PREPARATIONS_FILE, noted_since
from pytest_benchmark.fixture import BenchmarkFixture

from looseleaf.kernel.install import kernel_spec
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.server import Registration, RpcServer
from looseleaf.v1 import frontend_pb2, recipe_pb2, scheduler_pb2
from looseleaf.v1.frontend_pb2_grpc import FrontendServiceStub
from looseleaf.v1.scheduler_pb2_grpc import SchedulerServiceServicer, add_SchedulerServiceServicer_to_server

SESSION = "s-edits"
WAIT_S = 40.0
ROUNDS = 3
CHARS_PER_EDIT = 4
# A pause between keystrokes that asks for a recipe (labextension); without one every edit would find a warm processor.
PAUSE_S = 0.02
EDIT, PARSED, CALL = "edit", "edit that parses", "one call"
ANSWERED, ORDERED = "keystroke at the kernel to its answer", "keystroke at the kernel to its prepare request"
IDLE, BESIDE = "idle", "beside a GPU cell"
AT_KERNEL = [f"{what}, {when}" for what in (ANSWERED, ORDERED) for when in (IDLE, BESIDE)]
KEYSTROKES = 30
TARGET = Target("time_s", 0.050, "p95 <= 50 ms", tail=True)
SETUP = """
import numpy as np
for i in range(200):
    globals()[f"v{i}"] = [{"a": i, "b": list(range(50))}]
for i in range(50):
    exec(f"def f{i}(x): return v{i}, x, np.sum(x)")
"""
MAKE = """%%gpu
import torch
from torch import nn
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
criterion = nn.CrossEntropyLoss()
batches = [(torch.randn(32, 64), torch.randint(0, 10, (32,))) for _ in range(8)]
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""
TYPED = """model.train()
losses = []
for epoch in range(3):
    total, count = 0.0, 0
    for inputs, targets in batches:
        inputs, targets = inputs.to(device), targets.to(device)
        optimizer.zero_grad()
        outputs = model(inputs)
        loss = criterion(outputs, targets)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(inputs)
        count += len(inputs)
    losses.append(total / count)
    print(f"epoch {epoch}: loss {losses[-1]:.4f} of {len(v3)} and {f5(np.ones(3))[2]}")
"""


BUSY = """%%gpu
import pathlib, time
print("begun", flush=True)
while not pathlib.Path({end!r}).exists():
    time.sleep(0.01)
"""


def parses(text: str) -> bool:
    """Whether Python can read the text; two thirds of what is half typed it cannot."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


class ScriptedScheduler(SchedulerServiceServicer):
    """Notes when each prepare request came, by its id, and answers at once."""

    def __init__(self) -> None:
        self.came_s: dict[str, float] = {}

    async def RequestPreparation(
        self, request: scheduler_pb2.RequestPreparationRequest, context: Any
    ) -> scheduler_pb2.RequestPreparationResponse:
        self.came_s[request.request_id] = time.perf_counter()
        return scheduler_pb2.RequestPreparationResponse(skipped_reason="measured")


class Typist:
    """Types into the frontend; its loop is also the scheduler's."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, address: str, scheduler: str, kernel: Kernel, noted: Path
    ) -> None:
        self._loop = loop
        self._kernel, self._noted = kernel, noted
        self._address, self._listen = address, scheduler
        self._scheduler = ScriptedScheduler()
        self._edits = 0

    async def open(self) -> None:
        self._server = RpcServer(self._listen)
        self._server.bind()
        await self._server.start([Registration(add_SchedulerServiceServicer_to_server, self._scheduler)])
        self._channel = open_channel(self._address, peer="frontend")
        await self._channel.wait_ready(WAIT_S)
        self._stub: Any = FrontendServiceStub(self._channel)
        runs = [
            recipe_pb2.CellRun(sequence=number, cell_id=f"c{number}", source=source, ok=True)
            for number, source in enumerate((SETUP, MAKE), 1)
        ]
        await self._stub.RecordRuns(frontend_pb2.RecordRunsRequest(session_id=SESSION, runs=runs), timeout_s=WAIT_S)

    async def close(self) -> None:
        await self._channel.close()
        await self._server.stop(0)

    def type(self, text: str) -> dict[str, list[float]]:
        """Seconds from each edit to its prepare request."""
        return self._loop.run_until_complete(self._type(text))

    async def _type(self, text: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {EDIT: [], PARSED: []}
        self._edits += 1
        # Every round is a new text: a recipe is kept by the text that it is for.
        head = f"# round {self._edits}\n"
        for end in (*range(CHARS_PER_EDIT, len(text), CHARS_PER_EDIT), len(text)):
            await asyncio.sleep(PAUSE_S)
            self._edits += 1
            request_id, began_s = f"r-{self._edits}", time.perf_counter()
            cell = frontend_pb2.CellText(session_id=SESSION, cell_id="typed", source=head + text[:end], log_length=2)
            asked = frontend_pb2.PrepareCellRequest(request_id=request_id, cell=cell, edit_sequence=self._edits)
            await self._stub.PrepareCell(asked, timeout_s=WAIT_S)
            came_s = self._scheduler.came_s.pop(request_id, None)
            if came_s is not None:
                found[EDIT].append(came_s - began_s)
                if parses(text[:end]):
                    found[PARSED].append(came_s - began_s)
        return found

    def at_kernel(self, keystrokes: int, end: Path) -> dict[str, list[float]]:
        """Seconds from a page's message to what comes of it, by AT_KERNEL; `end` is a file that is not there yet."""
        found = {f"{what}, {IDLE}": values for what, values in self._edit_cells(keystrokes).items()}
        with self._kernel.running(BUSY.format(end=str(end)), end):
            beside = self._edit_cells(keystrokes)
        return found | {f"{what}, {BESIDE}": values for what, values in beside.items()}

    def _edit_cells(self, keystrokes: int) -> dict[str, list[float]]:
        found: dict[str, list[float]] = {ANSWERED: [], ORDERED: []}
        for _ in range(keystrokes):
            self._edits += 1
            answer, began_s = self._edit(f"x = [v3, f5(np.ones({self._edits}))]")
            found[ANSWERED].append(time.perf_counter() - began_s)
            assert answer["status"] == "ok" and "needs no worker" in answer["skipped_reason"], answer
            answer, began_s = self._edit(f"y = model(batches[{self._edits} % 8][0].to(device))")
            # It is there: the answer comes after what the scheduler says.
            came_s = noted_since(self._noted, began_s)
            assert answer["recipe"]["label"] == "gpu" and came_s, answer
            found[ORDERED].append(came_s[0] - began_s)
        return found

    def _edit(self, source: str) -> tuple[dict[str, Any], float]:
        time.sleep(PAUSE_S)
        began_s = time.perf_counter()
        return self._kernel.prepare(source), began_s

    def call(self) -> float:
        """Seconds for one call of the frontend that derives nothing."""

        async def ask() -> float:
            began_s = time.perf_counter()
            await self._stub.RecordRuns(frontend_pb2.RecordRunsRequest(session_id=SESSION), timeout_s=WAIT_S)
            return time.perf_counter() - began_s

        return self._loop.run_until_complete(ask())


@pytest.fixture(scope="module")
def typist(tmp_path_factory: pytest.TempPathFactory, storage_cluster: Any, one_thread: None) -> Iterator[Typist]:
    folder = tmp_path_factory.mktemp("edits")
    spec = kernel_spec(endpoint=str(storage_cluster.kernel_socket()))
    spec["env"] = {**spec.get("env", {}), "LOOSELEAF_SESSION": SESSION}
    address, scheduler = f"unix:{folder}/frontend.sock", f"unix:{folder}/scheduler.sock"
    command = [
        sys.executable, "-m", "looseleaf.services.frontend", "--listen", address,
        "--store", storage_cluster.address("checkpoint-store"), "--scheduler", scheduler,
        "--data", str(folder / "data"),
    ]  # fmt: skip
    with ExitStack() as stack:
        kernel = stack.enter_context(Kernel(spec))
        kernel.run(SETUP)
        kernel.run(MAKE)
        log = stack.enter_context(open(Path(folder) / "frontend.log", "wb"))
        process = stack.enter_context(subprocess.Popen(command, stdout=log, stderr=log, env=dict(os.environ)))
        stack.callback(process.terminate)
        loop = asyncio.new_event_loop()
        stack.callback(loop.close)
        made = Typist(loop, address, scheduler, kernel, Path(storage_cluster.record.data) / PREPARATIONS_FILE)
        loop.run_until_complete(made.open())
        stack.callback(lambda: loop.run_until_complete(made.close()))
        yield made


@pytest.fixture(scope="module")
def rounds(typist: Typist, smoke: bool, tmp_path_factory: pytest.TempPathFactory) -> Rounds:
    text = TYPED[:120] if smoke else TYPED
    ends = (tmp_path_factory.mktemp("ends") / str(number) for number in itertools.count())
    found = alternate(
        {
            "typed": lambda: typist.type(text),
            CALL: lambda: [typist.call() for _ in range(2 if smoke else KEYSTROKES)],
            "kernel": lambda: typist.at_kernel(2 if smoke else KEYSTROKES, next(ends)),
        },
        rounds=1 if smoke else ROUNDS, warmup_rounds=0 if smoke else 1,
    )  # fmt: skip
    for kind in (EDIT, PARSED):
        found.series[kind] = found.series[f"typed/{kind}"]
    for kind in AT_KERNEL:
        found.series[kind] = found.series[f"kernel/{kind}"]
    return found


@pytest.mark.parametrize("kind", [EDIT, PARSED, *AT_KERNEL])
def test_edit_to_prepare_request(benchmark: BenchmarkFixture, rounds: Rounds, kind: str) -> None:
    assert len(rounds.values_s(EDIT)) > len(rounds.values_s(PARSED)) > 0
    what = kind if kind in AT_KERNEL else f"{kind} at the frontend, to its prepare request at the scheduler"
    publish(benchmark, rounds, kind, what, (CALL, None), (None, TARGET), edits=len(rounds.values_s(kind)))
