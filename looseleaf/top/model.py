"""From one snapshot to the rows that `looseleaf top` shows; no I/O, no clock: times come with the snapshot.

A snapshot is what `ClusterEye.look` gives. What did not answer is None there and gives no rows here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from looseleaf.units import format_bytes

Plain = Mapping[str, Any]

ID_CHARS: Final = 12
# Parts of a run's bar: preparation, run, save.
BAR_PARTS: Final = "▒█░"


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU. `state`: "free", "warm" (an idle worker's memory is on it), a worker's stage, or the host's liveness."""

    host: str
    gpu: str
    name: str
    state: str
    session: str
    execution: str
    memory: str


@dataclass(frozen=True, slots=True)
class QueueRow:
    """One run that waits."""

    position: int
    session: str
    priority: str
    waited: str
    reason: str


@dataclass(frozen=True, slots=True)
class SessionRow:
    """One saved session; `where`: the GPUs and stages of its workers."""

    session: str
    title: str
    version: str
    changed: str
    where: str


@dataclass(frozen=True, slots=True)
class ZygoteRow:
    """The import cache and the arena of one host."""

    host: str
    zygotes: str
    packages: str
    kernels: str
    arena: str


@dataclass(frozen=True, slots=True)
class RunRow:
    """One run that ended. `start`: Run to the first statement, of which only a preparation after Run is a part.

    `bar` has a part for preparation, run and save, to the scale of the longest run shown.
    """

    execution: str
    session: str
    state: str
    path: str
    start: str
    prepare: str
    run: str
    save: str
    bar: str


def gpu_rows(snapshot: Plain) -> list[GpuRow]:
    """Every GPU of every host, by host and number."""
    return [row for host in _hosts(snapshot) for row in _gpus_of(host)]


def _gpus_of(host: Plain) -> Iterator[GpuRow]:
    leases = {index: lease for lease in host["leases"] for index in lease["gpu_indices"]}
    workers: dict[int, list[Plain]] = {}
    for worker in host["workers"]:
        for index in worker["gpu_indices"]:
            workers.setdefault(index, []).append(worker)
    name = (host.get("gpu") or {}).get("name") or host["device_kind"]
    for index in range(host["gpu_count"]):
        lease, holders = leases.get(index), workers.get(index, [])
        used_bytes = sum(int(worker["resident_bytes"]) for worker in holders)
        session = lease["session_id"] if lease else next((w["session_id"] for w in holders), "")
        yield GpuRow(
            host["host"]["host_id"], str(index), name, _gpu_state(host, lease, holders), short_id(session),
            short_id(lease["execution_id"]) if lease else "-",
            f"{format_bytes(used_bytes)} of {format_bytes(int(host['gpu_memory_bytes']))}",
        )


def _gpu_state(host: Plain, lease: Plain | None, holders: Sequence[Plain]) -> str:
    if host["liveness"] in ("dead", "suspect"):
        return str(host["liveness"])
    if lease is None:
        return "warm" if holders else "free"
    own = [worker for worker in holders if worker["execution_id"] == lease["execution_id"]]
    return stage_word(own[0]["stage"]) if own else "leased"


def queue_rows(snapshot: Plain) -> list[QueueRow]:
    """The runs that wait, first in the queue first."""
    return [
        QueueRow(run["position"], short_id(run["session_id"]), run["priority"], seconds(run["waited_s"]), run["reason"])
        for run in (snapshot["pool"] or {}).get("queue", [])
    ]


def session_rows(snapshot: Plain) -> list[SessionRow]:
    """Saved sessions, last changed first."""
    places: dict[str, list[str]] = {}
    for host in _hosts(snapshot):
        for worker in host["workers"]:
            gpus = ",".join(map(str, worker["gpu_indices"])) or "-"
            place = f"{host['host']['host_id']}:{gpus} {stage_word(worker['stage'])}"
            places.setdefault(worker["session_id"], []).append(place)
    return [
        SessionRow(
            short_id(head["session_id"]), head["title"] or "-",
            head["version"] if head["version"] == head["durable_version"] else f"{head['version']} (not yet durable)",
            ago((snapshot["taken_unix_ms"] - int(head["updated_unix_ms"])) / 1000),
            ", ".join(places.get(head["session_id"], [])) or "-",
        )
        for head in snapshot["sessions"] or []
    ]


def zygote_rows(snapshot: Plain) -> list[ZygoteRow]:
    """One row for each host that answered."""
    rows = []
    for host_id, told in snapshot["hosts"].items():
        if told is not None:
            packages = sorted({name.partition(".")[0] for name in told["zygote_imports"]})
            # Of the zygotes below the base; a daemon of an older version tells none.
            tail = [node["imports"] for node in told.get("zygotes", []) if int(node["parent_id"]) and node["pid"]]
            packages += [f"+ {' '.join(imports)}" for imports in tail]
            used_bytes, limit_bytes = int(told["arena_used_bytes"]), int(told["arena_limit_bytes"])
            rows.append(ZygoteRow(
                host_id, ", ".join(map(str, told["zygote_pids"])) or "-", ", ".join(packages) or "-",
                str(told["kernels"]), f"{format_bytes(used_bytes)} of {format_bytes(limit_bytes)}",
            ))
    return rows


def store_line(snapshot: Plain) -> str:
    """The store's size and its last garbage collection."""
    store = snapshot["store"]
    if store is None:
        return "store: no answer"
    text = (
        f"store: {format_bytes(int(store['used_bytes']))} of {format_bytes(int(store['bytes_max']))}, "
        f"{store['sessions']} session(s)"
    )
    if int(store["regions_damaged"]):
        text += f", {store['regions_damaged']} DAMAGED region(s)"
    last = store.get("last_collection")
    if last is None:
        return f"{text}; no garbage collected since its start"
    counts = {"version": "versions_dropped", "unit": "units_deleted", "region": "regions_deleted"}
    freed = ", ".join(f"{last[field]} {word}(s)" for word, field in counts.items())
    return f"{text}; garbage collected {ago(last['ended_s_ago'])}: {freed}"


def pool_line(snapshot: Plain) -> str:
    """How many hosts and GPUs there are, what is leased and what waits."""
    pool = snapshot["pool"]
    if pool is None:
        return "scheduler: no answer"
    alive = sum(host["liveness"] == "alive" for host in pool["hosts"])
    gpus = sum(host["gpu_count"] for host in pool["hosts"])
    leased = sum(len(lease["gpu_indices"]) for host in pool["hosts"] for lease in host["leases"])
    return (
        f"{alive} of {len(pool['hosts'])} host(s) alive, {leased} of {gpus} GPU(s) leased, "
        f"{pool['queued_runs']} run(s) wait, {pool['gpu_held_s']:.0f} GPU-seconds lent so far"
    )


def run_rows(snapshot: Plain, bar_chars: int = 24) -> list[RunRow]:
    """The runs that ended, last first; `bar_chars`: length of the longest run's bar."""
    ended = (snapshot["pool"] or {}).get("ended", [])
    figures = [run.get("figures") or {} for run in ended]
    spans = [_spans_s(one) for one in figures]
    longest_s = max((sum(parts) for parts in spans), default=0.0)
    rows = []
    for run, told, parts in zip(ended, figures, spans, strict=True):
        prepare, ran, save = (seconds(part) if told else "-" for part in parts)
        start = seconds(float(told["start_ms"]) / 1000) if told else "-"
        path = ((run.get("lease") or {}).get("path") or "").removeprefix("START_PATH_").lower()
        state = run["state"].removeprefix("EXECUTION_STATE_").lower()
        rows.append(RunRow(
            short_id(run["execution_id"]), short_id(run["session_id"]),
            f"{state}: {run['reason']}" if run["reason"] else state, path or "-", start, prepare, ran,
            save, bar(parts, longest_s, bar_chars),
        ))
    return rows


def _spans_s(figures: Plain) -> tuple[float, float, float]:
    """Preparation, run, save."""
    return (
        float(figures.get("prepare_ms", 0.0)) / 1000, float(figures.get("run_s", 0.0)),
        float(figures.get("save_ms", 0.0)) / 1000,
    )


def bar(parts_s: Sequence[float], longest_s: float, chars: int) -> str:
    """The parts in characters, `chars` for `longest_s`; a part that took time has at least one, if there is room."""
    if longest_s <= 0:
        return ""
    counts = [round(part * chars / longest_s) or int(part > 0) for part in parts_s]
    while sum(counts) > chars:
        counts[counts.index(max(counts))] -= 1
    return "".join(mark * count for mark, count in zip(BAR_PARTS, counts, strict=True))


def _hosts(snapshot: Plain) -> list[Plain]:
    hosts: list[Plain] = (snapshot["pool"] or {}).get("hosts", [])
    return hosts


def stage_word(stage: str) -> str:
    """A WorkerStage's name for people, such as "host ready"."""
    return stage.removeprefix("WORKER_STAGE_").lower().replace("_", " ")


def short_id(text: str) -> str:
    """The beginning of an id, enough to tell those of one screen apart; "-" for none."""
    return text[:ID_CHARS] or "-"


def seconds(value_s: float) -> str:
    """A span such as "0.42 s", "12.3 s", "5 min"."""
    if value_s >= 600:
        return f"{value_s / 60:.0f} min"
    return f"{value_s:.1f} s" if value_s >= 10 else f"{value_s:.2f} s"


def ago(age_s: float) -> str:
    """How long since, in the largest unit that fits."""
    for unit_s, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if age_s >= unit_s:
            return f"{age_s / unit_s:.0f} {word} ago"
    return f"{max(0.0, age_s):.0f} s ago"
