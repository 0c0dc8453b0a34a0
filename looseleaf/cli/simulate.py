"""`looseleaf simulate`: the scheduler's policy and what it is compared with, under notebooks of a whole team."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from looseleaf.cli.options import JsonOption, example, print_json_line, print_table
from looseleaf.errors import InvalidArgument

if TYPE_CHECKING:
    from collections.abc import Sequence

    from looseleaf.sim.model import Model
    from looseleaf.sim.runner import MakeStreams
    from looseleaf.sim.workload import CellStream

SESSIONS_MAX: Final = 100_000
SEEDS_MAX: Final = 1000


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(epilog=example("simulate --sessions 72 --policy looseleaf --policy pinned --seeds 3"))(simulate)


def simulate(
    sessions: Annotated[list[int] | None, typer.Option(
        "--sessions", "-n", min=1, max=SESSIONS_MAX,
        help="Notebooks at once; repeat it to compare. Default 72, of a recorded workload as many as it has.")] = None,
    policy: Annotated[list[str] | None, typer.Option(
        "--policy", "-p", help="looseleaf (the default), pinned, notebookos, modal, naive, or all; repeat it.")] = None,
    workload: Annotated[str, typer.Option(
        help="w1, long, dense, fast, churn, hetero, day, or a file: .toml with numbers, else recorded runs.",
    )] = "w1",
    seeds: Annotated[int, typer.Option(min=1, max=SEEDS_MAX, help="How many; all policies see the same people.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="The first of them.")] = 1,
    hours: Annotated[float | None, typer.Option(
        min=0.01, max=1000.0, help="Simulated time; default: the workload's.")] = None,
    attach_s: Annotated[float | None, typer.Option(
        min=0.0, max=3600.0, help="Seconds to attach, instead of context and copy.")] = None,
    calibrate: Annotated[Path | None, typer.Option(
        exists=True, dir_okay=False, help="Take times from this report of `looseleaf run --report`.")] = None,
    without: Annotated[list[str] | None, typer.Option(
        help="Leave out import-cache, closures, speculation, context-ready or prediction; repeat it.")] = None,
    limit: Annotated[list[str] | None, typer.Option(
        help="A limit of the scheduler: headroom_share=0.1, prepare_stage_max=host_ready, ...; repeat it.")] = None,
    plot: Annotated[Path | None, typer.Option(
        help="Write pictures (SVG) into this folder; extra looseleaf[bench].")] = None,
    as_json: JsonOption = False,
) -> None:
    """Simulate people at notebooks on a pool of GPU hosts, and tell what it costs and how long they wait.

    The policy "looseleaf" is the scheduler's own code. Times to prepare, attach and save are a model's: see
    docs/simulate.md. `--json` prints one object a line, one for each policy and number of sessions.
    """
    from looseleaf.sim.calibration import calibrated, fitted
    from looseleaf.sim.limits import limits_of_words
    from looseleaf.sim.policies import POLICIES
    from looseleaf.sim.results import as_plain
    from looseleaf.sim.runner import simulate as run
    from looseleaf.sim.tables import COLUMNS, OTHER_COLUMNS, OTHERS, against, rows_of

    chosen = list(dict.fromkeys(name for given in policy or ["looseleaf"] for name in _policies(given, POLICIES)))
    model, streams, recorded = _workload(workload)
    if calibrate is not None:
        model = calibrated(model, calibrate)
    model = model.changed(
        hours=hours, attach_s=attach_s, without=frozenset(without or ()), limits=limits_of_words(limit or ()))
    results = []
    for count in sessions or [recorded or 72]:
        for name in chosen:
            result = run(model, name, count, range(first_seed, first_seed + seeds), streams)
            results.append(result)
            if as_json:
                print_json_line(as_plain(result))
    if not as_json:
        compared = len(chosen) > 1 and not set(OTHERS).isdisjoint(chosen)
        further = [against(result, results) * compared for result in results]
        rows = [row + more for row, more in zip(rows_of(results), further, strict=True)]
        print_table("", COLUMNS + OTHER_COLUMNS * compared, rows, "")
        if calibrate is not None:
            print(fitted(model.mechanism))
    if plot is not None:
        from looseleaf.sim.plots import write_plots

        paths = write_plots(results, plot)
        if not as_json:
            print("\n".join(str(path) for path in paths))


def _policies(given: str, known: tuple[str, ...]) -> tuple[str, ...]:
    if given == "all":
        return known
    if given not in known:
        raise InvalidArgument(
            "POLICY_UNKNOWN", f"There is no policy {given!r}: give {', '.join(known)} or all.", policy=given)
    return (given,)


def _workload(given: str) -> tuple[Model, MakeStreams | None, int | None]:
    """The model, where its cells come from (None: drawn), and how many sessions were recorded."""
    from looseleaf.sim.model import WORKLOADS, load_model, read_model
    from looseleaf.sim.recorded import read_records, replayed_streams

    path = Path(given)
    if given in WORKLOADS or not path.is_file():
        return load_model(given), None, None
    if path.suffix == ".toml":
        return read_model(path), None, None
    recorded = read_records(path)

    def streams(model: Model, sessions: int, seed: int) -> Sequence[CellStream]:
        return replayed_streams(recorded, model.workload, model.mechanism, sessions, seed)

    return load_model("w1").named(path.stem), streams, len(recorded)
