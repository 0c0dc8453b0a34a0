"""The rules by which two runs of one notebook may differ: what varies from run to run on any kernel.

Each has a name, under which the summary counts the cells that are equal only after it, a reason, and the text that it
masks. What they mask, and that they mask nothing else, is held by test_golden_rules.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

# A text as one run showed it to a text that does not depend on the run.
Mask = Callable[[str], str]


@dataclass(frozen=True)
class Rule:
    """A named mask and why it is right."""

    name: str
    reason: str
    mask: Mask


def _replace(pattern: str, replacement: str) -> Mask:
    compiled = re.compile(pattern)
    return lambda text: compiled.sub(replacement, text)


def _overwritten(text: str) -> str:
    """Only the last of the states that a line had when carriage returns wrote over it."""
    if "\r" not in text:
        return text
    lines = text.replace("\r\n", "\n").split("\n")
    return "\n".join(next((state for state in reversed(line.split("\r")) if state), "") for line in lines)


RULES = (
    Rule(
        "timing magics", "%time and %%time print how long the cell took",
        _replace(r"((?:CPU times: |Wall time: ))[^\n]*", r"\1..."),
    ),
    Rule(
        "time per loop", "%timeit prints how long each loop took, and chooses how many to run",
        _replace(
            r"(?:The slowest run took [^\n]* longer than the fastest[^\n]*\n)?"
            r"\b(?:\d+(?:\.\d+)?(?:e\+\d+)? ?(?:d|h|min|[mµμnu]?s) ){1,4}± [^\n]*",
            "... per loop",
        ),
    ),
    Rule("address", "an object's default repr shows its address", _replace(r"\b0x[0-9a-fA-F]{6,}\b", "0x...")),
    Rule(
        "cell file", "a traceback names the file that the kernel gave to the cell, by process id and content",
        _replace(r"/tmp/ipykernel_\d+/\d+\.py|<ipython-input-\d+-[0-9a-f]+>", "<cell>"),
    ),
    Rule(
        "log stamp", "a log line begins with the time and the process id",
        _replace(r"(?m)^([IWE])\d{4} \d\d:\d\d:\d\d\.\d+ +\d+ ", r"\1... "),
    ),
    Rule("temporary path", "tempfile chooses names by chance", _replace(r"/tmp/tmp[a-z0-9_]{8}\b", "/tmp/tmp...")),
    Rule(
        "progress rate", "a progress bar shows elapsed time and rate",
        _replace(r"\[\d+:\d\d(?::\d\d)?<(?:\?|\d+:\d\d(?::\d\d)?), +[^\]\n]*\]", "[...]"),
    ),
    Rule("overwritten line", "how often a line is drawn again depends on time; the last state stays", _overwritten),
)  # fmt: skip
