"""Which notebooks of the corpus run without a network, and up to which cell: `python tests/golden/corpus_survey.py`.

Each runs on a stock kernel with the virtual GPU, in an empty folder, in a network namespace of its own (needs root),
with the packages of this environment. Its text is searched first for what it will ask for. The verdicts go into
corpus_survey.toml beside this file; names given as arguments survey only those notebooks. Takes up to an hour.
"""

from __future__ import annotations

import ast
import asyncio
import importlib.util
import re
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import nbformat
from corpus import corpus_folder, reaches_for_network, what_lacks
from golden_run import OFFLINE_ENV, Reference, run_one
from IPython.core.inputtransformer2 import TransformerManager

VERDICTS = Path(__file__).with_name("corpus_survey.toml")
CELL_LIMIT_S = 60
NOTEBOOK_LIMIT_S = 180
NO_NETWORK = ("unshare", "--net")
# Commands that fetch; what they did not bring is then missing as a file. Their own words may be captured.
_FETCHES = re.compile(r"^\s*!.*\b(wget|curl|git clone|kaggle|gdown)\b", re.MULTILINE)
_ASKS = {
    "network": re.compile(
        r"\b(wget|curl|git clone|urlopen|urlretrieve|from_pretrained|load_dataset|requests\.get|snapshot_download)\b"
        r"|download=True|drive\.mount|torch\.hub|pip install|get_file\(|https?://\S+\.(csv|zip|txt|json)"
    ),
    "file": re.compile(r"read_csv|ImageFolder|Image\.open|imread|torch\.load|read_parquet|\bopen\("),
}


class Survey(Reference):
    """Runs until a cell lacks something, or time is up; `stopped` says why, empty if the last cell was reached."""

    def begin(self) -> None:
        super().begin()
        self.timeout = CELL_LIMIT_S
        self.stopped = ""
        self.ran = 0
        self.own_errors: list[str] = []
        self._network = False
        self._limit_s = time.monotonic() + NOTEBOOK_LIMIT_S

    async def async_execute_cell(self, cell: Any, cell_index: int, *args: Any, **kwargs: Any) -> Any:
        if self.stopped or cell_index not in self.runs:
            return cell
        if time.monotonic() > self._limit_s:
            self.stopped = "time"
            return cell
        executed = await super().async_execute_cell(cell, cell_index, *args, **kwargs)
        run = self.runs[cell_index]
        self._network = self._network or reaches_for_network(run) or _FETCHES.search(run.source) is not None
        lack = what_lacks(run)
        self.stopped = "network" if lack == "file" and self._network else lack
        if not self.stopped:
            self.ran += 1
            if run.reply.get("status") != "ok":
                self.own_errors.append(f"{run.name}: {run.reply.get('ename')}")
        return executed


def asks_for(nb: Any) -> list[str]:
    """What the text will ask for: packages that are not here, the network, files."""
    transform = TransformerManager().transform_cell
    modules: set[str] = set()
    asked: set[str] = set()
    for cell in nb.cells:
        if cell.cell_type != "code":
            continue
        asked |= {kind for kind, pattern in _ASKS.items() if pattern.search(cell.source)}
        try:
            tree = ast.parse(transform(cell.source))
        except SyntaxError:
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                modules |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.partition(".")[0])
    missing = sorted(name for name in modules if name not in sys.modules and importlib.util.find_spec(name) is None)
    return [*(f"package {name}" for name in missing), *sorted(asked)]


def survey(path: Path) -> dict[str, Any]:
    """One notebook's verdict: wholly, part (some cells run) or no (none does).

    `stopped_by`: package, network, file or time, which the first cell lacked that did not run; errors, if most cells
    fail for another reason, such as a newer version of a package.
    """
    nb = nbformat.read(str(path), as_version=4)
    asks = asks_for(nb)
    with tempfile.TemporaryDirectory(prefix="survey-") as top:
        folder = Path(top, "work")
        folder.mkdir()
        client = Survey(nb, folder, Path(top), device=True, env=OFFLINE_ENV, prefix=NO_NETWORK)
        client.begin()
        asyncio.run(run_one(client))
    stopped = client.stopped or ("time" if client.failure.startswith("CellTimeout") else client.failure)
    good = client.ran - len(client.own_errors)
    if not stopped and 2 * good < len(client.runs):
        stopped = "errors"
    return {
        "verdict": "wholly" if not stopped else "part" if good else "no", "cells": len(client.runs), "cells_run": good,
        "stopped_by": stopped, "asks_for": asks, "own_errors": client.own_errors,
    }  # fmt: skip


def write(found: dict[str, dict[str, Any]]) -> None:
    """The verdicts as TOML, in order of names."""
    lines = [
        "# Written by corpus_survey.py: which notebooks of the corpus run offline as they are, with which figures.",
        "# stopped_by: what the first cell that could not run lacked. asks_for: found in the text.",
        "# own_errors: cells that fail for another reason, such as a newer version of a package.",
    ]
    for name, verdict in sorted(found.items()):
        lines += ["", f'["{name}"]']
        lines += [f"{key} = {_toml(value)}" for key, value in verdict.items() if value not in ("", [])]
    VERDICTS.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return str(value) if isinstance(value, int) else '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def main() -> None:
    """Surveys all notebooks, or those named."""
    folder = corpus_folder()
    if folder is None:
        raise SystemExit("the corpus is not here: set LOOSELEAF_CORPUS to its folder")
    chosen = set(sys.argv[1:])
    found = tomllib.loads(VERDICTS.read_text(encoding="utf-8")) if VERDICTS.exists() and chosen else {}
    for path in sorted(folder.glob("*.ipynb")):
        if chosen and path.stem not in chosen:
            continue
        began_s = time.monotonic()
        found[path.stem] = survey(path)
        print(f"{time.monotonic() - began_s:4.0f} s  {path.stem}: {found[path.stem]}", flush=True)
        write(found)


if __name__ == "__main__":
    main()
