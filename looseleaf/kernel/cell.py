"""One cell of the notebook on its way through the kernel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from looseleaf.kernel.router import CellRequest
from looseleaf.recipe.recipe import Recipe


@dataclass(frozen=True)
class Cell:
    """`recipe`: as it was at Run. `rest`: the text without looks at variables. `began_s`: Run, on the monotonic clock.

    `used`: what it used of a GPU when it ran on the CPU, where it was taken back; empty if it was not.
    """

    request: CellRequest
    recipe: Recipe
    rest: str
    user_expressions: Any
    allow_stdin: bool
    began_s: float
    used: str = ""
