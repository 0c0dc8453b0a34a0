"""Shell lines and the GPU: launchers, scripts, and lines that only ask the driver."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field
from typing import Final

from looseleaf.recipe.magics import commands_of, is_install

_LAUNCHER: Final = re.compile(r"\b(accelerate\s+launch|torchrun|deepspeed|torch\.distributed|horovodrun|vllm\s+serve)")
_ASKING: Final = re.compile(r"^\s*(?:\S*/)?(nvidia-smi|nvcc|rocm-smi|gpustat|nvtop)\b")
_PYTHON: Final = re.compile(r"^(?:\S*/)?python[\d.]*$")
_GPU_OPTION: Final = re.compile(r"^-{0,2}\w*(gpu|cuda)", re.IGNORECASE)
_ON_CPU: Final = re.compile(r"^-{0,2}(device[= ])?cpu$|no[-_](cuda|gpu)", re.IGNORECASE)
_WORKING_SCRIPT: Final = re.compile(r"(train|tun|infer|eval|generat|bench|predict|test)\w*\.py$", re.IGNORECASE)
# Lines of a body, and words of a line, that are looked at.
_LINES_MAX: Final = 1000
_WORDS_MAX: Final = 200


@dataclass(frozen=True, slots=True)
class ShellUse:
    """What shell lines do with a GPU.

    `confidence`: that one uses it, 0 if none seems to. `asks`: one asks the driver. `programs`: Python given as text.
    `scripts`: files that Python runs.
    """

    confidence: float = 0.0
    asks: bool = False
    programs: tuple[str, ...] = ()
    scripts: tuple[str, ...] = field(default=())


def shell_use(body: str) -> ShellUse:
    """What the lines of `body` do, each a command; never raises."""
    confidence, asks, programs, scripts = 0.0, False, [], []
    for line in body.splitlines()[:_LINES_MAX]:
        line = _without_installs(line)
        asks = asks or bool(_ASKING.match(line))
        if _LAUNCHER.search(line):
            confidence = max(confidence, 0.8)
        words = _words(line)
        for index, word in enumerate(words):
            if not _PYTHON.match(word):
                continue
            rest = words[index + 1 :]
            if rest[:1] == ["-c"]:
                programs += rest[1:2]
                break
            script = next((w for w in rest if w.endswith(".py")), "")
            if script:
                scripts.append(script)
                confidence = max(confidence, _script_confidence(script, rest))
            break
    return ShellUse(confidence, asks, tuple(programs), tuple(scripts))


def _without_installs(line: str) -> str:
    """What is installed does not run, whatever it is called."""
    commands = commands_of(line)
    left = [command for command in commands if not is_install(command)]
    return line if len(left) == len(commands) else " ; ".join(left)


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line)[:_WORDS_MAX]
    except ValueError:
        return line.split()[:_WORDS_MAX]


def _script_confidence(script: str, rest: list[str]) -> float:
    """How sure a script with these words uses a GPU, if its text is not known."""
    if any(_ON_CPU.search(word) for word in rest):
        return 0.0
    if any(_GPU_OPTION.match(word) for word in rest if word != script):
        return 0.7
    return 0.55 if _WORKING_SCRIPT.search(script) else 0.0
