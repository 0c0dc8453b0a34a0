"""What bench/cold_preparation.py shows: a table, how the targets stand, and a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from alternating import Rounds, spread
from demo_notebook import SHARES
from peers import Peers
from table import duration, machine_line

from looseleaf.sim.tables import markdown

BEGIN: Final = "<!-- preparation table: begin -->"
END: Final = "<!-- preparation table: end -->"
HEADINGS: Final = ("what", "median", "p95", "max", "times", "naive ÷ it", "CRIU ÷ it")
NAIVE: Final = ("naive_torchsave", "naive_cloudpickle")
CRIU: Final = "criu_tmpfs"
# (share in percent, rival, percentile, at least so many times as fast): design §11.
TARGETS: Final = (
    (5, "naive", "median", 30.0), (5, "naive", "p95", 15.0), (5, "CRIU", "median", 8.0), (5, "CRIU", "p95", 4.0),
    (100, "CRIU", "median", 1.0),
)  # fmt: skip
PEER_TITLES: Final = {
    "naive_torchsave": "fresh process, `torch.load` of all", "naive_cloudpickle": "fresh process, `pickle.load` of all",
    "prefork_full": "forked process with the imports, `pickle.load` of all",
    "criu_tmpfs": "CRIU, image in memory", "criu_disk": "CRIU, image on disk",
    "kernel_rerun": "new kernel, cells run again", "papermill_rerun": "papermill, cells run again",
}  # fmt: skip


def prepare(share: int) -> str:
    """Series: a worker is asked for, until it says that it holds the closure."""
    return f"prepare {share}"


def at_run(share: int, path: str) -> str:
    """Series: Run is pressed, until the cell's first output; `path`: "cold" or "prepared"."""
    return f"run {path} {share}"


def fresh(share: int) -> str:
    """Series: a fresh process with these imports and variables, by `pickle.load`."""
    return f"fresh {share}"


@dataclass
class Size:
    """All that was measured with one size of state."""

    gigabytes: float
    rounds: Rounds
    peers: Peers

    def values_s(self, series: str) -> list[float]:
        """Empty for what was not measured."""
        return self.rounds.values_s(series) if series in self.rounds.series else []

    def rival_s(self, rival: str) -> float | None:
        """Median of "naive", the fastest of such, or "CRIU"; None if it was not measured."""
        names = [CRIU] if rival == "CRIU" else [name for name in NAIVE if self.peers.seconds.get(name)]
        found = [statistics.median(self.peers.seconds[name]) for name in names if self.peers.seconds.get(name)]
        if rival == "naive" and not found and (own := self.values_s(fresh(100))):
            found = [statistics.median(own)]
        return min(found, default=None)


def rows(size: Size) -> list[list[str]]:
    """One line for each way, ours first."""
    shown = [(f"LooseLeaf, {share} % of the state", size.values_s(prepare(share))) for share in SHARES]
    for path, when in (("cold", "begun at Run"), ("prepared", "done before Run")):
        shown += [
            (f"LooseLeaf, {when}, Run to first output, {share} %", size.values_s(at_run(share, path)))
            for share in SHARES
        ]
    shown += [(f"fresh process, `pickle.load` of {share} %", size.values_s(fresh(share))) for share in SHARES]
    shown += [(PEER_TITLES.get(peer, peer), size.peers.seconds[peer]) for peer in sorted(size.peers.seconds)]
    return [_row(size, what, values) for what, values in shown if values]


def _row(size: Size, what: str, values_s: Sequence[float]) -> list[str]:
    seen = spread(values_s)
    beside = [size.rival_s(rival) for rival in ("naive", "CRIU")]
    ratios = ["–" if rival_s is None else f"{rival_s / seen['median']:.1f}" for rival_s in beside]
    return [what, duration(seen["median"]), duration(seen["p95"]), duration(max(values_s)), str(len(values_s)), *ratios]


def verdicts(size: Size) -> list[str]:
    """How each target stands, and who could not be measured."""
    found = []
    for share, rival, percentile, wanted in TARGETS:
        values_s, rival_s = size.values_s(prepare(share)), size.rival_s(rival)
        if not values_s or rival_s is None:
            continue
        times = rival_s / spread(values_s)[percentile]
        state = "met" if times >= wanted else "not met"
        found.append(f"{share} %, {percentile}: {times:.1f} times as fast as {rival} (at least {wanted:g}: {state})")
    found += [f"{peer} not measured: {why}" for peer, why in sorted(size.peers.missing.items())]
    return found


def breakdown(size: Size, share: int = 5) -> list[tuple[str, float]]:
    """What a cell waits for that needs so much of the state, by what is done about it: median seconds each."""
    steps = [
        ("fresh process, everything", fresh(100)), ("+ closures", fresh(share)), ("+ import cache", prepare(share)),
        ("+ preparation before Run", at_run(share, "prepared")),
    ]  # fmt: skip
    return [(what, statistics.median(size.values_s(series))) for what, series in steps if size.values_s(series)]


def as_markdown(sizes: Sequence[Size]) -> list[str]:
    """Tables and verdicts of all sizes."""
    lines: list[str] = []
    for size in sizes:
        lines += [f"**{size.gigabytes:g} GB of tensors**", ""]
        lines += markdown(HEADINGS, rows(size))
        steps = ", ".join(f"{what} {duration(seconds)}" for what, seconds in breakdown(size))
        lines += ["", f"A cell that needs 5 %, step by step: {steps}.", ""]
        lines += [*(f"- {line}" for line in verdicts(size)), ""]
    return lines


def write_kept(file: Path, sizes: Sequence[Size], facts: dict[str, Any]) -> None:
    """All durations, and `facts` of the machine."""
    kept = [{"gigabytes": size.gigabytes, "series": size.rounds.series, "peers": asdict(size.peers)} for size in sizes]
    file.write_text(json.dumps({"machine": facts, "sizes": kept}, indent=1))


def read_kept(file: Path) -> tuple[list[Size], dict[str, Any]]:
    """What `write_kept` wrote."""
    kept = json.loads(file.read_text())
    sizes = [Size(one["gigabytes"], Rounds(one["series"]), Peers(**one["peers"])) for one in kept["sizes"]]
    return sizes, kept["machine"]


def told(sizes: Sequence[Size], facts: dict[str, Any]) -> str:
    """The command and the machine. Of one that was busy, which is said, times are of use as ratios only."""
    demo = " ".join(f"{size.gigabytes:g}" for size in sizes)
    rounds = max((len(series) for size in sizes for series in size.rounds.series.values()), default=0)
    beside = ", with the rivals' script" if any(size.peers.seconds for size in sizes) else ""
    load, cpus = facts["load_average_before"][0], facts["cpus"]
    busy = f" The machine was busy with other work ({load:g} ready to run on {cpus} CPUs)." if load > cpus else ""
    return f"`python bench/cold_preparation.py --demo {demo} --rounds {rounds}`{beside}: {machine_line(facts)}{busy}"


def draw(sizes: Sequence[Size], path: Path) -> None:
    """The steps of the breakdown, and ours beside the rivals; both by median, on a scale of powers of ten."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(2, len(sizes), figsize=(5.5 * len(sizes), 5), layout="constrained", squeeze=False)
    for column, size in enumerate(sizes):
        _bars(axes[0][column], breakdown(size), f"{size.gigabytes:g} GB, a cell that needs 5 %")
        ours = [(f"LooseLeaf, {share} %", size.values_s(prepare(share))) for share in SHARES]
        others = [(peer, values) for peer, values in sorted(size.peers.seconds.items())]
        seen = [(what, statistics.median(values)) for what, values in [*ours, *others] if values]
        _bars(axes[1][column], seen, "cold preparation")
    figure.savefig(path, dpi=80)


def _bars(axes: Any, values: Sequence[tuple[str, float]], title: str) -> None:
    bars = axes.barh([what for what, _ in values], [seconds for _, seconds in values])
    axes.bar_label(bars, [duration(seconds) for _, seconds in values], padding=3)
    longest = max((seconds for _, seconds in values), default=1.0)
    axes.set(xscale="log", xlim=(0.005, 4 * longest), xlabel="seconds", title=title)
    axes.invert_yaxis()
