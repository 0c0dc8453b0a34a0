"""The corpus of other people's notebooks: where it lies, what a cell of it lacks here, how one is prepared for a run.

The notebooks are no part of this project. `LOOSELEAF_CORPUS` names their folder, else it is `../shared/corpus` beside
the checkout. corpus.toml lists those that are compared, with every change to their text; corpus_survey.toml tells of
all of them whether they run offline as they are.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from golden_run import CellRun

_HERE = Path(__file__).parent
_BESIDE = Path(__file__).parents[3] / "shared" / "corpus"
_NETWORK_ERRORS = re.compile(
    r"URLError|HTTPError|ConnectionError|ConnectError|MaxRetryError|ProxyError|gaierror|OfflineModeIsEnabled"
    r"|LocalEntryNotFoundError|ConnectTimeout|SSLError"
)
# What shell commands say of a network that is not there.
_NETWORK_TEXT = re.compile(
    r"unable to resolve host|Could not resolve host|Temporary failure in name resolution|Network is unreachable"
    r"|Failed to establish a new connection|Connection refused"
)
_FILE_ERRORS = frozenset({"FileNotFoundError", "NotADirectoryError"})


@dataclass(frozen=True)
class Substitution:
    """In cell `cell` (`*`: in all that have it) the text `old`, which must be there, becomes `new`; `why` says why."""

    cell: str
    old: str
    new: str
    why: str


@dataclass(frozen=True)
class Entry:
    """A notebook that is compared, with `plain` also with a stock kernel that has no device.

    `cells`: how many code cells are compared, all if 0, and `why` not all. `stand_ins`: what corpus_stand_ins.py puts
    into its folder.
    """

    name: str
    plain: bool = False
    cells: int = 0
    why: str = ""
    stand_ins: tuple[str, ...] = ()
    substitutions: tuple[Substitution, ...] = ()

    def notebook(self, folder: Path) -> Any:
        """The notebook of the corpus in `folder`, cut and changed. ValueError if a text to be replaced is not there."""
        nb = nbformat.read(str(folder / f"{self.name}.ipynb"), as_version=4)
        code = [cell for cell in nb.cells if cell.cell_type == "code" and cell.source.strip()]
        nb.cells = code[: self.cells or None]
        for each in self.substitutions:
            meant = [cell for cell in nb.cells if each.cell in (cell.id, "*") and each.old in cell.source]
            if not meant:
                raise ValueError(f"{self.name}, cell {each.cell}: {each.old!r} is not there")
            for cell in meant:
                cell.source = cell.source.replace(each.old, each.new)
        return nb


def corpus_folder() -> Path | None:
    """Where the corpus lies; None if it is not here."""
    folder = Path(os.environ.get("LOOSELEAF_CORPUS") or _BESIDE)
    return folder if folder.is_dir() else None


def read_entries() -> list[Entry]:
    """What corpus.toml lists."""
    entries = []
    for name, found in tomllib.loads((_HERE / "corpus.toml").read_text(encoding="utf-8")).items():
        changes = tuple(Substitution(**change) for change in found.pop("substitute", []))
        stand_ins = tuple(found.pop("stand_ins", []))
        entries.append(Entry(name, stand_ins=stand_ins, substitutions=changes, **found))
    return entries


def survey() -> dict[str, dict[str, Any]]:
    """What corpus_survey.py found of every notebook of the corpus."""
    return tomllib.loads((_HERE / "corpus_survey.toml").read_text(encoding="utf-8"))


def survey_lines(compared: list[Entry]) -> list[str]:
    """The survey in numbers, and how much of the corpus is compared."""
    found = survey()
    verdicts = Counter(entry["verdict"] for entry in found.values())
    stops = Counter(str(entry["stopped_by"]).partition(" ")[0] for entry in found.values() if "stopped_by" in entry)
    ran, total = (sum(entry[key] for entry in found.values()) for key in ("cells_run", "cells"))
    whole = sum(not entry.cells for entry in compared)
    changed = sum(bool(entry.substitutions or entry.stand_ins) for entry in compared)
    share = f"{verdicts['wholly']} of {len(found)} notebooks ({verdicts['wholly'] / len(found):.0%})"
    return [
        f"corpus: {share} run offline as they are, {verdicts['part']} up to some cell, {verdicts['no']} not at all",
        f"  that is {ran} of {total} cells; stopped by: {', '.join(f'{name} {n}' for name, n in stops.most_common())}",
        f"  listed for comparison: {len(compared)}, {whole} of them to the end, {changed} with listed substitutions",
    ]


def reaches_for_network(run: CellRun) -> bool:
    """Whether a command of the cell said that it found no network."""
    return any(kind == "stream" and _NETWORK_TEXT.search(content["text"]) for kind, content in run.messages)


def what_lacks(run: CellRun) -> str:
    """What a failed cell needed that is not here: `package NAME`, `network` or `file`; empty for any other outcome."""
    if run.reply.get("status") != "error":
        return ""
    name, text = run.reply.get("ename", ""), run.reply.get("evalue", "")
    module = re.search(r"No module named '([\w.]+)'", text)
    if name in ("ModuleNotFoundError", "ImportError") and module is not None:
        return f"package {module[1].partition('.')[0]}"
    if _NETWORK_ERRORS.search(name) or _NETWORK_ERRORS.search(text):
        return "network"
    if name in _FILE_ERRORS or "No such file or directory" in text:
        return "file"
    return ""
