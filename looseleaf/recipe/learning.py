"""A cell's label, corrected or confirmed by what running such a cell has shown (design §4).

A lesson belongs to a *guess*: a cell's text, the label that was derived for it, for a GPU the reason, and the code that
it reaches. So it says nothing once the circumstances are others, such as another value of `device`.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from looseleaf.dirty_tracker import hash128
from looseleaf.recipe.label import CERTAIN, DeviceLabel, GpuKind, Label
from looseleaf.recipe.lessons import Lesson

# Definitions whose text is hashed once.
CODE_HASHES_MAX: Final = 4096
# A cell that used the GPU will do so again; one that did not may have gone another way.
TOUCHED_CONFIDENCE: Final = 0.97
UNTOUCHED_CONFIDENCE: Final = 0.95
# Against what the text says: tried, with a way back.
AGAINST_TEXT_CONFIDENCE: Final = 0.8
_GUESS_CHARS: Final = 32


def guess_of(source_hash: str, label: Label, code: Iterable[ast.AST]) -> str:
    """A short text that is equal for equal cells, labels, definitions that the cell reaches and reasons for a GPU.

    Why nothing seems to use one depends on how much is known of the objects, which a run changes.
    """
    reason = label.reason if label.label is DeviceLabel.GPU else ""
    parts = [source_hash, str(label.label), reason, *sorted(map(_code_hash, code))]
    return hash128("\0".join(parts).encode("utf-8", "surrogatepass")).hex()[:_GUESS_CHARS]


@functools.lru_cache(maxsize=CODE_HASHES_MAX)
def _code_hash(node: ast.AST) -> str:
    try:
        return hash128(ast.dump(node).encode("utf-8", "surrogatepass")).hex()
    except RecursionError:
        # Nested deeper than our recursion: lines tell it from most others.
        return f"{getattr(node, 'lineno', 0)}-{getattr(node, 'end_lineno', 0)}"


def learned_label(label: Label, lesson: Lesson | None) -> Label:
    """The guessed `label`, corrected or confirmed by what running such a cell has shown; the reason says so.

    A cell whose variables live on a GPU stays there: without touching them it would still need them. So does what
    only a person or a shell line may decide.
    """
    if lesson is None or label.confidence >= 1.0:
        return label
    if lesson.uses_gpu:
        if label.label is DeviceLabel.GPU:
            return replace(label, confidence=max(label.confidence, TOUCHED_CONFIDENCE))
        reason = "It was learned that it uses the GPU, which its text does not show."
        return Label(DeviceLabel.GPU, reason, TOUCHED_CONFIDENCE, GpuKind.COMPUTE)
    if label.label is DeviceLabel.CPU:
        if label.confidence >= CERTAIN:
            return label
        reason = f"{label.reason} It was learned that it does not use the GPU."
        return replace(label, reason=reason, confidence=UNTOUCHED_CONFIDENCE)
    if not label.may_learn_cpu:
        return label
    reason = "It was learned that it does not use the GPU, although its text looks so."
    return Label(DeviceLabel.CPU, reason, AGAINST_TEXT_CONFIDENCE, GpuKind.NONE)
