"""The kernel's session: its state, its log, its link to the cluster (design §3, §9)."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from looseleaf.checkpoint.manifest import Manifest
from looseleaf.checkpoint.stub import tell_whereabouts
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.errors import Conflict, InvalidArgument, LooseLeafError, Unavailable
from looseleaf.ids import Epoch, SessionId, Version, new_execution_id, new_session_id
from looseleaf.kernel.commit_policy import CommitPolicy
from looseleaf.kernel.followed_versions import FollowedVersions
from looseleaf.kernel.frontend_log import FrontendLog
from looseleaf.kernel.give_way import GaveWay, GiveWay
from looseleaf.kernel.holders import RELEASE_AT_END_S, Holders, Released
from looseleaf.kernel.link import DaemonLink
from looseleaf.kernel.live_facts import LiveFacts, SavedFacts
from looseleaf.kernel.pool_devices import PoolDevices
from looseleaf.kernel.run_log import RunLog
from looseleaf.kernel.session_news import SessionNews
from looseleaf.kernel.threads import LeftThreads
from looseleaf.kernel.title import title_of
from looseleaf.kernel_config import ConfigError, KernelConfig
from looseleaf.protocol import fields
from looseleaf.protocol.frames import Message
from looseleaf.protocol.state_io import LinkStateIO
from looseleaf.protocol.threaded import ThreadedLink
from looseleaf.recipe.name_facts import NameFacts

log = logging.getLogger("looseleaf.kernel")

def load_config() -> tuple[KernelConfig, LooseLeafError | None]:
    """This process's configuration, or the defaults and what is wrong with it: CPU cells must run all the same."""
    try:
        return KernelConfig.load(), None
    except ConfigError as error:
        text = f"{error.message}. CPU cells run as usual; correct it and restart the kernel before a GPU cell"
        return KernelConfig(run_dir=os.devnull), InvalidArgument("CONFIG_INVALID", text)


class KernelSession(FollowedVersions):
    """State, log and link of one notebook. Used on the kernel's main thread unless a method says otherwise."""

    def __init__(
        self,
        namespace: dict[str, Any],
        hidden: Callable[[str], bool],
        config: KernelConfig,
        problem: LooseLeafError | None = None,
    ) -> None:
        # A session that was named is continued; else a restarted kernel begins an empty one, as people expect.
        chosen = os.environ.get("LOOSELEAF_SESSION", "")
        self._continues = bool(chosen)
        self.session_id = SessionId(chosen) if chosen else new_session_id()
        self.config = config
        self.runs = RunLog()
        self.frontend = FrontendLog(self.runs, config.request_timeout_s)
        self.commits = CommitPolicy(config.commit_idle)
        self.threads = LeftThreads()
        self.give_way = GiveWay()
        # How long the process of each GPU cell is kept after it, as the person has asked.
        self.pinned_s = 0.0
        # The GPU cell that was submitted and whose outcome is not known: a daemon that comes new must not fence it.
        self.running = ""
        # One was kept for a time: the others' GPU, once nobody is here any more.
        self.keeps = False
        self.tracker: StateTracker | None = None
        # Entered while variables are bound anew: stand-ins for values, values for stand-ins.
        self.rebinding: Callable[[], AbstractContextManager[None]] = nullcontext
        self._namespace = namespace
        self._hidden = hidden
        self._on_event: Callable[[Message], None] = lambda _message: None
        self._link = DaemonLink(config, self._pass_event)
        self._pool = PoolDevices()
        # Why no cluster can be looked for; GPU cells say so.
        self._problem = problem
        self._io: LinkStateIO | None = None
        self._saved_facts: SavedFacts | None = None
        self._news = SessionNews()
        self.holders = Holders(self.send)
        tell_whereabouts(lambda entry: self.holders.where(entry, self.epoch))

    def listen(self, on_event: Callable[[Message], None]) -> None:
        """Who gets the events of the running cell; called on the link's reader thread."""
        self._on_event = on_event

    def _pass_event(self, message: Message) -> None:
        self._on_event(message)

    # -- the cluster -----------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """What people call the session."""
        return title_of(os.environ, self._namespace)

    def connect(self, *, insist: bool = True) -> ThreadedLink:
        """The link to the daemon. Raises Unavailable `NO_CLUSTER`.

        `insist`: somebody needs it now; else a try that failed a moment ago counts.
        """
        if self._problem is not None:
            raise self._problem
        link, new = self._link.connect(self.session_id, self.title, insist=insist, running=self._running)
        if new:
            try:
                self._joined(link)
            except BaseException:
                # Half joined is not joined: the next try begins anew.
                self._link.close()
                raise
        return link

    @property
    def _running(self) -> tuple[str, int] | None:
        return (self.running, int(self.epoch)) if self.running else None

    async def open_aside(self, *, insist: bool) -> None:
        """Has a connection made that `connect` then takes; meanwhile the main thread serves others. Raises as it."""
        if self._problem is None:
            await self._link.open_aside(self.session_id, self.title, insist=insist, running=self._running)

    async def connected(self) -> ThreadedLink:
        """As `connect`; the main thread serves others while a daemon does not answer."""
        await self.open_aside(insist=True)
        return self.connect()

    def try_connect(self) -> bool:
        """Whether there is a cluster; never raises."""
        try:
            self.connect(insist=False)
        except LooseLeafError as error:
            log.info("no_cluster %s", error)
            return False
        return True

    def _joined(self, link: ThreadedLink) -> None:
        welcome = self._link.welcome
        assert welcome is not None
        self.session_id = SessionId(welcome.session_id)
        self._pool.install(welcome, self.config.kernel_socket().parent, self.device_bytes)
        io = LinkStateIO(link)
        # A store without versions has lost the session, as a new cluster has: it gets all that is here.
        if self.tracker is None or not welcome.version:
            self._close_io()
            self.tracker = StateTracker(
                self._namespace, io, session_id=self.session_id, epoch=Epoch(welcome.epoch), hidden=self._hidden,
                is_kernel=True,
            )  # fmt: skip
            self.tracker.on_commit = self.give_way.hold
            # Looked up at each call: the kernel sets it after this session began.
            self.tracker.rebinding = lambda: self.rebinding()  # noqa: PLW0108
            self.changed()
            if welcome.version and self._continues:
                self._take_head()
        else:
            self.tracker.io, self.tracker.epoch = io, Epoch(welcome.epoch)
            self._close_io()
            if welcome.version != self.tracker.version:
                self._take_head()
        self._io = io
        self.runs.acknowledged(1)
        log.info("joined session=%s host=%s version=%s", self.session_id, welcome.host_id, welcome.version)

    def _close_io(self) -> None:
        if self._io is not None:
            self._io.close()
            self._io = None

    def device_bytes(self, index: int | None = None) -> int:
        """What the newest version keeps on the cell's GPU of this number, None for all."""
        manifest, wanted = self.manifest, "cuda" if index is None else f"cuda:{index}"
        payloads = manifest.payloads.values() if manifest is not None else ()
        return sum(p.size_bytes for p in payloads if wanted in (p.device, p.device.partition(":")[0]))

    @property
    def pool(self) -> tuple[int, int]:
        """How many GPUs the pool has and the bytes of memory of each, as far as they are known."""
        return (self._pool.gpus, self._pool.memory_bytes) if self._link.current is not None else (0, 0)

    @property
    def version(self) -> Version:
        """The newest version that this kernel knows, 0 before the first."""
        return self.tracker.version if self.tracker is not None else Version(0)

    @property
    def epoch(self) -> Epoch:
        """The epoch in which this kernel owns the session."""
        return self.tracker.epoch if self.tracker is not None else Epoch(0)

    @property
    def manifest(self) -> Manifest | None:
        """Its manifest; None before the first version."""
        return self.tracker.manifest if self.tracker is not None and self.tracker.version else None

    @property
    def joined(self) -> bool:
        """Whether it is connected to a cluster; from any thread."""
        return self._link.current is not None and self.tracker is not None

    @property
    def has_gpus(self) -> bool:
        """Whether the cluster that this kernel is connected to has GPUs, real or virtual."""
        return self._link.live is not None and self._pool.has_any

    def facts(self) -> Mapping[str, NameFacts]:
        """What is known of every live name, live values and stubs alike; loads nothing."""
        bindings = self.tracker.saved_bindings if self.tracker is not None else {}
        manifest = self.manifest
        if manifest is None:
            self._saved_facts = None
        elif self._saved_facts is None or self._saved_facts.manifest is not manifest:
            self._saved_facts = SavedFacts(manifest)
        return LiveFacts(self._namespace, self._hidden, self._saved_facts, bindings)

    # -- commits ---------------------------------------------------------------------------------------

    def changed(self) -> None:
        """State may have changed."""
        self.commits.changed(time.monotonic())

    def commit_delay_s(self) -> float:
        """The time in seconds after which an idle kernel commits."""
        return self.commits.delay_s(time.monotonic())

    def commit(self, needed: Collection[str] | None = None) -> None:
        """Saves what changed since the last commit; does nothing if nothing can have.

        `needed`: variables that somebody waits for, None for all. Large memory that they do not need may stay here; the
        next commit for all, when the kernel is idle, saves it.
        Raises the store's or the daemon's error; the state then stays uncommitted and is saved with the next commit.
        """
        if self.tracker is None or self._link.live is None:
            return
        if not (self.commits.has_changes or self.threads.alive() or self.tracker.manifest.lacks_bytes_of(needed)):
            return
        began_s = time.monotonic()
        try:
            report = self.tracker.save(new_execution_id(), "cpu", needed=needed)
        except Conflict:
            # A worker's commit that this kernel has not heard of, as after a lost connection.
            self._take_head()
            report = self.tracker.save(new_execution_id(), "cpu", needed=needed)
        self.commits.committed(lazy=report.lazy_bytes > 0)
        self.holders.follow(self.tracker.manifest)
        self.runs.saved(report.version)
        log.info(
            "committed version=%s dirty=%s/%s lazy_bytes=%s ms=%.1f",
            report.version, report.dirty_regions, report.total_regions, report.lazy_bytes,
            (time.monotonic() - began_s) * 1000,
        )  # fmt: skip

    def commit_quietly(self, needed: Collection[str] | None = None) -> None:
        """As `commit`, for times when nobody waits for it: it gives way to a cell that arrives.

        A failure is logged and tried again with the next commit.
        """
        try:
            with self.give_way.breakable("cell"):
                self._commit_logged(needed)
        except GaveWay:
            self.commits.gave_way()
            log.info("commit_gave_way")

    def _commit_logged(self, needed: Collection[str] | None = None) -> None:
        try:
            self.commit(needed)
        except LooseLeafError as error:
            log.warning("commit_failed %s", error)
        except Exception:
            # On the event loop nobody else would see it, and the notebook must not.
            log.exception("commit_failed")

    # -- requests to the daemon ------------------------------------------------------------------------

    def send(self, type_: str, body: Message) -> Future[Any]:
        """A request to the daemon that is there; from any thread. Raises Unavailable `NO_CLUSTER`."""
        if (link := self._link.current) is None:
            raise Unavailable("NO_CLUSTER", "no LooseLeaf cluster is connected")
        return link.request_future(type_, body)

    def keep_s(self, wished_s: float | None) -> float:
        """How long the process of a cell with this wish is kept after it."""
        keep_s = self.pinned_s if wished_s is None else wished_s
        self.keeps = self.keeps or keep_s > 0
        return keep_s

    def release_workers(self) -> Released:
        """Ends the session's idle GPU processes on all hosts, also those kept for variables.

        Raises Unavailable `NO_CLUSTER` or the daemon's error.
        """
        link = self.connect()
        self.pinned_s = 0.0
        names = self.holders.names()
        self.holders.release_all()
        body, _fds = link.request("evict_workers", {}, timeout_s=self.config.request_timeout_s)
        return Released(fields.integer(body, "evicted"), names, fields.texts(body, "silent_hosts", []))

    def prepare(self, message: Mapping[str, Any]) -> dict[str, Any]:
        """Has a cell prepared before Run. Blocks; from any thread but the main one. Raises LooseLeafError."""
        link = self._link.current
        if link is None or self.tracker is None:
            raise Unavailable("NO_CLUSTER", "no LooseLeaf cluster is connected; nothing was prepared")
        return self.frontend.prepare(link, message)

    def close(self) -> None:
        """Commits what is left, if anybody may want it, then leaves the cluster.

        The last commit gives way to nobody: no other follows it.
        """
        if self.config.commit_idle:
            self._commit_logged()
        self.holders.release_all()
        if self.keeps:
            try:
                wait([self.send("evict_workers", {})], RELEASE_AT_END_S)
            except LooseLeafError as error:
                # Their time ends by itself.
                log.info("workers_not_released %s", error)
        self._leave()

    def _leave(self) -> None:
        self._link.close()
        self._close_io()
