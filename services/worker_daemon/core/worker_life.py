"""The life of a worker as pure rules (design §5): which stage may follow which, and who may be evicted."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum

from looseleaf.ids import Epoch, ExecutionId, SessionId, Version, WorkerId
from looseleaf.services.worker_daemon.core.worker_ends import WorkerEnd


class Stage(IntEnum):
    """What a worker is doing; the numbers are those of the wire's WorkerStage."""

    FORKED = 1
    IMPORTED = 2
    HOST_READY = 3
    CONTEXT_READY = 4
    DEVICE_READY = 5
    RUNNING = 6
    SAVING = 7
    COMPLETED = 8
    # It was told to end, or has ended.
    GONE = 9


# A cell's state would be lost. A device may be open before Run too; under a lease the worker has a user.
BUSY = frozenset({Stage.RUNNING, Stage.SAVING})


@dataclass
class WorkerFacts:
    """What the daemon knows of one worker process."""

    worker_id: WorkerId
    pid: int
    session_id: SessionId = SessionId("")
    epoch: Epoch = Epoch(0)
    stage: Stage = Stage.FORKED
    version: Version = Version(0)
    prepared_source_hash: str = ""
    prepare_ms: float = 0.0
    # GPUs whose memory it holds.
    gpus: tuple[int, ...] = ()
    # GPUs on which it has a context without data, or gets one now; it cannot go to others any more.
    context_gpus: tuple[int, ...] = ()
    # GPUs to which a preparation is bringing its data; a lease of one of them ends it.
    loading_gpus: tuple[int, ...] = ()
    execution_id: ExecutionId = ExecutionId("")
    resident_bytes: int = 0
    idle_since_s: float = 0.0
    # When its last cell's save ended, while its payloads have lain on a device since; 0 otherwise.
    resident_since_s: float = 0.0
    # Preparations and executions that use it or wait for it.
    users: int = 0
    # Variables that no version has and that live here only; those for which it stays, and until when it does.
    unsaved: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    held_until_s: float = 0.0
    # Why it was ended, if that was decided here.
    end: WorkerEnd | None = None
    # What was installed on this host when its zygote imported, and in its session's kernel when it was first prepared;
    # empty: nobody said.
    environment_id: str = ""
    kernel_environment_id: str = ""
    # It was prepared before Run, and no cell has come to it since.
    prepared_ahead: bool = False

    # Its cell ran out of GPU memory: it takes no other one unless variables live only there.
    spent: bool = False

    def hold(self, unsaved: Iterable[str], kept: Iterable[str], until_s: float) -> None:
        """A save ended: `unsaved` live here only, and for `kept` the worker stays until then (design §3)."""
        self.unsaved, self.kept = frozenset(unsaved), frozenset(kept)
        self.held_until_s = until_s if self.kept else 0.0

    def is_of(self, environment_id: str, kernel_environment_id: str) -> bool:
        """Nothing was installed since it was forked and prepared, as far as these ids tell (design §4)."""
        pairs = ((self.environment_id, environment_id), (self.kernel_environment_id, kernel_environment_id))
        return all(not ours or not now or ours == now for ours, now in pairs)

    @property
    def opened_gpus(self) -> tuple[int, ...]:
        """The only GPUs on which it can run a cell; empty: any."""
        return self.gpus or self.context_gpus

    @property
    def prepared_stage(self) -> Stage:
        """How far preparations alone have taken it."""
        further = not self.has_run and self.stage in (Stage.CONTEXT_READY, Stage.DEVICE_READY)
        return self.stage if further else Stage.HOST_READY

    @property
    def has_run(self) -> bool:
        """A cell has run on it; data that only a preparation brought to its GPUs are no sign of that."""
        return bool(self.execution_id) or (bool(self.gpus) and self.stage is not Stage.DEVICE_READY)

    def bind(self, gpus: tuple[int, ...]) -> None:
        """From now on its data lie, or are on their way to, GPUs that its session's cell has leased."""
        self.stage, self.gpus, self.context_gpus, self.loading_gpus = Stage.CONTEXT_READY, gpus, (), ()

    def open_ahead(self, gpus: tuple[int, ...], *, load: bool) -> None:
        """A preparation begins to open these GPUs, and to bring its data there if `load`."""
        self.context_gpus, self.loading_gpus = gpus, gpus if load else ()

    def opened_ahead(self, *, opened: bool, now_s: float) -> None:
        """It has done so; `opened` False: there was no device to open yet."""
        gpus, loaded = self.context_gpus, bool(self.loading_gpus)
        self.loading_gpus = ()
        if not opened:
            self.context_gpus = ()
        elif loaded:
            self.stage, self.gpus, self.context_gpus, self.resident_since_s = Stage.DEVICE_READY, gpus, (), now_s
        else:
            self.stage = Stage.CONTEXT_READY

    def release(self, names: Iterable[str]) -> None:
        """Nobody will ask for these any more."""
        self.hold(self.unsaved.difference(names), self.kept.difference(names), self.held_until_s)

    def held(self, now_s: float) -> bool:
        """It makes way for nobody."""
        return now_s < self.held_until_s

    @property
    def disposable(self) -> bool:
        """No cell runs and no save is under way: if it is killed, at worst a preparation is lost."""
        return self.stage not in BUSY

    @property
    def evictable(self) -> bool:
        """Nothing is lost if it goes: it is disposable, and nobody is about to use it."""
        return self.disposable and self.stage is not Stage.GONE and self.users == 0


@dataclass(frozen=True)
class KeepRules:
    """How long and how many idle workers stay. `keep_s` seconds after its last use an idle worker ends."""

    keep_s: float
    workers_max: int


@dataclass
class WorkerRoster:
    """All live workers of the host; decides who goes, ends nobody itself."""

    rules: KeepRules
    workers: dict[WorkerId, WorkerFacts] = field(default_factory=dict)

    def expired(self, now_s: float) -> list[WorkerFacts]:
        """Idle workers past their time, longest idle first."""
        return sorted(
            (w for w in self.workers.values() if self._idle_too_long(w, now_s)),
            key=lambda w: w.idle_since_s,
        )

    def _idle_too_long(self, worker: WorkerFacts, now_s: float) -> bool:
        return worker.evictable and not worker.held(now_s) and now_s - worker.idle_since_s >= self.rules.keep_s

    def to_make_room(self, now_s: float) -> WorkerFacts | None:
        """The worker to end, or to wait for, before one more is forked; None if nobody may go.

        Those that are ending come first, then completed ones, of which those with variables that no version has come
        last, then prepared ones; longest idle first (design §6).
        """
        workers = self.workers.values()
        candidates = [w for w in workers if w.stage is Stage.GONE or (w.evictable and not w.held(now_s))]
        return min(
            candidates,
            key=lambda w: (w.stage is not Stage.GONE, w.stage is not Stage.COMPLETED, bool(w.kept), w.idle_since_s),
            default=None,
        )

    def on_gpus(self, gpus: Iterable[int], *, but: WorkerId | None) -> list[WorkerFacts]:
        """Workers that hold memory of these GPUs, or soon will, also those that are ending.

        They make way for a lease of `but`. One that has a context only stays.
        """
        wanted = set(gpus)
        return [
            w for w in self.workers.values() if wanted & {*w.gpus, *w.loading_gpus} and w.worker_id != but]

    def of_session(self, session_id: SessionId) -> list[WorkerFacts]:
        """The session's workers, newest first."""
        return [w for w in reversed(self.workers.values()) if w.session_id == session_id]
