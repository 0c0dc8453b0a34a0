"""How long a worker takes to get ready for a cell from nothing, beside what people would use instead.

    python bench/cold_preparation.py                       LooseLeaf and a fresh process, 0.5 GB of tensors
    python bench/cold_preparation.py --demo 0.5 2 --peers PATH/peers_prep.py --criu /usr/sbin/criu
    ... --json FILE --plot FILE.png --into docs/import-cache.md
    python bench/cold_preparation.py --read FILE --plot FILE.png      shows what --json has kept, measures nothing

The state is that of bench/demo_notebook.py, made by a LooseLeaf kernel on a cluster of its own with one virtual GPU
without imitated delays, default settings otherwise. A round does each of these once or, what is ours, several times:

- *LooseLeaf, 5, 20 and 100 %*: the daemon is asked for a new worker for a recipe (`PrepareWorker`, with the one that
  the frontend derives), until it answers that the worker holds the closure: fork, imports, state. Every worker is
  ended before the next. Payloads are mapped then, and read as the cell touches them.
- *begun at Run*: the same cells run without a preparation and without a worker, from the request at the kernel until
  the first output has come back: besides the above the recipe, the lease, the attach and the cell, which prints what
  it found.
- *done before Run*: the same after a preparation.
- *fresh process*: interpreter, imports, `pickle.load` of these variables (bench/fresh_process.py).
- with `--peers`, its rivals, by that script. CRIU needs root and a version that knows the system's kernel.

Rounds alternate all of these. A first round that warms files and caches is not counted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import demo_notebook
import fresh_process
import machine
from alternating import Rounds
from demo_notebook import SHARES, Closure, closure
from kernels import Kernel
from peers import Peers
from preparation_report import (
    BEGIN,
    END,
    Size,
    as_markdown,
    at_run,
    draw,
    fresh,
    prepare,
    read_kept,
    told,
    write_kept,
)
from table import insert

from looseleaf.ids import new_request_id
from looseleaf.kernel.install import kernel_spec
from looseleaf.local.cluster import LocalCluster
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.store_client import StoreClient
from looseleaf.units import GIB
from looseleaf.v1 import frontend_pb2, recipe_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb
from looseleaf.v1.frontend_pb2_grpc import FrontendServiceStub
from looseleaf.v1.worker_daemon_pb2_grpc import WorkerDaemonServiceStub

SESSION: Final = "s-cold"
CALL_LIMIT_S: Final = 60.0
DURABLE_LIMIT_S: Final = 300.0
POLL_S: Final = 0.05
ARENA_BYTES: Final = 6 * GIB
# Of ours in a round; one of a rival takes as long as many of them.
PREPARATIONS: Final = 4
# A run that took another way than the one that is measured is done again so often.
TRIES_MAX: Final = 5
PEERS: Final = "naive_torchsave,naive_cloudpickle,prefork_full,criu_tmpfs,criu_disk"
# What a cell shows must not depend on how long it waits, and nothing is prepared but what is measured.
KERNEL_ENV: Final = {"LOOSELEAF_KERNEL_WAIT_LINE_AFTER_S": "0", "LOOSELEAF_KERNEL_PREDICT": "false"}


class Session:
    """The notebook's session on a cluster; made by `open`, which runs its cells and waits until its state is stored."""

    def __init__(self, kernel: Kernel, store: StoreClient, frontend: Any, daemon: Any) -> None:
        self._kernel = kernel
        self._store = store
        self._frontend = frontend
        self._daemon = daemon
        self._epoch = 0
        self.recipes: dict[int, recipe_pb2.ExecutionRecipe] = {}

    @classmethod
    async def open(cls, cluster: LocalCluster, gigabytes: float, stack: AsyncExitStack) -> Session:
        spec = kernel_spec(endpoint=str(cluster.kernel_socket()), env={**KERNEL_ENV, "LOOSELEAF_SESSION": SESSION})
        kernel = stack.enter_context(Kernel(spec))
        channels = [
            await stack.enter_async_context(open_channel(cluster.address(service), peer=peer))
            for service, peer in (("checkpoint-store", "store"), ("frontend", "frontend"), ("daemon-h0", "daemon"))
        ]
        session = cls(kernel, StoreClient(channels[0]), FrontendServiceStub(channels[1]),
                      WorkerDaemonServiceStub(channels[2]))  # fmt: skip
        for source in demo_notebook.cells(gigabytes):
            kernel.run(source)
        # It needs all of the state, so that a version has all of it.
        await session.run(closure(100))
        return session

    async def refresh(self) -> None:
        """The recipes are for the newest version, nothing of it is still on its way to the disk, and the daemon's
        connection, which may have idled long, is there."""
        await self._until_durable()
        await self._daemon.GetHost(pb.GetHostRequest(), timeout_s=CALL_LIMIT_S)
        for share in SHARES:
            self.recipes[share] = await self._recipe(closure(share))

    async def _until_durable(self) -> None:
        began_s = time.monotonic()
        while True:
            head = await self._store.open_session(SESSION)
            self._epoch = head.epoch
            if head.durable_version == head.version:
                return
            if time.monotonic() - began_s > DURABLE_LIMIT_S:
                raise TimeoutError(f"version {head.version} is not durable after {DURABLE_LIMIT_S:g} s")
            await asyncio.sleep(POLL_S)

    async def _recipe(self, wanted: Closure) -> recipe_pb2.ExecutionRecipe:
        cell = frontend_pb2.CellText(session_id=SESSION, source=wanted.source)
        derived = await self._frontend.DeriveRecipe(frontend_pb2.DeriveRecipeRequest(cell=cell), timeout_s=CALL_LIMIT_S)
        missing = set(wanted.names) - set(derived.recipe.names)
        assert not missing, f"the recipe of {wanted.share} % lacks {sorted(missing)}"
        recipe: recipe_pb2.ExecutionRecipe = derived.recipe
        return recipe

    async def prepare_s(self, share: int) -> tuple[float, dict[str, float]]:
        """Seconds from the request for a new worker to its daemon's answer that it is ready, and of these what the
        daemon says of each stage; the worker is ended afterwards."""
        request = pb.PrepareWorkerRequest(
            request_id=new_request_id(), session_id=SESSION, epoch=self._epoch, recipe=self.recipes[share]
        )
        began_s = time.perf_counter()
        response = await self._daemon.PrepareWorker(request, timeout_s=CALL_LIMIT_S)
        taken_s = time.perf_counter() - began_s
        await self._end(response.worker_id)
        return taken_s, {name: ms / 1000 for name, ms in response.stage_ms.items()}

    async def run(self, wanted: Closure, path: str = "", *, prepared: bool = False) -> float:
        """Seconds from the request of the cell to its first output; its worker is ended afterwards. `path`: the way
        that the run must have taken. Raises RuntimeError if it took others, or printed another answer."""
        for _ in range(TRIES_MAX):
            if prepared:
                self._kernel.prepare(wanted.source)
            cell = self._kernel.run(wanted.source)
            if cell.text != wanted.answer or cell.first_output_s is None:
                raise RuntimeError(f"the cell of {wanted.share} % printed {cell.text!r} and not {wanted.answer!r}")
            await self._end(cell.report["worker_id"])
            if path in ("", cell.report["path"]):
                return cell.first_output_s
        raise RuntimeError(f"{TRIES_MAX} runs in turn were not {path} but {cell.report['path']}")

    async def _end(self, worker_id: str) -> None:
        request = pb.EvictWorkerRequest(request_id=new_request_id(), worker_id=worker_id, epoch=self._epoch)
        while not (await self._daemon.EvictWorker(request, timeout_s=CALL_LIMIT_S)).evicted:
            # Its save is under way.
            await asyncio.sleep(POLL_S)
            request.request_id = new_request_id()


async def measure_round(session: Session, rounds: Rounds, files: Path, *, counted: bool) -> None:
    """Ours and the fresh process, once around."""
    found: dict[str, list[float]] = {}
    for share in SHARES:
        await session.refresh()
        wanted = closure(share)
        prepared = [await session.prepare_s(share) for _ in range(PREPARATIONS)]
        found[prepare(share)] = [taken_s for taken_s, _ in prepared]
        for stage in prepared[0][1]:
            found[f"{prepare(share)}/{stage}"] = [stages[stage] for _, stages in prepared]
        found[at_run(share, "cold")] = [await session.run(wanted, "cold")]
        found[at_run(share, "prepared")] = [await session.run(wanted, "prepared", prepared=True)]
        packages = demo_notebook.packages(session.recipes[share].imports)
        found[fresh(share)] = [fresh_process.load_s(files / f"{share}.pkl", packages, len(wanted.names))]
    if counted:
        for series, values_s in found.items():
            rounds.add(series, values_s)


async def measure(size: Size, options: argparse.Namespace, after_round: Callable[[], None]) -> None:
    """All rounds with one size of state."""
    gigabytes = size.gigabytes
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ll-cold-")))
        fresh_process.save_files(folder, gigabytes)
        cluster = stack.enter_context(LocalCluster.start(
            data=folder / "data", gpus=1, device="emulated", emulated_delays=False, arena_bytes=ARENA_BYTES,
            log_level="warning",
        ))  # fmt: skip
        session = await Session.open(cluster, gigabytes, stack)
        for number in range(-1, options.rounds):
            await measure_round(session, size.rounds, folder, counted=number >= 0)
            if options.peers is not None and number >= 0:
                size.peers.run(options.peers, gigabytes, options.peer_names.split(","), options.criu)
            print(f"{gigabytes:g} GB: round {number + 1} of {options.rounds}", file=sys.stderr)
            after_round()


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables; writes what is asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--demo", type=float, nargs="+", default=[0.5], metavar="GB", help="tensors of the state")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--peers", type=Path, help="the script peers_prep.py, to measure rivals in the same rounds")
    parser.add_argument("--peer-names", default=PEERS, help="which rivals, as the script names them")
    parser.add_argument("--criu", default="", help="the program criu, if it is not on the search path")
    parser.add_argument("--json", type=Path, help="file for all durations, written anew after each round")
    parser.add_argument("--plot", type=Path, help="PNG file to draw into")
    parser.add_argument("--into", type=Path, help="Markdown file with the two marks for the tables")
    parser.add_argument("--read", type=Path, help="a file of --json: show it and measure nothing")
    options = parser.parse_args(argv)
    sizes, facts = read_kept(options.read) if options.read else _measured(options)
    lines = [*as_markdown(sizes), told(sizes, facts)]
    print("\n".join(lines))
    if options.plot:
        draw(sizes, options.plot)
    if options.into:
        options.into.write_text(insert(options.into.read_text(), lines, BEGIN, END))
    return 0


def _measured(options: argparse.Namespace) -> tuple[list[Size], dict[str, Any]]:
    """All sizes, and where they were measured; kept in a file after each round if one is named."""
    facts: dict[str, Any] = {**machine.facts(), "load_average_before": machine.load_average()}
    sizes: list[Size] = []

    def keep() -> None:
        facts["load_average_after"] = machine.load_average()
        if options.json:
            write_kept(options.json, sizes, facts)

    for gigabytes in options.demo:
        sizes.append(Size(gigabytes, Rounds(), Peers()))
        asyncio.run(measure(sizes[-1], options, keep))
    return sizes, facts


if __name__ == "__main__":
    sys.exit(main())
