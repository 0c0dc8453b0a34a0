"""What only a machine with a GPU can tell, in one run of at most 8 minutes: `make gpu-check`.

Each part runs whatever became of the others, prints one line of a table, and writes its figures to a JSON file. Parts
that work on host memory too run there with `--dry-run`, so that this script is tested without a GPU.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUDGET_S = 480.0
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))


@dataclass(frozen=True)
class Part:
    """`run(device)` returns figures by name and raises if something is wrong; `share` of the time that it may take."""

    name: str
    run: Callable[[str], dict[str, Any]]
    share_s: float
    on_host: bool


def parts() -> list[Part]:
    """All of them, in the order of what a failure would say."""
    import gpu_attach
    import gpu_memory

    return [
        Part("fingerprints equal the host's", gpu_memory.fingerprints_agree, 40, True),
        Part("every write is seen", gpu_memory.writes_are_seen, 60, True),
        Part("speed of fingerprints", gpu_memory.fingerprint_speed, 20, False),
        Part("copy of a dirty set", gpu_memory.dirty_set_copy, 20, False),
        Part("cost of pinning", gpu_memory.pinning, 20, False),
        Part("attach", gpu_attach.attach, 90, False),
        Part("a session on leased workers", gpu_attach.session_on_workers, 90, False),
        Part("tests of real devices", gpu_attach.device_tests, 140, False),
    ]


@contextmanager
def limited(limit_s: float) -> Iterator[None]:
    """Raises TimeoutError inside once the limit has passed; a call of C code ends first. Main thread only."""

    def end(_number: int, _frame: Any) -> None:
        raise TimeoutError(f"cut off after {limit_s:.0f} s, so that the run keeps its time")

    before = signal.signal(signal.SIGALRM, end)
    began_s, (outer_s, _) = time.monotonic(), signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, max(outer_s - (time.monotonic() - began_s), 0.001) if outer_s else 0)
        signal.signal(signal.SIGALRM, before)


def run_part(part: Part, device: str, left_s: float) -> dict[str, Any]:
    """The part's figures and how it ended: ok, failed or skipped, with the reason."""
    if left_s < part.share_s / 4:
        return {"name": part.name, "outcome": "skipped", "reason": f"{left_s:.0f} s of the time are left"}
    if device == "cpu" and not part.on_host:
        return {"name": part.name, "outcome": "skipped", "reason": "needs a GPU"}
    began_s = time.monotonic()
    found: dict[str, Any] = {"name": part.name}
    try:
        with limited(left_s):
            found["figures"] = part.run(device)
        found["outcome"] = "ok"
    except Exception as error:
        found |= {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"[:500]}
        found["traceback"] = traceback.format_exc()
    found["took_s"] = round(time.monotonic() - began_s, 2)
    return found


def line(found: dict[str, Any]) -> str:
    """One row of the table."""
    figures = ", ".join(f"{name} {value}" for name, value in found.get("figures", {}).items())
    said = figures or found.get("reason", "")
    return f"{found['outcome']:8} {found.get('took_s', 0):7.1f} s  {found['name']}: {said}"


def facts(device: str) -> dict[str, Any]:
    """The machine and the build."""
    import machine

    found = machine.facts()
    if device != "cpu":
        import torch

        properties = torch.cuda.get_device_properties(0)
        found["gpu"] = {"name": properties.name, "memory_bytes": properties.total_memory, "cuda": torch.version.cuda}
    return found


def main(arguments: list[str] | None = None, chosen: list[Part] | None = None) -> int:
    """0 if no part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="on host memory, without a GPU: only what works there")
    parser.add_argument("--json", type=Path, default=ROOT / "out" / "gpu-check.json", help="where the figures go")
    options = parser.parse_args(arguments)
    device = "cpu" if options.dry_run else "cuda"
    ends_s = time.monotonic() + BUDGET_S
    results = []
    for part in chosen if chosen is not None else parts():
        results.append(run_part(part, device, ends_s - time.monotonic()))
        print(line(results[-1]), flush=True)
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"machine": facts(device), "parts": results}, indent=1, default=str) + "\n")
    print(f"figures: {options.json}")
    return int(any(found["outcome"] == "failed" for found in results))


if __name__ == "__main__":
    sys.exit(main())
