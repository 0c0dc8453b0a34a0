"""How exact `looseleaf explain` is: its closures, packages and labels against hand-made truth files.

    python bench/closure_accuracy.py DIR                    truth files in DIR, notebooks there or in its parent
    python bench/closure_accuracy.py DIR --notebooks OTHER  notebooks elsewhere
    python bench/closure_accuracy.py DIR --wrong            every difference, cell by cell
    python bench/closure_accuracy.py DIR --live             labels with live objects too

Nothing of a notebook runs and none of its packages is needed; what is scored is what the text alone can tell. `--live`
adds what objects tell at Run, from descriptions of the variables after each cell (`described_state.py`, bench/states or
`--states FOLDER`); a notebook without one is not scored so.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from described_state import state_before

from looseleaf.batch.files import read_notebook
from looseleaf.cli.explain import explain_notebook, plain_cell

# What must hold (docs/benchmarks.md).
TARGETS = {"needs recall": 1.0, "needs precision": 0.95, "packages recall": 1.0, "labels": 0.95}
STATES = Path(__file__).parent / "states"
SETS = ("needs", "needs_types", "packages", "defines", "imports", "deletes")


@dataclass(slots=True)
class Count:
    """`right` of `of`; nothing asked is nothing missed."""

    right: int = 0
    of: int = 0

    def add(self, right: int, of: int) -> None:
        self.right += right
        self.of += of

    @property
    def share(self) -> float:
        return self.right / self.of if self.of else 1.0

    def __str__(self) -> str:
        return f"{100 * self.share:6.1f} % ({self.right}/{self.of})"


@dataclass(slots=True)
class Score:
    """Counts over cells. `wrong`: a line for each difference."""

    counts: dict[str, Count] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def add(self, name: str, right: int, of: int) -> None:
        self.counts.setdefault(name, Count()).add(right, of)

    def merge(self, other: Score) -> None:
        for name, count in other.counts.items():
            self.add(name, count.right, count.of)
        self.wrong += other.wrong


def score_cells(said: Sequence[Mapping[str, Any]], truth: Sequence[Mapping[str, Any]], where: str) -> Score:
    """What `explain --json` said of a notebook's cells against the truth about them, matched by id."""
    score, by_id = Score(), {cell["id"]: cell for cell in said}
    for cell in truth:
        found = by_id.get(cell["id"])
        score.add("cells", found is not None, 1)
        if found is not None:
            _score_cell(score, found, cell, f"{where} {cell['id']}")
    return score


def _score_cell(score: Score, said: Mapping[str, Any], truth: Mapping[str, Any], where: str) -> None:
    for key in SETS:
        wanted, given = set(truth.get(key, ())), set(said[key])
        if key == "needs_types":
            # Reached through objects: which of both lists names it is a matter of taste.
            given |= set(said["needs"])
        everything = bool(said["needs_all"]) and key in ("needs", "needs_types")
        name = "packages, stdlib too, recall" if key == "packages" else f"{key} recall"
        score.add(name, len(wanted) if everything else len(wanted & given), len(wanted))
        if key != "needs_types":
            score.add(f"{key} precision", len(wanted & given), len(given))
        if wanted - given and not everything:
            score.wrong.append(f"{where}: {key} misses {sorted(wanted - given)}")
        if given - wanted and key != "needs_types":
            score.wrong.append(f"{where}: {key} has {sorted(given - wanted)} too many")
    _score_packages(score, said, truth, where)
    accepted = truth.get("gpu_accept", [truth["gpu"]])
    score.add("labels", said["gpu"] in accepted, 1)
    if said["gpu"] not in accepted:
        label = "GPU" if said["gpu"] else "CPU"
        score.wrong.append(f"{where}: label {label} ({said['confidence']}: {said['reason']}), is {truth['gpu_kind']}")
    if len(accepted) == 1:
        score.add("labels, undisputed", said["gpu"] in accepted, 1)
    score.add("gpu kind", said["gpu_kind"] == truth["gpu_kind"], 1)
    score.add("needs_all", bool(said["needs_all"]) == bool(truth.get("needs_all", False)), 1)


def _score_packages(score: Score, said: Mapping[str, Any], truth: Mapping[str, Any], where: str) -> None:
    named, all_said = set(said["packages"]), {*said["packages"], *said["packages_types"]}
    wanted = _third_party(truth["packages"])
    restored = wanted | _third_party(truth.get("packages_types", ()))
    score.add("packages recall", len(wanted & named), len(wanted))
    score.add("packages and types recall", len(restored & all_said), len(restored))
    if restored - all_said:
        score.wrong.append(f"{where}: packages and types miss {sorted(restored - all_said)}")


def _third_party(packages: Iterable[str]) -> set[str]:
    return {package for package in packages if package not in sys.stdlib_module_names}


def find_notebook(name: str, folders: Sequence[Path]) -> Path | None:
    """The notebook of a truth file, in the first folder that has it."""
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def score_folder(folder: Path, notebooks: Path | None, states: Path | None = None) -> dict[str, Score]:
    """A score for each truth file whose notebook is at hand; the others are named on stderr.

    `states`: with what live objects tell, for notebooks that are described there.
    """
    folders = [notebooks] if notebooks is not None else [folder, folder.parent]
    scores = {}
    for path in sorted(folder.glob("*.json")):
        truth = json.loads(path.read_text(encoding="utf-8"))
        notebook = find_notebook(truth["notebook"], folders)
        if notebook is None:
            print(f"{path.name}: its notebook {truth['notebook']} is not at hand, not scored", file=sys.stderr)
            continue
        described = states / path.name if states is not None else None
        if described is not None and not described.is_file():
            print(f"{path.name}: nobody described its variables, not scored with live objects", file=sys.stderr)
            continue
        state = state_before(described) if described is not None else None
        said = [plain_cell(cell) for cell in explain_notebook(read_notebook(notebook), notebook.parent, state)]
        scores[path.stem] = score_cells(said, truth["cells"], path.stem)
    return scores


def _label_score(scores: Mapping[str, Score]) -> Score:
    """Of live objects only the labels count: what cells need by name they do not change."""
    total = Score()
    for score in scores.values():
        for name in ("labels", "labels, undisputed", "gpu kind"):
            if name in score.counts:
                total.add(name, score.counts[name].right, score.counts[name].of)
        total.wrong += [line for line in score.wrong if ": label " in line]
    return total


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the scores; 1 if a target is missed, 2 if nothing could be scored."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--notebooks", type=Path)
    parser.add_argument("--wrong", action="store_true", help="print every difference")
    parser.add_argument("--live", action="store_true", help="score labels with live objects too")
    parser.add_argument("--states", type=Path, default=STATES, help="descriptions of live objects")
    options = parser.parse_args(arguments)
    scores = score_folder(options.folder, options.notebooks)
    if not scores:
        print(f"{options.folder}: no truth file could be scored", file=sys.stderr)
        return 2
    total = Score()
    for name, score in scores.items():
        total.merge(score)
        _show(name, score)
    _show(f"all {len(scores)} notebooks, from text alone", total)
    missed = _missed(total)
    if options.live:
        live = score_folder(options.folder, options.notebooks, options.states)
        labels = _label_score(live)
        _show(f"{len(live)} notebooks, labels with live objects", labels)
        total.wrong += [f"with live objects, {line}" for line in labels.wrong]
        missed += [f"{name} with live objects" for name in _missed(labels)] if live else ["labels with live objects"]
    if options.wrong:
        print("\n".join(total.wrong))
    print("targets: " + (f"missed: {', '.join(missed)}" if missed else "met"))
    return 1 if missed else 0


def _missed(score: Score) -> list[str]:
    return [name for name, target in TARGETS.items() if name in score.counts and score.counts[name].share < target]


def _show(name: str, score: Score) -> None:
    print(name)
    for key, count in score.counts.items():
        target = f"  target {100 * TARGETS[key]:.0f} %" if key in TARGETS else ""
        print(f"  {key:<28}{count}{target}")


if __name__ == "__main__":
    sys.exit(main())
