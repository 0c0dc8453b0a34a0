"""Whether two runs of a notebook told a front end the same, apart from what no two runs share."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from golden_rules import RULES, Mask, Rule
from golden_run import CellRun, NotebookRun

# What of an execution's reply a front end uses.
REPLY_KEYS = ("status", "execution_count", "payload", "user_expressions", "ename", "evalue", "traceback")
# How much of two long values is shown, around the place where they begin to differ.
EXCERPT_CHARS = 600


@dataclass(frozen=True)
class Difference:
    """One place where the runs differ."""

    what: str
    reference: Any
    found: Any

    def __str__(self) -> str:
        one, other = repr(self.reference), repr(self.found)
        alike = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), 0)
        start = max(0, alike - EXCERPT_CHARS // 4) if max(len(one), len(other)) > EXCERPT_CHARS else 0
        shown = [f"{'...' if start else ''}{text[start : start + EXCERPT_CHARS]}" for text in (one, other)]
        return f"{self.what}\n    reference: {shown[0]}\n    found:     {shown[1]}"


@dataclass(frozen=True)
class CellComparison:
    """One cell: what differs after all rules, and the names of the rules without which more would."""

    name: str
    label: str
    differences: tuple[Difference, ...]
    rules: tuple[str, ...]


def compare(reference: NotebookRun, found: NotebookRun, rules: Sequence[Rule] = RULES) -> list[CellComparison]:
    """Every cell of `reference` beside that of `found`; both ran the same notebook."""
    assert [cell.source for cell in reference.cells] == [cell.source for cell in found.cells], "other notebooks"
    theirs, ours = _Told(reference), _Told(found)
    return [
        _compare_cell(found.cells[at], theirs.cell(one), ours.cell(found.cells[at]), rules)
        for at, one in enumerate(reference.cells)
    ]


def _compare_cell(run: CellRun, one: dict[str, Any], other: dict[str, Any], rules: Sequence[Rule]) -> CellComparison:
    differences = _differences(one, other, rules)
    needed: tuple[str, ...] = ()
    if not differences and _differences(one, other, ()):
        needed = tuple(
            rule.name for rule in rules if _differences(one, other, [each for each in rules if each is not rule])
        )
        # Two rules may mask the same text: then neither is missed alone.
        needed = needed or tuple(rule.name for rule in rules if _masks_something(one, rule))
    return CellComparison(run.name, run.label, differences, needed)


def _masks_something(told: dict[str, Any], rule: Rule) -> bool:
    return any(isinstance(value, str) and rule.mask(value) != value for value in told.values())


def _differences(one: dict[str, Any], other: dict[str, Any], rules: Sequence[Rule]) -> tuple[Difference, ...]:
    found = []
    masks = [rule.mask for rule in rules]
    for key in dict.fromkeys([*one, *other]):
        values = [_masked(told.get(key, "(nothing)"), masks) for told in (one, other)]
        if values[0] != values[1]:
            found.append(Difference(key, *values))
    return tuple(found)


def _masked(value: Any, masks: Sequence[Mask]) -> Any:
    if isinstance(value, str):
        for mask in masks:
            value = mask(value)
    return value


class _Told:
    """The cells of one run as flat maps from a place, such as `output 2 (error), traceback`, to a plain value.

    Ids that a kernel draws by chance are numbered in the order in which the notebook tells of them, and the run's
    folder is `<folder>`.
    """

    def __init__(self, run: NotebookRun) -> None:
        self._names = {str(run.folder): "<folder>"}
        for number, comm in enumerate((comm for cell in run.cells for comm in cell.comms), 1):
            self._names[comm] = f"<widget {number}>"
        self._displays: dict[str, int] = {}

    def cell(self, run: CellRun) -> dict[str, Any]:
        """What the cell told. Messages come after the outputs that stand at the end, which they made."""
        told: dict[str, Any] = {"number of the run": run.execution_count}
        for key in REPLY_KEYS:
            self._flatten(run.reply.get(key, "(nothing)"), f"reply, {key}", told)
        for number, (kind, content) in enumerate(_joined(run.messages), 1):
            place = f"message {number} ({kind})"
            told[place] = kind
            self._flatten(self._content(kind, content), place, told)
        for number, (kind, content) in enumerate(_joined([(out["output_type"], out) for out in run.outputs]), 1):
            place = f"output {number} ({kind})"
            told[place] = kind
            self._flatten(self._content(kind, content), place, told)
        for comm, state in run.widgets.items():
            self._flatten(state, self._named(comm), told)
        return told

    def _named(self, text: str) -> str:
        for drawn, name in self._names.items():
            text = text.replace(drawn, name)
        return text

    def _content(self, kind: str, content: dict[str, Any]) -> dict[str, Any]:
        keys = {
            "streams": ("stdout", "stderr"), "error": ("ename", "evalue", "traceback"), "clear_output": ("wait",),
        }.get(kind, ("data", "metadata", "execution_count"))  # fmt: skip
        chosen = {key: content[key] for key in keys if content.get(key) is not None}
        display = (content.get("transient") or {}).get("display_id")
        if display is not None:
            chosen["display"] = self._displays.setdefault(display, len(self._displays) + 1)
        return chosen

    def _flatten(self, value: Any, place: str, told: dict[str, Any]) -> None:
        if isinstance(value, dict):
            for key in sorted(value):
                inner = value[key]
                if key in ("image/png", "image/jpeg") and isinstance(inner, str):
                    inner = pixels(base64.b64decode(inner))
                self._flatten(inner, f"{place}, {key}", told)
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            told[place] = self._named("\n".join(value))
        elif isinstance(value, (list, tuple)):
            told[f"{place}, length"] = len(value)
            for number, item in enumerate(value, 1):
                self._flatten(item, f"{place}, {number}", told)
        else:
            told[place] = self._named(value) if isinstance(value, str) else value


def _joined(messages: Sequence[tuple[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The messages; what stdout and stderr say between two others is one: no kernel keeps their order or pieces."""
    joined: list[tuple[str, dict[str, Any]]] = []
    for kind, content in messages:
        if kind != "stream":
            joined.append((kind, content))
            continue
        if not joined or joined[-1][0] != "streams":
            joined.append(("streams", {"stdout": "", "stderr": ""}))
        joined[-1][1][content["name"]] += content["text"]
    return joined


def pixels(data: bytes) -> str:
    """Size of an image and a hash of what it shows, which does not depend on how it was compressed."""
    from PIL import Image

    with Image.open(io.BytesIO(data)) as image:
        shown = image.convert("RGBA")
    width, height = shown.size
    return f"image of {width}x{height} pixels, {hashlib.sha256(shown.tobytes()).hexdigest()[:16]}"
