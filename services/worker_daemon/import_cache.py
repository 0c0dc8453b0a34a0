"""The host's tree of zygotes: what core/zygote_tree.py decides, carried out over real processes (paper §3.3)."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field
from typing import Any, Final

import structlog

from looseleaf.errors import LooseLeafError, Timeout, Unavailable
from looseleaf.services.worker_daemon.core import zygote_events as ev
from looseleaf.services.worker_daemon.core.zygote_base import learned_base
from looseleaf.services.worker_daemon.core.zygote_events import Action, Event, ForkFailure
from looseleaf.services.worker_daemon.core.zygote_facts import Prober, ProbeResult, Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import Node, NodeId, TreeKey, TreeLimits
from looseleaf.services.worker_daemon.core.zygote_tree import ImportCacheRules
from looseleaf.services.worker_daemon.import_cache_figures import CacheFigures
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.zygote import Zygote
from looseleaf.services.worker_daemon.zygote_node import Forking, ZygoteNode

log = structlog.get_logger()

# PSS is read by a zygote itself, in about 16 ms for a large one: rarely, and never while it is busy.
SAMPLE_INTERVAL_S: Final = 10.0


@dataclass(frozen=True)
class CacheSettings:
    """`new_fresh` makes a zygote without imports, for a worker that no other can serve. `prober`: None: no tail nodes.

    `log_path`: file that forked zygotes write to.
    """

    new_fresh: Callable[[], Zygote]
    limits: TreeLimits = field(default_factory=TreeLimits)
    prober: Prober | None = None
    log_path: str = "/dev/null"


class ImportCache:
    """Starts and ends zygotes and says from which one a worker is forked; bases are started by their owner."""

    def __init__(self, settings: CacheSettings, reaper: Reaper, figures: CacheFigures | None = None) -> None:
        self.rules = ImportCacheRules(settings.limits)
        self.figures = figures or CacheFigures()
        self._settings = settings
        self._reaper = reaper
        self._bases: dict[TreeKey, Zygote] = {}
        self._hopeless: dict[TreeKey, asyncio.Event] = {}
        self._nodes: dict[NodeId, ZygoteNode] = {}
        # Workers that live, by pid: their node and title.
        self._workers: dict[int, tuple[NodeId, str]] = {}
        self._next_request = 1
        self._tasks: set[asyncio.Task[Any]] = set()
        # Ends of zygotes that served one worker: these are waited for.
        self._ending: set[asyncio.Task[None]] = set()

    @property
    def tail_pids(self) -> list[int]:
        """Of the zygotes that were forked from others, oldest first."""
        return [node.pid for _, node in sorted(self._nodes.items())]

    def start(self) -> None:
        """Begins to look at the zygotes' memory."""
        self._spawn(self._sample_always())

    # -- bases -------------------------------------------------------------------------------------------------------

    def open(
        self, key: TreeKey, base: Zygote, learned: Mapping[str, int] | None = None, after: TreeKey | None = None
    ) -> None:
        """A base is about to be started, with what was `learned` from the tree `after` which it comes."""
        self._bases[key], self._hopeless[key] = base, asyncio.Event()
        self.tell(ev.KeyOpened(key, learned or {}, after))

    def base_ready(self, key: TreeKey) -> None:
        """It serves, for the first time or again."""
        base = self._bases.get(key)
        if base is None:
            return  # it was given up while it started
        self._hopeless[key].clear()
        self.tell(ev.BaseReady(key, base.environment_id, base.seconds, base.modules, base.private_bytes))

    def base_down(self, key: TreeKey, hopeless: bool) -> None:
        """It ended, or a start of it failed."""
        if hopeless and key in self._hopeless:
            self._hopeless[key].set()
        self.tell(ev.BaseDown(key, hopeless))

    def learned(self, key: TreeKey) -> dict[str, int]:
        """What the base of the tree after this one should import besides the configured set, with its memory."""
        tree, base = self.rules.trees.get(key), self.rules.base(key)
        if tree is None or base is None:
            return {}
        return learned_base(tree, base, self.rules.nodes.values(), self.rules.times)

    def close(self, key: TreeKey) -> None:
        """Nobody forks from it any more: its tail ends."""
        self.tell(ev.KeyClosed(key))
        self._bases.pop(key, None)
        self._hopeless.pop(key, None)

    # -- workers -----------------------------------------------------------------------------------------------------

    def request(self, key: TreeKey, imports: Iterable[str]) -> ForkRequest:
        """A worker for these imports is wanted."""
        number, self._next_request = self._next_request, self._next_request + 1
        wanted = frozenset(name for name in imports if name.partition(".")[0] not in sys.stdlib_module_names)
        return ForkRequest(self, number, self.tell(ev.Requested(number, key, wanted)))

    async def carry_out(
        self, action: ev.Fork | ev.ForkFresh, title: str, env: dict[str, str], fds: Sequence[int]
    ) -> tuple[int, float]:
        """The pid of the process that a decision is about, and seconds of its fork. Raises as `Zygote.fork`."""
        if isinstance(action, ev.ForkFresh):
            began_s = time.monotonic()
            pid = await self._fork_fresh(title, env, fds)
            seconds = time.monotonic() - began_s
            self.figures.forked(None, seconds, lacking=True)
            return pid, seconds
        node = self.rules.nodes.get(action.node)
        process = await self._serving(action.node)
        began_s = time.monotonic()
        pid = await process.fork(title, env, fds)
        seconds = time.monotonic() - began_s
        self.figures.forked(node.depth if node is not None else 0, seconds, lacking=bool(action.lacking))
        self._note_worker(pid, action.node, title)
        return pid, seconds

    async def _serving(self, node_id: NodeId) -> Forking:
        """The node's process; a base that is being started is waited for, unless it turns out that it cannot be."""
        process = self._process(node_id)
        if not isinstance(process, Zygote):
            return process
        key = self.rules.nodes[node_id].key
        waits = [asyncio.ensure_future(process.until_serving()), asyncio.ensure_future(self._hopeless[key].wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            if not waits[0].done():
                raise Unavailable("ZYGOTE_DOWN", "the process that workers are forked from cannot be started")
            waits[0].result()
        finally:
            for wait in waits:
                wait.cancel()
            await asyncio.gather(*waits, return_exceptions=True)
        return process

    def _process(self, node_id: NodeId) -> Forking:
        """Raises Unavailable `ZYGOTE_FAILED` if it is gone."""
        node = self.rules.nodes.get(node_id)
        if node is not None and node.is_base:
            return self._bases[node.key]
        if node is None or node_id not in self._nodes:
            raise Unavailable("ZYGOTE_FAILED", "the process that workers are forked from ended")
        return self._nodes[node_id]

    async def _fork_fresh(self, title: str, env: dict[str, str], fds: Sequence[int]) -> int:
        zygote = self._settings.new_fresh()
        log.warning("worker_started_without_zygote", title=title)
        try:
            await zygote.start()
            return await zygote.fork(title, env, fds)
        finally:
            self._ending.add(ending := asyncio.create_task(zygote.stop(), context=Context()))
            ending.add_done_callback(self._ending.discard)

    def _note_worker(self, pid: int, node_id: NodeId, title: str) -> None:
        self._workers[pid] = node_id, title
        self._reaper.exit_status(pid).add_done_callback(lambda _code: self._workers.pop(pid, None))

    def workers_of(self, node_id: NodeId) -> list[tuple[int, str]]:
        """(pid, title) of the workers that were forked from it and live."""
        return sorted((pid, title) for pid, (parent, title) in self._workers.items() if parent == node_id)

    def poisoned(self, pid: int) -> None:
        """This worker cannot use CUDA because of what its zygote did."""
        if pid in self._workers:
            node_id = self._workers[pid][0]
            log.error("zygote_poisoned", node=node_id, worker_pid=pid)
            self.tell(ev.Poisoned(node_id))

    # -- decisions ---------------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> list[Action]:
        """What the rules make of it. Forks are the caller's to carry out; everything else is begun here."""
        actions = self.rules.handle(event, time.monotonic())
        for action in actions:
            if isinstance(action, ev.Kill):
                self._kill(action)
            elif isinstance(action, ev.Probe):
                self._spawn(self._probe(action))
            elif isinstance(action, ev.Build):
                self._spawn(self._build(action))
        return [action for action in actions if isinstance(action, ev.Fork | ev.ForkFresh)]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        # In a context of its own: it is nobody's, and a cell's call that began it must not be in its logs.
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _kill(self, action: ev.Kill) -> None:
        process: Forking | None = self._nodes.pop(action.node, None)
        node = self.rules.nodes.get(action.node)
        if process is None and node is not None and node.is_base:
            process = self._bases.get(node.key)
        if process is not None:
            log.info("zygote_ended", node=action.node, why=str(action.why))
            self.figures.ended(action.why)
            process.kill()

    async def _probe(self, action: ev.Probe) -> None:
        result: ProbeResult | None = None
        try:
            if self._settings.prober is not None:
                parent = self._process(action.parent)

                async def fork(imports: Sequence[str], fds: Sequence[int]) -> int:
                    return await parent.fork("ll-probe", {}, fds, "probe", imports)

                result = await self._settings.prober.probe(action.key, fork)
        except (LooseLeafError, OSError) as error:
            log.warning("imports_not_probed", imports=list(action.key.imports), text=str(error))
        except Exception:
            # A fault of ours must not leave the rules waiting: they build one node at a time.
            log.exception("probe_broke", imports=list(action.key.imports))
        if result is not None and result.verdict is not Verdict.CLEAN:
            self.figures.built(result.verdict, 0.0)
        self.tell(ev.Probed(action.node, result))

    async def _build(self, action: ev.Build) -> None:
        began_s = time.monotonic()
        verdict, culprit = None, ""
        node: ZygoteNode | None = None
        try:
            parent = self._process(action.parent)
            node = await ZygoteNode.build(
                parent, f"ll-zygote:{action.node}", action.imports, self._settings.log_path, self._reaper
            )
        except Timeout as error:
            verdict, culprit = Verdict.HANG, str(error.fields.get("name", ""))
        except (LooseLeafError, OSError) as error:
            told = error.fields if isinstance(error, LooseLeafError) else {}
            # One that ended in an import names it; its probe was clean.
            verdict = Verdict(told["verdict"]) if told.get("verdict") in list(Verdict) else Verdict.PASSING
            culprit = str(told.get("culprit") or told.get("name") or "")
            log.warning("zygote_not_built", node=action.node, imports=list(action.imports), text=str(error))
        except Exception:
            log.exception("build_broke", node=action.node, imports=list(action.imports))
        if node is None:
            self.figures.built(verdict or Verdict.ERROR, time.monotonic() - began_s)
            self.tell(ev.BuildFailed(action.node, verdict if culprit else None, culprit))
            return
        seconds = time.monotonic() - began_s
        self.figures.built(Verdict.CLEAN, seconds)
        log.info(
            "zygote_built", node=action.node, parent=action.parent, pid=node.pid, imports=list(action.imports),
            seconds=round(seconds, 3),
        )  # fmt: skip
        # Known before the rules hear of it: they may want it ended at once.
        self._nodes[action.node] = node
        self.tell(ev.Built(action.node, node.seconds, node.modules, node.private_bytes))
        node.exited.add_done_callback(lambda _code: self._node_ended(action.node))

    def _node_ended(self, node_id: NodeId) -> None:
        if self._nodes.pop(node_id, None) is not None:
            log.warning("zygote_died", node=node_id)
            self.tell(ev.NodeDied(node_id))

    # -- memory --------------------------------------------------------------------------------------------------------

    async def _sample_always(self) -> None:
        while True:
            await asyncio.sleep(SAMPLE_INTERVAL_S)
            try:
                await self.sample()
            except Exception:
                # The next one may work; without any, the cap of memory would not be kept.
                log.exception("zygotes_not_sampled")

    async def sample(self) -> None:
        """Asks each zygote that has nothing to do for its memory."""
        found: dict[NodeId, int] = {}
        for node in list(self.rules.nodes.values()):
            try:
                pss_bytes = await self._process(node.id).pss_bytes()
            except LooseLeafError:
                continue  # it ended, or is not there yet
            if pss_bytes is not None:
                found[node.id] = pss_bytes
        self.tell(ev.Sampled(found))
        self.figures.pss_bytes = sum(node.pss_bytes for node in self.rules.nodes.values())

    # -- what people see -----------------------------------------------------------------------------------------------

    def pid_of(self, node: Node) -> int:
        """Of its process; 0 if it has none."""
        if node.is_base:
            return self._bases[node.key].pid if node.key in self._bases else 0
        return self._nodes[node.id].pid if node.id in self._nodes else 0

    async def stop(self) -> None:
        """Ends every tail node; workers live on."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, *self._ending, return_exceptions=True)
        nodes = list(self._nodes.values())
        self._nodes.clear()
        for node in nodes:
            node.kill()
        await asyncio.gather(*(asyncio.shield(node.exited) for node in nodes))


class ForkRequest:
    """One worker that is wanted. `fork` tries once, on channels of its own: `again` tells whether it is worth another.

    Whether the process became a worker is for the caller to say: `served`, or `stillborn`.
    A zygote that ends while it forks may leave a worker behind that nobody knows; it ends with its attempt's channel.
    """

    def __init__(self, cache: ImportCache, number: int, actions: list[Action]) -> None:
        self._cache = cache
        self._number = number
        self._next = self._mine(actions)
        # Seconds of a fork whose process has yet to become a worker.
        self._forked_s: float | None = None

    def _mine(self, actions: list[Action]) -> ev.Fork | ev.ForkFresh | None:
        found = [one for one in actions if isinstance(one, ev.Fork | ev.ForkFresh) and one.request == self._number]
        return found[0] if found else None

    @property
    def again(self) -> bool:
        """There is another way to try."""
        return self._next is not None

    async def fork(self, title: str, env: dict[str, str], fds: list[int]) -> int:
        """As `Zygote.fork`, from the zygote that serves the request best."""
        action, self._next = self._next, None
        assert action is not None, "nothing is left to try"
        self._forked_s = None
        try:
            pid, self._forked_s = await self._cache.carry_out(action, title, env, fds)
        except LooseLeafError as error:
            log.warning("fork_failed", reason=error.reason, request=self._number)
            self._next = self._mine(self._cache.tell(ev.ForkFailed(self._number, _failure(error))))
            raise
        return pid

    def served(self) -> None:
        """The process that was forked last is a worker."""
        assert self._forked_s is not None, "nothing was forked"
        self._cache.tell(ev.Forked(self._number, self._forked_s))

    def stillborn(self) -> None:
        """It ended, or hung, before it said a word; `again` tells whether to try another. Without one: does nothing."""
        if self._forked_s is not None:
            self._forked_s = None
            log.warning("worker_stillborn", request=self._number)
            self._next = self._mine(self._cache.tell(ev.ForkFailed(self._number, ForkFailure.STILLBORN)))

    def close(self) -> None:
        """It is served, or nobody waits for it any more. Idempotent."""
        self._next = None
        self._cache.tell(ev.Abandoned(self._number))


def _failure(error: LooseLeafError) -> ForkFailure:
    if isinstance(error, Timeout):
        return ForkFailure.TIMEOUT
    return ForkFailure.REFUSED if error.reason == "FORK_FAILED" else ForkFailure.GONE
