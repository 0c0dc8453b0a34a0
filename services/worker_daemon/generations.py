"""The host's zygotes: one tree that forks, those of earlier environments until their last fork is answered (design §5).

Each generation is a base and what the import cache forks from it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from typing import Any, Final

import structlog

from looseleaf.environment import Environment
from looseleaf.errors import LooseLeafError, Unavailable
from looseleaf.services.worker_daemon.core import zygote_events as ev
from looseleaf.services.worker_daemon.core.generations import Action, GenerationRules, StartZygote
from looseleaf.services.worker_daemon.core.zygote_nodes import TreeKey
from looseleaf.services.worker_daemon.import_cache import ForkRequest, ImportCache
from looseleaf.services.worker_daemon.poison import is_poison
from looseleaf.services.worker_daemon.zygote import Zygote

log = structlog.get_logger()

# How often the environment is looked at while nobody needs a worker: an install then costs the next cell no wait.
LOOK_INTERVAL_S: Final = 2.0


class ZygoteGenerations:
    """Forks workers from packages as they are installed now.

    `new_zygote` makes a base that is not started, with these imports besides the configured ones; `cache` forks further
    zygotes from it, and workers. `python` and `tenant`: of all its trees, as in TreeKey.
    """

    def __init__(
        self, new_zygote: Callable[[tuple[str, ...]], Zygote], cache: ImportCache, python: str = "", tenant: str = ""
    ) -> None:
        self.cache = cache
        self._python, self._tenant = python, tenant
        self._new_zygote = new_zygote
        self._rules = GenerationRules()
        self._zygotes: dict[int, Zygote] = {}
        # As the newest zygote that was ready told it: the folders may be others after an install.
        self._environment: Environment | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._stopped = False
        # Called each time that a zygote is given up for another one.
        self.on_evicted: Callable[[], None] = lambda: None
        # One look after the other: an older answer must not come last and bring back what was there before.
        self._looking = asyncio.Lock()

    async def start(self) -> None:
        """Starts the first zygote and waits until it is ready. Raises as `Zygote.start`."""
        await self._add(1).start()
        self.cache.start()
        self._watcher = asyncio.create_task(self._watch(), context=Context())

    def _key(self, number: int) -> TreeKey:
        return TreeKey(number, self._python, self._tenant)

    def _add(self, number: int) -> Zygote:
        # What the tree before it had learned.
        key, before = self._key(number), self._key(number - 1)
        learned = self.cache.learned(before)
        log.info("tree_opened", generation=number, python=key.python, tenant=key.tenant, learned=list(learned))
        zygote = self._zygotes[number] = self._new_zygote(tuple(learned))
        self.cache.open(key, zygote, learned, before)

        def ready() -> None:
            self._environment = zygote.environment or self._environment
            self._rules.confirmed(number, zygote.environment_id)
            self.cache.base_ready(key)

        zygote.on_ready = ready
        zygote.on_down = lambda hopeless: self.cache.base_down(key, hopeless)
        return zygote

    @property
    def pids(self) -> list[int]:
        """Of the zygotes that live, bases first, oldest first."""
        bases = [zygote.pid for _, zygote in sorted(self._zygotes.items()) if zygote.pid]
        return bases + self.cache.tail_pids

    @property
    def imports(self) -> tuple[str, ...]:
        """Modules that every worker forked now has from the start."""
        return self._zygotes[self._rules.newest.number].imports if self._zygotes else ()

    async def environment_id(self) -> str:
        """What is installed now; a worker that was forked under another id must not begin a cell. Empty: unknown."""
        async with self._looking:
            current = await self._look()
            self._carry_out(self._rules.seen(current))
            return current

    @asynccontextmanager
    async def request(self, imports: Iterable[str]) -> AsyncIterator[ForkRequest]:
        """A worker that should have these imports from the start, as far as a zygote has them; see `ForkRequest`.

        After an install its fork waits for the new zygote as long as one may take to start.
        """
        await self.environment_id()
        if self._stopped:
            raise Unavailable("ZYGOTE_DOWN", "this host is being stopped; nothing was run")
        number = self._rules.fork_began()
        request = self.cache.request(self._key(number), imports)
        try:
            yield request
        finally:
            request.close()
            self._carry_out(self._rules.fork_ended(number))

    def failed(self, pid: int, error: BaseException) -> None:
        """What was asked of a worker failed: its zygote is given up if it is why the worker cannot use CUDA.

        An import at which the worker ended or was late is kept out of zygotes for a while.
        """
        if is_poison(error):
            self.spoiled(pid)
        if isinstance(error, LooseLeafError) and (name := error.fields.get("importing")):
            self.cache.tell(ev.Doubted(self._key(self._rules.newest.number), str(name)))

    def spoiled(self, pid: int) -> None:
        """A worker found that it cannot use CUDA because of what its zygote did, which is given up."""
        self.cache.poisoned(pid)

    def imported(self, seconds: Mapping[str, float]) -> None:
        """A worker imported what its zygote lacked: such a time is what a zygote that has it would spare."""
        self.cache.tell(ev.Imported(seconds))

    async def _look(self) -> str:
        if self._environment is None:
            return self._rules.newest.environment_id
        return await asyncio.to_thread(self._environment.identify)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_INTERVAL_S)
            async with self._looking:
                self._carry_out(self._rules.glimpsed(await self._look()))

    def _carry_out(self, actions: list[Action]) -> None:
        if self._stopped:
            return
        for action in actions:
            if isinstance(action, StartZygote):
                log.info("environment_changed", generation=action.number)
                self._add(action.number).begin()
            else:
                self.on_evicted()
                self.cache.close(self._key(action.number))
                self._start(self._zygotes.pop(action.number).stop())

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        # In a context of its own: it is nobody's, and a cell's call that began it must not be in its logs.
        task = asyncio.create_task(work, context=Context())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Ends every zygote; workers forked from them go on."""
        self._stopped = True
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        await self.cache.stop()
        await asyncio.gather(*(zygote.stop() for zygote in self._zygotes.values()), *self._tasks)
