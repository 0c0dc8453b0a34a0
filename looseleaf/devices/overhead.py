"""What the virtual device adds to a torch call: `python -m looseleaf.devices.overhead`.

For each small call: microseconds without LooseLeaf, on the host and on a virtual device with it; the best of several
rounds. The target is about 6 µs a call on a device (design §8).
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

from looseleaf import devices

CALLS = 300
ROUNDS = 60


def _microseconds(call: Callable[[], Any]) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        for _ in range(CALLS):
            call()
        best = min(best, time.perf_counter() - begin)
    return best / CALLS * 1e6


def _cases(torch: Any, device: str) -> dict[str, Callable[[], Any]]:
    x = torch.ones(8, 8, device=device)
    layer = torch.nn.Linear(8, 8).to(device)
    parts = [x] * 20
    return {
        "x.shape": lambda: x.shape,
        "x.device": lambda: x.device,
        "x.view(-1)": lambda: x.view(-1),
        "x[0]": lambda: x[0],
        "x + x": lambda: x + x,
        "x.add_(0)": lambda: x.add_(0),
        "torch.cat(20 tensors)": lambda: torch.cat(parts),
        "nn.Linear(x)": lambda: layer(x),
        "torch.rand(8)": lambda: torch.rand(8, device=device),
        "zeros(8)": lambda: torch.zeros(8, device=device),
    }


def main() -> None:
    """Print the table."""
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    plain = {name: _microseconds(call) for name, call in _cases(torch, "cpu").items()}
    devices.install("worker", "emulated", 1)
    host = {name: _microseconds(call) for name, call in _cases(torch, "cpu").items()}
    virtual = {name: _microseconds(call) for name, call in _cases(torch, "cuda").items()}
    devices.uninstall()
    print(f"{'call':<24}{'plain':>8}{'host':>8}{'device':>8}   µs a call, best of {ROUNDS} rounds of {CALLS}")
    for name, one in plain.items():
        print(f"{name:<24}{one:>8.2f}{host[name]:>8.2f}{virtual[name]:>8.2f}")


if __name__ == "__main__":
    main()
