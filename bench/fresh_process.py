"""The plain way to get a session's state into a process: a fresh interpreter, imports, `pickle.load` of a file.

    python bench/fresh_process.py save FOLDER GIGABYTES    runs the demo notebook, cloudpickles FOLDER/SHARE.pkl
    python bench/fresh_process.py load FILE PACKAGE...     has it all again, then says how many variables it has
"""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

LIMIT_S = 600.0


def save_files(folder: Path, gigabytes: float) -> None:
    """Writes the files, by a process that ends with it. Raises subprocess.CalledProcessError."""
    subprocess.run([sys.executable, __file__, "save", str(folder), f"{gigabytes:g}"], check=True, timeout=LIMIT_S)


def load_s(file: Path, packages: list[str], variables: int) -> float:
    """Seconds from the start of a process to its answer that it has the variables."""
    command = [sys.executable, __file__, "load", str(file), *packages]
    began_s = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answer = process.stdout.readline()
        taken_s = time.perf_counter() - began_s
    if answer.strip() != str(variables):
        raise RuntimeError(f"a fresh process has {answer.strip() or 'nothing'} of {variables} variables")
    return taken_s


def _save(folder: Path, gigabytes: float) -> None:
    import cloudpickle
    import demo_notebook

    # As in a kernel: what the cells define is of the main module.
    namespace: dict[str, Any] = vars(sys.modules["__main__"])
    for source in demo_notebook.cells(gigabytes):
        exec(source, namespace)
    for share in demo_notebook.SHARES:
        with open(folder / f"{share}.pkl", "wb") as file:
            chosen = {name: namespace[name] for name in demo_notebook.closure(share).names}
            cloudpickle.dump(chosen, file, protocol=5)


def _load(file: Path, packages: list[str]) -> None:
    for name in packages:
        importlib.import_module(name)
    with open(file, "rb") as opened:
        found = pickle.load(opened)
    print(len(found), flush=True)


if __name__ == "__main__":
    kind, where, *rest = sys.argv[1:]
    if kind == "save":
        _save(Path(where), float(rest[0]))
    else:
        _load(Path(where), rest)
