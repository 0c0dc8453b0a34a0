"""What rivals need for the same state, by the script `peers_prep.py`, which is no part of this repository."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LIMIT_S = 1800.0


@dataclass
class Peers:
    """`seconds`: rival → one duration a round. `missing`: rival → why it could not be measured.

    `facts`: rival → what else it told last, such as the bytes of its saved state.
    """

    seconds: dict[str, list[float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    facts: dict[str, dict[str, Any]] = field(default_factory=dict)

    def take(self, lines: Iterable[str]) -> None:
        """The answer of one call of the script: a line of JSON for each rival, and one for the state that it made."""
        for line in lines:
            told = json.loads(line)
            peer = told.pop("peer")
            if told.get("ok"):
                self.seconds.setdefault(peer, []).extend(told.get("prep_all", []))
            else:
                self.missing[peer] = str(told.get("why", "it gave no reason"))
            self.facts[peer] = told

    def run(self, script: Path, gigabytes: float, names: Iterable[str], criu: str = "") -> None:
        """One round: each rival once. Raises RuntimeError with the script's own words if it failed as a whole."""
        command = [sys.executable, str(script), "--demo", f"{gigabytes:g}", "--runs", "1", "--peers", ",".join(names)]
        command += ["--criu", criu] if criu else []
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        if done.returncode or not lines:
            raise RuntimeError(f"{script.name} ended with {done.returncode}: {(done.stderr or done.stdout)[-400:]}")
        self.take(lines)
