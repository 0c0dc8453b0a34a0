"""Prometheus figures of one host beside those of its RPCs: starts, saves, preparations, workers, the import cache."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from looseleaf.rpc.metrics import BYTES_BUCKETS, LATENCY_BUCKETS_S, START_BUCKETS_S, prepare_seconds
from looseleaf.services.worker_daemon.core.worker_ends import WorkerEnd
from looseleaf.services.worker_daemon.core.zygote_facts import Verdict
from looseleaf.services.worker_daemon.generations import ZygoteGenerations
from looseleaf.services.worker_daemon.gpu_memory import GpuMemory
from looseleaf.services.worker_daemon.reaper import STATUS_UNKNOWN
from looseleaf.v1 import scheduler_pb2

WORKER_STAGES: Final = ("import", "restore")
# Of the base, of nodes below it, and of a worker that no zygote could serve.
FORK_DEPTHS: Final = ("0", "1", "2", "3", "4+", "fresh")
PREFETCH_RESULTS: Final = ("used", "stale", "wasted")


class DaemonMetrics:
    """No label ever has a session's id or another word of a person's: their number is bounded by this file."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        registry = registry or CollectorRegistry()
        self._start = Histogram(
            "looseleaf_start_latency_seconds", "Time from Run to the first statement of a GPU cell", ["path"],
            buckets=START_BUCKETS_S, registry=registry)
        self._prepare = prepare_seconds(registry)
        self._restore = Histogram(
            "looseleaf_restore_bytes", "Bytes of variables that a preparation mapped", buckets=BYTES_BUCKETS,
            registry=registry)
        self._save = Histogram(
            "looseleaf_save_seconds", "Time from a GPU cell's end to its staged version", buckets=LATENCY_BUCKETS_S,
            registry=registry)
        self._dirty = Histogram(
            "looseleaf_save_dirty_bytes", "Bytes that the save of a GPU cell moved", buckets=BYTES_BUCKETS,
            registry=registry)
        self._busy = Counter(
            "looseleaf_gpu_busy_seconds", "GPU-seconds from a cell's first use of its GPU to the end of its save",
            registry=registry)
        self._prefetch = Counter(
            "looseleaf_prefetch", "Workers that were prepared before Run, by what became of that", ["result"],
            registry=registry)
        self._misses = Counter(
            "looseleaf_recipe_miss", "Cells that needed what their recipe did not say", ["kind"], registry=registry)
        self._exits = Counter("looseleaf_worker_exit", "Workers that ended, by why", ["reason"], registry=registry)
        self._nodes = Gauge(
            "looseleaf_import_cache_nodes", "Zygotes that live: warm processes to fork from", registry=registry)
        self._hits = Counter(
            "looseleaf_import_cache_hits", "Workers whose imports their zygote all had", registry=registry)
        self._lacks = Counter(
            "looseleaf_import_cache_misses", "Workers that had to import more than their zygote had", registry=registry)
        self._evictions = Counter(
            "looseleaf_import_cache_evictions", "Zygotes that were ended, for room or after an install",
            registry=registry)
        self._forks = Counter(
            "looseleaf_import_cache_forks", "Workers, by how deep in the tree their zygote was", ["depth"],
            registry=registry)
        self._fork_seconds = Histogram(
            "looseleaf_import_cache_fork_seconds", "Time from the request to a zygote to its answer",
            buckets=LATENCY_BUCKETS_S, registry=registry)
        self._builds = Counter(
            "looseleaf_import_cache_builds", "Imports that were to get a zygote, by what a probe or the build said",
            ["verdict"], registry=registry)
        self._build_seconds = Histogram(
            "looseleaf_import_cache_build_seconds", "Time from the fork of a zygote to its readiness, imports included",
            buckets=LATENCY_BUCKETS_S, registry=registry)
        self._pss = Gauge(
            "looseleaf_import_cache_pss_bytes", "Memory of all zygotes, shared pages counted once", registry=registry)
        self._gpu_used = Gauge(
            "looseleaf_gpu_memory_used_bytes", "Memory in use on a GPU, by whomever; of a virtual one a lower bound",
            ["gpu"], registry=registry)
        for result in PREFETCH_RESULTS:
            self._prefetch.labels(result)
        for kind in ("var", "import", "device"):
            self._misses.labels(kind)

    def follow(self, zygotes: ZygoteGenerations) -> None:
        """Shows the import cache of this host."""
        figures = zygotes.cache.figures
        self._nodes.set_function(lambda: len(zygotes.pids))
        self._pss.set_function(lambda: figures.pss_bytes)
        zygotes.on_evicted = self._evictions.inc
        figures.on_fork, figures.on_build = self._cache_forked, self._cache_built
        figures.on_end = lambda _why: self._evictions.inc()
        for depth in FORK_DEPTHS:
            self._forks.labels(depth)

    def follow_gpus(self, memory: GpuMemory, count: int) -> None:
        """Shows the memory of this host's GPUs."""
        for index in range(count):
            self._gpu_used.labels(str(index)).set_function(functools.partial(_used, memory, index))

    def _cache_forked(self, depth: int | None, seconds: float, lacking: bool) -> None:
        self._forks.labels("fresh" if depth is None else FORK_DEPTHS[min(depth, len(FORK_DEPTHS) - 2)]).inc()
        self._fork_seconds.observe(seconds)
        (self._lacks if lacking else self._hits).inc()

    def _cache_built(self, verdict: Verdict, seconds: float) -> None:
        self._builds.labels(str(verdict)).inc()
        if verdict is Verdict.CLEAN:
            self._build_seconds.observe(seconds)

    def forked(self, fork_s: float) -> None:
        """A worker was forked and said hello."""
        self._prepare.labels("fork").observe(fork_s)

    def prepared(self, stage_ms: Mapping[str, float], mapped_bytes: int) -> None:
        """A worker holds a recipe's closures."""
        for stage in WORKER_STAGES:
            if stage in stage_ms:
                self._prepare.labels(stage).observe(stage_ms[stage] / 1000)
        self._restore.observe(mapped_bytes)

    def opened(self, stage_ms: Mapping[str, float]) -> None:
        """A preparation went on to a device, if it did."""
        if "attach" in stage_ms:
            self._prepare.labels("attach").observe(stage_ms["attach"] / 1000)

    def prefetched(self, result: str) -> None:
        """What became of a worker that was prepared before Run: one of PREFETCH_RESULTS."""
        self._prefetch.labels(result).inc()

    def missed(self, kinds: Iterable[str]) -> None:
        """What a cell needed that its recipe lacks, "var" or "import", or the "device" that it did not need."""
        for kind in kinds:
            self._misses.labels(kind).inc()

    def cell_started(self, path: str, start_ms: float) -> None:
        """The first statement runs; `path` is a StartPath's name."""
        self._start.labels(path.removeprefix("START_PATH_").lower()).observe(start_ms / 1000)

    def cell_saved(self, figures: scheduler_pb2.ExecutionFigures) -> None:
        """The cell's version is staged."""
        self._save.observe(figures.save_ms / 1000)
        self._dirty.observe(figures.bytes_moved)

    def gpus_used(self, gpu_s: float) -> None:
        """A cell used GPUs for so many GPU-seconds."""
        self._busy.inc(gpu_s)

    def worker_ended(self, how: str, end: WorkerEnd | None) -> None:
        """A worker process is gone; both as `WorkerProcess.lost` and `WorkerFacts.end` say."""
        self._exits.labels(exit_reason(how, end)).inc()


def exit_reason(how: str, end: WorkerEnd | None) -> str:
    """One word for why a worker ended: the decision if there was one, else the signal or kind of exit code."""
    if end is not None:
        return end.word
    if how == STATUS_UNKNOWN:
        return "unknown"
    if how.startswith("was killed by SIG"):
        return how.removeprefix("was killed by ").split()[0].rstrip(":")
    if how.startswith("was killed by"):
        return "other_signal"
    return "exited" if how == "exited with code 0" else "exit_code"


def _used(memory: GpuMemory, index: int) -> float:
    """Bytes, NaN if nobody tells."""
    used = memory.used_bytes
    return float(used[index]) if index < len(used) else math.nan
