"""Pictures of a comparison (extra `bench`): cost against missed starts, start latencies, GPU time by state."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from looseleaf.errors import Unsupported
from looseleaf.sim.ledger import GpuState
from looseleaf.sim.results import INTERACTIVE_S, Result, SeedResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What is shown at the left edge of the latency axis, where shorter starts belong too.
_SHORTEST_S: Final = 0.001
_POINTS_MAX: Final = 2000
_COLOURS: Final = {
    "looseleaf": "#0072b2", "pinned": "#555555", "notebookos": "#e69f00", "modal": "#009e73", "naive": "#d55e00"}
_STATE_COLOURS: Final = {
    GpuState.RUNNING: "#0072b2", GpuState.SAVING: "#56b4e9", GpuState.PREPARING: "#f0e442",
    GpuState.SPECULATIVE: "#e69f00", GpuState.WARM: "#009e73", GpuState.IDLE: "#cccccc", GpuState.BOOT: "#888888",
}  # fmt: skip


def write_plots(results: Sequence[Result], folder: Path) -> list[Path]:
    """Writes three SVG files; returns their paths. Raises Unsupported `MATPLOTLIB_MISSING` without matplotlib."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError as error:
        raise Unsupported(
            "MATPLOTLIB_MISSING", "Pictures need matplotlib: pip install 'looseleaf[bench]'.") from error
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    # The same input gives the same bytes.
    with mpl.rc_context({"svg.hashsalt": "looseleaf", "font.size": 9, "axes.spines.top": False,
                         "axes.spines.right": False}):  # fmt: skip
        for name, draw in (("cost", _cost), ("starts", _starts), ("gpu-seconds", _states)):
            figure = Figure(figsize=(6.4, 4.0), layout="constrained")
            draw(figure.add_subplot(), results)
            path = folder / f"{name}.svg"
            figure.savefig(path, metadata={"Date": None})
            written.append(path)
    return written


def _label(result: Result) -> str:
    return f"{result.policy}, {result.sessions}"


def _cost(axes: Axes, results: Sequence[Result]) -> None:
    """The paper's Figure 1: lower left is better."""
    for result in results:
        gpus = result.estimate(partial(_gpus_a_session, result.sessions))
        missed = result.estimate(lambda seed: 1 - seed.share_within(INTERACTIVE_S))
        axes.errorbar(
            100 * missed.mean, gpus.mean, xerr=100 * missed.half_width, yerr=gpus.half_width, fmt="o", markersize=5,
            color=_COLOURS.get(result.policy))
        axes.annotate(_label(result), (100 * missed.mean, gpus.mean), xytext=(5, 4), textcoords="offset points")
    axes.set_xscale("symlog", linthresh=1)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("GPU cells that start later than 1 s after Run (%)")
    axes.set_ylabel("GPUs provisioned per session")


def _gpus_a_session(sessions: int, seed: SeedResult) -> float:
    return seed.gpus_provisioned / sessions


def _starts(axes: Axes, results: Sequence[Result]) -> None:
    for result in results:
        starts_s = result.starts_s()
        step = max(1, len(starts_s) // _POINTS_MAX)
        chosen = list(range(0, len(starts_s), step))
        axes.step(
            [max(_SHORTEST_S, starts_s[i]) for i in chosen], [100 * (i + 1) / len(starts_s) for i in chosen],
            where="post", label=_label(result), color=_COLOURS.get(result.policy),
            alpha=0.4 + 0.6 * result.sessions / max(other.sessions for other in results))
    axes.axvline(INTERACTIVE_S, color="#999999", linewidth=0.8, linestyle="--")
    axes.set_xscale("log")
    axes.set_ylim(0, 100)
    axes.set_xlabel("Run to first statement (s)")
    axes.set_ylabel("GPU cells (%)")
    axes.legend(frameon=False, fontsize=8)


def _states(axes: Axes, results: Sequence[Result]) -> None:
    labels = [_label(result) for result in results]
    below = [0.0] * len(results)
    for state, colour in _STATE_COLOURS.items():
        shares: list[Any] = []
        for result in results:
            seconds = result.gpu_seconds()
            shares.append(100 * seconds[state] / sum(seconds.values()))
        axes.barh(labels, shares, left=below, color=colour, label=state.name.lower())
        below = [low + share for low, share in zip(below, shares, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("provisioned GPU time (%)")
    axes.legend(frameon=False, fontsize=8, ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0))
