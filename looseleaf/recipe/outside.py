"""What of a session lies outside its variables in the device walk: files, scripts, shell lines."""

from __future__ import annotations

import ast
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from looseleaf.recipe.calls import CallRules
from looseleaf.recipe.shell import shell_use
from looseleaf.recipe.values import Value

CueKind = Literal["compute", "resident", "shell"]


@dataclass(frozen=True, slots=True)
class DeviceCue:
    """One thing in the code that uses a GPU. `text` is the reason for people, `confidence` 0 to 1."""

    text: str
    confidence: float
    kind: CueKind = "compute"


@dataclass(frozen=True, slots=True)
class Background:
    """What of a session matters to the walk besides its names.

    `uses_gpu`, `uses_framework`: whether it works with a GPU, or with a library that would use one.
    `scripts`: texts of files that it wrote. `saved_on_gpu`: for the files that it saved tensors to, by path or by the
    expression that gives it, whether they were on a GPU. `default_gpu`: tensors are made there.
    """

    star_modules: Sequence[str] = ()
    uses_gpu: Callable[[], bool] = lambda: False
    uses_framework: Callable[[], bool] = lambda: False
    scripts: Mapping[str, str] = field(default_factory=dict)
    saved_on_gpu: Mapping[str, bool] = field(default_factory=dict)
    default_gpu: bool = False


NO_BACKGROUND = Background()


class OutsideRules(CallRules):
    """The part of the device walk that knows of files and shell lines. `saved`: files that the cell itself saves."""

    def __init__(self, background: Background) -> None:
        super().__init__()
        self.uses_gpu = background.uses_gpu
        self.uses_framework = background.uses_framework
        self.default_gpu = background.default_gpu
        self._background = background
        self.saved: dict[str, bool] = {}

    @abstractmethod
    def cue(self, text: str, confidence: float, kind: CueKind = "compute") -> None:
        """Notes a use of the GPU."""

    @abstractmethod
    def cue_in(self, program: str) -> DeviceCue | None:
        """The surest use of a GPU in a program of its own."""

    def loads(self, node: ast.Call) -> str:
        place = node.args[0] if node.args else None
        for key in _places(place, self):
            saved = self.saved.get(key, self._background.saved_on_gpu.get(key))
            if saved is not None:
                return "loads what was saved on the GPU" if saved else ""
        return "loads to the device that was saved from" if self.uses_gpu() else ""

    def saves(self, node: ast.Call, value: Value) -> None:
        if len(node.args) > 1:
            for key in _places(node.args[1], self):
                self.saved[key] = value.resident

    def shell(self, body: str) -> None:
        use = shell_use(body)
        self.asks = self.asks or use.asks
        texts = [*use.programs, *(self._background.scripts[s] for s in use.scripts if s in self._background.scripts)]
        unknown = [s for s in use.scripts if s not in self._background.scripts]
        if use.confidence and (unknown or not use.scripts):
            self.cue("a shell line starts GPU work", use.confidence, "shell")
        for text in texts:
            cue = self.cue_in(text)
            if cue is not None:
                self.cue(f"a shell line runs Python where {cue.text}", cue.confidence, "shell")


def _places(place: ast.expr | None, walk: OutsideRules) -> list[str]:
    """What a file goes by: its path if that is known, and the expression that gives it."""
    if place is None:
        return []
    value = walk.eval(place)
    known_path = [value.flag] if value.known and isinstance(value.flag, str) else []
    return [*known_path, f"={ast.unparse(place)}"] if not isinstance(place, ast.Constant) else known_path
