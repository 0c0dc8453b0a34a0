"""Results of single simulations in files, found again by what they are of: parameters, seed and code.

A file that is broken, or of other code, counts as none: its simulation is run again.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

from looseleaf.services.scheduler import core
from looseleaf.sim.ledger import GpuState
from looseleaf.sim.model import Model
from looseleaf.sim.results import SeedResult


class KeptResults:
    """Files in one folder. `code_of(policy)` names the code that a policy's figures depend on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def get(self, model: Model, policy: str, sessions: int, seed: int) -> SeedResult | None:
        """What such a simulation gave, or None."""
        parameters = _parameters(model, policy, sessions, seed)
        try:
            kept = json.loads(self._path(parameters).read_text(encoding="utf-8"))
            return _read(kept["result"]) if kept["parameters"] == parameters else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def put(self, model: Model, policy: str, sessions: int, result: SeedResult) -> None:
        """Keeps it, whole or not at all."""
        parameters = _parameters(model, policy, sessions, result.seed)
        path = self._path(parameters)
        self._folder.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps({"parameters": parameters, "result": _plain(result)}), encoding="utf-8")
        new.replace(path)

    def _path(self, parameters: dict[str, Any]) -> Path:
        digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()[:24]
        return self._folder / f"{digest}.json"


@cache
def code_of(policy: str) -> str:
    """A hash of the simulator's files and, for looseleaf, of the scheduler's policy."""
    packages = [Path(__file__).parent, *(Path(folder) for folder in core.__path__ if policy == "looseleaf")]
    digest = hashlib.sha256()
    for package in packages:
        for path in _sources(package):
            digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def _sources(package: Path) -> Iterator[Path]:
    # What only shows results changes none.
    shown = {"tables.py", "plots.py", "kept.py"}
    return (path for path in sorted(package.rglob("*")) if path.suffix in {".py", ".toml"} and path.name not in shown)


def _parameters(model: Model, policy: str, sessions: int, seed: int) -> dict[str, Any]:
    numbers = json.loads(json.dumps(asdict(model), default=sorted))
    return {"code": code_of(policy), "policy": policy, "sessions": sessions, "seed": seed, "model": numbers}


def _plain(result: SeedResult) -> dict[str, Any]:
    plain = asdict(result)
    plain["gpu_seconds"] = {state.name: seconds for state, seconds in result.gpu_seconds.items()}
    return plain


def _read(plain: dict[str, Any]) -> SeedResult:
    gpu_seconds = {GpuState[name]: seconds for name, seconds in plain.pop("gpu_seconds").items()}
    return SeedResult(**plain, gpu_seconds=gpu_seconds)
