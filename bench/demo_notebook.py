"""A notebook of tensors, arrays, frames and lists, and cells that need a part of what it made.

It is that of `peers_prep.py --demo GB`, so that the rivals' figures are for the same state.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

PACKAGES: Final = ("numpy", "pandas", "torch")
TENSORS: Final = 20
# What each cell below needs besides its tensors: a model, a function that calls it, a number.
NEEDED: Final = ("forward", "net", "step")
# Share of the state's tensors, and so of its bytes, that a cell needs.
SHARES: Final = (5, 20, 100)


def cells(gigabytes: float) -> list[str]:
    """The notebook up to the cell that is prepared, with so many times 10^9 bytes of tensors."""
    tensors = (
        f"per = int({gigabytes} * 1e9 / 4 / 20)\n"
        "rng = np.random.default_rng(0)\n"
        "for _i in range(20):\n"
        "    globals()[f't{_i}'] = torch.from_numpy(rng.integers(0, 2**31, per, dtype=np.int32)).view(torch.float32)"
    )
    frames = (
        "for _i in range(5):\n"
        "    globals()[f'df{_i}'] = pd.DataFrame({'x': rng.standard_normal(50_000), "
        "'s': [f'k{j % 97}' for j in range(50_000)]})"
    )
    model = (
        "net = torch.nn.Sequential(torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Linear(512, 10))\n"
        "opt = torch.optim.AdamW(net.parameters())\ncfg = {'lr': 1e-3}\nstep = 7\n"
        "def forward(x):\n    return net(x).argmax(1)"
    )
    arrays = (
        "view0 = t0[:1000]\nalias1 = t1\nfor _i in range(10):\n    globals()[f'a{_i}'] = rng.standard_normal(100_000)"
    )
    lists = "for _i in range(10):\n    globals()[f'l{_i}'] = [(j, str(j), {'k': j}) for j in range(5_000)]"
    return ["import numpy as np, pandas as pd, torch", tensors, arrays, frames, lists, model]


def variables() -> tuple[str, ...]:
    """All that these cells leave."""
    rows = [("t", TENSORS), ("a", 10), ("df", 5), ("l", 10)]
    numbered = [f"{letter}{number}" for letter, count in rows for number in range(count)]
    return (*numbered, "view0", "alias1", "rng", "per", "net", "opt", "cfg", "step", "forward")


@dataclass(frozen=True)
class Closure:
    """A GPU cell that needs `names`; `share`: of the state's tensors, in percent."""

    share: int
    names: tuple[str, ...]

    @property
    def source(self) -> str:
        """Answers with what it found: how many variables, and whether tensors that shared memory still do."""
        lines = [f"print(len([{', '.join(self.names)}]), forward(torch.ones(2, 256)).shape, step)"]
        if self.is_whole:
            lines.append("print(view0.data_ptr() == t0.data_ptr(), alias1 is t1)")
        return "\n".join(["%%gpu", *lines])

    @property
    def is_whole(self) -> bool:
        """It needs every variable."""
        return self.share == 100

    @property
    def answer(self) -> str:
        """What `source` prints if everything is there."""
        return f"{len(self.names)} torch.Size([2]) 7\n" + ("True True\n" if self.is_whole else "")


def closure(share: int) -> Closure:
    """Of so many percent; the last tensors, which nothing else refers to."""
    if share == 100:
        return Closure(share, variables())
    first = TENSORS - max(1, TENSORS * share // 100)
    return Closure(share, (*(f"t{number}" for number in range(first, TENSORS)), *NEEDED))


def packages(names: Iterable[str]) -> list[str]:
    """Those of the notebook's packages that these modules belong to."""
    return sorted({name.partition(".")[0] for name in names}.intersection(PACKAGES))
