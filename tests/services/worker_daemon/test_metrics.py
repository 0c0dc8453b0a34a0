from __future__ import annotations

from typing import Any

import pytest
from daemon_fakes import SESSION, Parts, ScriptedWorker, saved_reply, until, within
from execution_bench import ONE, RECIPE, Bench
from prometheus_client import CollectorRegistry

from looseleaf.services.worker_daemon.core import worker_ends
from looseleaf.services.worker_daemon.core.worker_ends import END_WORDS, WorkerEnd
from looseleaf.services.worker_daemon.core.zygote_events import KillWhy
from looseleaf.services.worker_daemon.core.zygote_facts import Verdict
from looseleaf.services.worker_daemon.execution_figures import misses
from looseleaf.services.worker_daemon.import_cache_figures import CacheFigures
from looseleaf.services.worker_daemon.metrics import FORK_DEPTHS, DaemonMetrics, exit_reason
from looseleaf.services.worker_daemon.preparation import prepare_ahead
from looseleaf.services.worker_daemon.reaper import describe_exit


class Figures:
    """What a pool's metrics show."""

    def __init__(self, bench: Bench) -> None:
        self.registry = CollectorRegistry()
        bench.pool.metrics = DaemonMetrics(self.registry)

    def __call__(self, name: str, **labels: str) -> float:
        return self.registry.get_sample_value(f"looseleaf_{name}", labels) or 0.0


@pytest.fixture
def figures(bench: Bench) -> Figures:
    return Figures(bench)


async def test_cell_moves_the_figures_of_its_start_its_save_and_its_gpu(bench: Bench, figures: Figures) -> None:
    async def run(worker: ScriptedWorker, request: Any) -> Any:
        await worker.tell("started", request)
        await worker.tell("ended", request, reply={"status": "ok"}, run_s=0.5, first_touch_s=0.0)
        return saved_reply()

    bench.parts.script.run = run
    await bench.run(elapsed_ms=250.0)
    assert figures("start_latency_seconds_count", path="cold") == 1
    assert figures("start_latency_seconds_sum", path="cold") >= 0.25
    assert figures("save_seconds_count") == figures("save_dirty_bytes_count") == 1
    assert figures("save_dirty_bytes_sum") == 100
    assert figures("gpu_busy_seconds_total") > 0
    for stage in ("fork", "import", "restore"):
        assert figures("prepare_seconds_count", stage=stage) == 1
    assert figures("restore_bytes_sum") == 7


async def test_cell_that_is_not_saved_is_no_save(bench: Bench, figures: Figures) -> None:
    await bench.run(context=b"\xc1")
    assert figures("save_seconds_count") == 0


async def test_prepared_worker_is_used_stale_or_wasted_once(bench: Bench, figures: Figures) -> None:
    def results() -> tuple[float, ...]:
        return tuple(figures("prefetch_total", result=result) for result in ("used", "stale", "wasted"))

    async def prepare(worker_id: Any = None) -> Any:
        return (await within(prepare_ahead(bench.pool, worker_id, SESSION, ONE, RECIPE))).worker.facts.worker_id

    worker_id = await prepare()
    await bench.run(worker_id=worker_id, path=1)
    assert results() == (1, 0, 0)
    await bench.run(worker_id=worker_id, path=2)
    assert results() == (1, 0, 0)
    await prepare(worker_id)
    await bench.run(worker_id=worker_id, path=2)
    assert results() == (1, 1, 0)
    await prepare(worker_id)
    await prepare(worker_id)
    assert results() == (1, 1, 1)
    assert await within(bench.pool.evict(worker_id, worker_ends.idle(3)))
    await until(lambda: not bench.pool.facts())
    assert results() == (1, 1, 2)
    assert figures("worker_exit_total", reason="idle") == 1


async def test_pool_without_a_registry_of_its_service_counts_for_itself(parts: Parts) -> None:
    assert parts.pool().metrics is not parts.pool().metrics


@pytest.mark.parametrize(
    ("code", "reason"), [(0, "exited"), (3, "exit_code"), (-9, "SIGKILL"), (-11, "SIGSEGV"), (-99, "other_signal")]
)
def test_worker_that_ended_by_itself_is_named_by_how(code: int, reason: str) -> None:
    assert exit_reason(describe_exit(code), None) == reason


def test_decision_counts_for_more_than_how_the_process_went() -> None:
    assert exit_reason("was killed by SIGKILL", worker_ends.cut_off("It was asked to stop.")) == "cell_cut_off"


def test_words_of_all_decisions_are_known() -> None:
    made = [end for end in vars(worker_ends).values() if isinstance(end, WorkerEnd)]
    made += [worker_ends.idle(3), worker_ends.cut_off("why")]
    assert {end.word for end in made} == END_WORDS and len({end.sentence for end in made}) == len(made)


@pytest.mark.parametrize(
    ("ended", "kinds"),
    [
        ({"reply": {"status": "ok"}, "first_touch_s": 0.1}, []),
        ({"reply": {"status": "ok"}, "first_touch_s": None}, ["device"]),
        ({"reply": {"status": "ok"}, "first_touch_s": 0.1, "late_imports": 2}, ["import"]),
        ({"reply": {"status": "error", "evalue": "NOT_RESTORED: `x` is saved"}, "first_touch_s": 0.1}, ["var"]),
        ({"reply": {"status": "error", "evalue": "my own"}, "first_touch_s": 0.1}, []),
    ],
)
def test_misses_are_told_from_what_the_worker_says(ended: dict[str, Any], kinds: list[str]) -> None:
    assert misses({"t": "ended", **ended}) == kinds


def test_import_cache_counts_forks_builds_and_ends() -> None:
    class Cache:
        figures = CacheFigures()

    class Zygotes:
        pids = (1, 2)
        cache = Cache()
        on_evicted: Any = None

    registry = CollectorRegistry()
    metrics, zygotes = DaemonMetrics(registry), Zygotes()
    metrics.follow(zygotes)  # type: ignore[arg-type]
    figures = zygotes.cache.figures
    figures.pss_bytes = 7
    figures.forked(0, 0.1, lacking=True)
    figures.forked(9, 0.1, lacking=False)
    figures.forked(None, 0.1, lacking=True)
    figures.built(Verdict.CLEAN, 0.5)
    figures.built(Verdict.CUDA, 0.0)
    figures.ended(KillWhy.EVICTED)
    zygotes.on_evicted()
    shown = [registry.get_sample_value(f"looseleaf_import_cache_{name}") for name in (
        "nodes", "hits_total", "misses_total", "evictions_total", "pss_bytes", "build_seconds_count")]
    assert shown == [2, 1, 2, 2, 7, 1]
    depths = {depth: registry.get_sample_value("looseleaf_import_cache_forks_total", {"depth": depth})
              for depth in FORK_DEPTHS}
    assert depths == {"0": 1, "1": 0, "2": 0, "3": 0, "4+": 1, "fresh": 1}
    assert registry.get_sample_value("looseleaf_import_cache_builds_total", {"verdict": "cuda"}) == 1
