"""What only a machine with a GPU can tell, in one run of at most 8 minutes: `make gpu-check`.

Each part runs in a process of its own, whatever became of the others: a GPU that faults, a process that crashes and one
that hangs cost that part alone. Each prints one line of a table; after each the JSON file has all figures so far. Parts
that work on host memory too run there with `--dry-run`, so that this script is tested without a GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BUDGET_S = 480.0
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(Path(__file__).parent))


@dataclass(frozen=True)
class Part:
    """`run`, as "module:function", returns figures by name for a device and raises if something is wrong.

    `share_s`: the time that it may take; what others leave is added.
    """

    name: str
    run: str
    share_s: float
    on_host: bool


# In the order of what a failure would say.
PARTS = [
    Part("fingerprints equal the host's", "gpu_memory:fingerprints_agree", 40, True),
    Part("every write is seen", "gpu_memory:writes_are_seen", 60, True),
    Part("speed of fingerprints", "gpu_memory:fingerprint_speed", 20, False),
    Part("copy of a dirty set", "gpu_memory:dirty_set_copy", 20, False),
    Part("cost of pinning", "gpu_memory:pinning", 20, False),
    Part("attach", "gpu_attach:attach", 80, False),
    Part("a session moved between two processes", "gpu_attach:session_moves", 50, False),
    Part("a session on leased workers", "gpu_attach:session_on_workers", 60, False),
    Part("tests of real devices", "gpu_attach:device_tests", 130, False),
]
# Until a part that was told to end is killed with all that it started.
KILL_AFTER_S = 5.0


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


def run_part(run: str, device: str, limit_s: float) -> dict[str, Any]:
    """A part's figures and how it ended: ok or failed, with the reason."""
    began_s = time.monotonic()
    found: dict[str, Any] = {}
    try:
        module, _, function = run.partition(":")
        with limited(limit_s):
            found["figures"] = getattr(importlib.import_module(module), function)(device)
        found["outcome"] = "ok"
    except Exception as error:
        found |= {"outcome": "failed", "reason": f"{type(error).__name__}: {error}"[:500]}
        found["traceback"] = traceback.format_exc()
    found["took_s"] = round(time.monotonic() - began_s, 2)
    return found


def run_apart(run: str, device: str, limit_s: float) -> dict[str, Any]:
    """`run_part` in a process of its own, which is killed with its children if it does not end."""
    began_s = time.monotonic()
    command = [sys.executable, __file__, "--part", run, "--device", device, "--limit", str(limit_s)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as child:
        try:
            text, _ = child.communicate(timeout=limit_s + KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            text = ""
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
    last = (text.strip().splitlines() or [""])[-1]
    try:
        found = json.loads(last)
        assert isinstance(found, dict)
    except (ValueError, AssertionError):
        took_s = round(time.monotonic() - began_s, 2)
        reason = f"its process ended with code {child.returncode} and no figures"
        return {"outcome": "failed", "reason": reason, "took_s": took_s}
    return found


def run_all(
    parts: Sequence[Part], device: str, budget_s: float, run: Callable[[str, str, float], dict[str, Any]] = run_apart
) -> Iterator[dict[str, Any]]:
    """Each part's end, in order. One may use what those before it left of their shares, never a later one's share."""
    began_s, due_s = time.monotonic(), 0.0
    for part in parts:
        due_s = min(due_s + part.share_s, budget_s)
        left_s = began_s + due_s - time.monotonic()
        if device == "cpu" and not part.on_host:
            yield {"name": part.name, "outcome": "skipped", "reason": "needs a GPU"}
        elif left_s < part.share_s / 4:
            yield {"name": part.name, "outcome": "skipped", "reason": f"{left_s:.0f} s of the time are left"}
        else:
            yield {"name": part.name, **run(part.run, device, left_s)}


def line(found: dict[str, Any]) -> str:
    """One row of the table."""
    figures = ", ".join(f"{name} {value}" for name, value in found.get("figures", {}).items())
    said = figures or found.get("reason", "")
    return f"{found['outcome']:8} {found.get('took_s', 0):7.1f} s  {found['name']}: {said}"


def facts(device: str) -> dict[str, Any]:
    """The machine and the build; what cannot be asked is left out."""
    import machine

    found = machine.facts()
    if device != "cpu":
        try:
            import torch

            properties = torch.cuda.get_device_properties(0)
            gpu = {"name": properties.name, "memory_bytes": properties.total_memory, "cuda": torch.version.cuda}
        except Exception as error:
            gpu = {"unknown": str(error)[:200]}
        found["gpu"] = gpu
    return found


def main(arguments: list[str] | None = None, parts: Sequence[Part] = PARTS) -> int:
    """0 if no part failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="on host memory, without a GPU: only what works there")
    parser.add_argument("--json", type=Path, default=ROOT / "out" / "gpu-check.json", help="where the figures go")
    for option, kind in (("--part", str), ("--device", str), ("--limit", float)):
        parser.add_argument(option, type=kind, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        print(json.dumps(run_part(options.part, options.device, options.limit), default=str), flush=True)
        return 0
    device = "cpu" if options.dry_run else "cuda"
    options.json.parent.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for found in run_all(parts, device, BUDGET_S):
        results.append(found)
        print(line(found), flush=True)
        write(options.json, {"parts": results})
    write(options.json, {"machine": facts(device), "parts": results})
    print(f"figures: {options.json}")
    return int(any(found["outcome"] == "failed" for found in results))


def write(path: Path, found: dict[str, Any]) -> None:
    """As JSON; what is no plain value as its text."""
    path.write_text(json.dumps(found, indent=1, default=str) + "\n")


if __name__ == "__main__":
    sys.exit(main())
