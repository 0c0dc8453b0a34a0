"""The grpcurl commands of docs/operate.md with their answers, taken by reflection from the services of compose.yaml.

    python tests/docker/grpc_answers.py            prints the section
    python tests/docker/grpc_answers.py --write    puts it into docs/operate.md

The services run as processes (`ComposeRig`), a kernel runs three cells on them, and each command's method is called
with the command's JSON. Answers are printed as grpcurl prints them; addresses are the published ones.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from jupyter_client import KernelManager

sys.path.insert(0, str(Path(__file__).parent))

from compose_model import ROOT, load
from compose_rig import ComposeRig

from looseleaf.batch.client import OneSpec
from looseleaf.kernel.install import KERNEL_NAME, kernel_spec
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.reflect import Reflection

DOCUMENT: Final = ROOT / "docs" / "operate.md"
BEGIN: Final = "<!-- answers: begin (python tests/docker/grpc_answers.py --write) -->"
END: Final = "<!-- answers: end -->"
SERVICES: Final = ("checkpoint-store", "scheduler", "frontend", "worker-daemon")
# One execution each; the last one leaves a warm worker with two variables.
CELLS: Final = ("import torch", "%%gpu\nx = torch.arange(1_000_000, device='cuda')", "%%gpu\ny = x + 1")
CELL_TIMEOUT_S: Final = 120.0
SETTLE_TIMEOUT_S: Final = 60.0


@dataclass(frozen=True)
class Call:
    """One command. `method` empty: list the server's services. `note`: what it is asked for."""

    note: str
    service: str
    method: str = ""
    request: Any = None

    @property
    def address(self) -> str:
        """The published address."""
        address, port, _inside = load()[self.service].ports[0]
        return f"{address}:{port}"

    @property
    def command(self) -> str:
        """For a person's shell."""
        words = ["grpcurl", "-plaintext"]
        words += ["-d", json.dumps(self.request)] if self.request else []
        return shlex.join([*words, self.address, self.method or "list"])


@dataclass(frozen=True)
class Session:
    """What the calls are about."""

    session_id: str
    execution_id: str


def calls_of(session: Session) -> list[Call]:
    """Every service: what it serves, whether it is healthy, and what it is asked for most."""
    # A kernel sends its log with its next request; what the frontend has now is all but the last run.
    cell = {"session_id": session.session_id, "source": "z = x.cpu()", "log_length": len(CELLS) - 1}
    v1 = "looseleaf.v1"
    return [
        Call("What a server serves:", "scheduler"),
        Call("Health; every server has it:", "scheduler", "grpc.health.v1.Health/Check",
             {"service": f"{v1}.SchedulerService"}),
        Call("The scheduler: the pool, and one execution out of its journal.", "scheduler",
             f"{v1}.SchedulerService/GetPool"),
        Call("", "scheduler", f"{v1}.SchedulerService/GetExecution", {"execution_id": session.execution_id}),
        Call("The checkpoint store: the newest session, and its newest version.", "checkpoint-store",
             f"{v1}.CheckpointStoreService/ListSessions", {"limit": 1}),
        Call("", "checkpoint-store", f"{v1}.CheckpointStoreService/ListVersions",
             {"session_id": session.session_id, "limit": 1}),
        Call("The recipe frontend: what a cell of that session would need. Nothing is executed.", "frontend",
             f"{v1}.FrontendService/DeriveRecipe", {"cell": cell}),
        Call("The worker daemon: its host.", "worker-daemon", f"{v1}.WorkerDaemonService/GetHost"),
    ]  # fmt: skip


async def ask(rig: ComposeRig, call: Call) -> str:
    """The answer as grpcurl prints it."""
    async with open_channel(rig.address(call.service), peer=call.service) as channel:
        reflection = Reflection(channel, json_names=True)
        if not call.method:
            return "\n".join(await reflection.services())
        method = await reflection.method(call.method)
        answers = [answer async for answer in reflection.call(method, [call.request or {}], 10.0)]
    return rig.unmapped("\n".join(json.dumps(answer, indent=2) for answer in answers))


@contextmanager
def running_session() -> Iterator[ComposeRig]:
    """The services, with a kernel that has run CELLS and lives on."""
    with ComposeRig(SERVICES) as rig, tempfile.TemporaryDirectory(prefix="ll-") as folder:
        endpoint = rig.path("worker-daemon", "/run/looseleaf") / "kernel-h0.sock"
        manager = KernelManager(
            kernel_name=KERNEL_NAME, kernel_spec_manager=OneSpec(kernel_spec(endpoint=str(endpoint))),
            transport="ipc", connection_file=f"{folder}/kernel.json",
        )  # fmt: skip
        # As a Jupyter server does: the session is called by its notebook, not by a folder of this run.
        env = {**rig.environment("worker-daemon"), "JPY_SESSION_NAME": "train.ipynb"}
        manager.start_kernel(env=env, cwd=folder)
        client = manager.client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=CELL_TIMEOUT_S)
            for cell in CELLS:
                reply = client.execute_interactive(cell, timeout=CELL_TIMEOUT_S, output_hook=lambda _message: None)
                assert reply["content"]["status"] == "ok", reply["content"]
            yield rig
        finally:
            client.stop_channels()
            manager.shutdown_kernel(now=False)
            manager.cleanup_resources()


async def collect(rig: ComposeRig) -> list[tuple[Call, str]]:
    """All calls with their answers, once everything is saved and durable."""
    session = await _settled(rig)
    return [(call, await ask(rig, call)) for call in calls_of(session)]


async def _settled(rig: ComposeRig) -> Session:
    """Waits until the newest version is durable and the scheduler has heard that the worker is warm."""
    limit_s = time.monotonic() + SETTLE_TIMEOUT_S
    while time.monotonic() < limit_s:
        sessions = await _ask_json(rig, "checkpoint-store", "CheckpointStoreService/ListSessions")
        pool = await _ask_json(rig, "scheduler", "SchedulerService/GetPool")
        (head,), (host,) = sessions["sessions"], pool["hosts"]
        workers = [worker for worker in host.get("workers", []) if worker["stage"] == "WORKER_STAGE_COMPLETED"]
        if head["version"] == head.get("durableVersion") and workers and "leases" not in host:
            newest = {"session_id": head["sessionId"], "limit": 1}
            versions = await _ask_json(rig, "checkpoint-store", "CheckpointStoreService/ListVersions", newest)
            (version,) = versions["versions"]
            return Session(head["sessionId"], version["executionId"])
        await asyncio.sleep(0.1)
    raise AssertionError(f"the session did not come to rest: {sessions} {pool}")


async def _ask_json(rig: ComposeRig, service: str, method: str, request: Any = None) -> Any:
    return json.loads(await ask(rig, Call("", service, f"looseleaf.v1.{method}", request)))


def section(answers: list[tuple[Call, str]]) -> str:
    """The document's section between BEGIN and END."""
    parts = []
    for call, answer in answers:
        note = f"{call.note}\n\n" if call.note else ""
        parts.append(f"{note}```console\n$ {call.command}\n{answer}\n```\n")
    return "\n".join(parts)


def shown() -> list[tuple[str, str]]:
    """Command and answer of each block of the document's section."""
    text = DOCUMENT.read_text(encoding="utf-8")
    inside = text[text.index(BEGIN) + len(BEGIN) : text.index(END)]
    return re.findall(r"```console\n\$ (.+)\n((?:.*\n)*?)```", inside)


def masked(text: str) -> str:
    """Ids, hashes and numbers replaced, so that two runs' answers compare."""
    text = re.sub(r"\b([a-z])-[0-9a-f]{8,}", r"\1-ID", text)
    text = re.sub(r'"[0-9a-f]{16,}"', '"HASH"', text)
    text = re.sub(r'"[A-Za-z0-9+/]{20,}={0,2}"', '"BYTES"', text)
    text = re.sub(r'"\d{4}-\d\d-\d\dT[0-9:.]+Z"', '"TIME"', text)
    # A figure that is zero is left out, and these depend on when the scheduler looked, or the daemon at its zygotes.
    text = re.sub(r',\n *"gpuS": [^\n]*', "", text)
    text = re.sub(r'\n *"pssBytes": [^\n]*,(?=\n)', "", text)
    text = re.sub(r'"speculation": \{[^}]*\}', '"speculation": {}', text)
    # What stands alone after a name or in a list; ports and names with digits are no figures.
    return re.sub(r'((?<=: )|(?<=  ))"?-?\d+(\.\d+)?([eE]-?\d+)?"?(?=[,\n])', "N", text)


def main() -> int:
    """Prints or writes the section."""
    with running_session() as rig:
        answers = asyncio.run(collect(rig))
    if "--write" not in sys.argv[1:]:
        print(section(answers))
        return 0
    text = DOCUMENT.read_text(encoding="utf-8")
    before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
    DOCUMENT.write_text(f"{before}\n\n{section(answers)}\n{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
