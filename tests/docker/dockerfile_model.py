"""The Dockerfile as data, and its RUN lines as this machine can run them in an empty virtual environment.

Only what our file uses is understood; anything else raises, so that a new kind of line gets its check.
"""

from __future__ import annotations

import fnmatch
import re
import shlex
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from compose_model import DOCKER, ROOT

KEYWORDS: Final = {"FROM", "ARG", "ENV", "RUN", "COPY", "WORKDIR", "USER", "LABEL", "EXPOSE", "CMD"}
_MOUNT = re.compile(r"--mount=(\S+)\s+")


@dataclass(frozen=True)
class Instruction:
    """One line of the file, with its continuation lines."""

    keyword: str
    text: str


@dataclass
class Stage:
    """What lies between two FROM lines. `base`: another stage's name, or an image."""

    name: str
    base: str
    instructions: list[Instruction] = field(default_factory=list)

    def texts(self, keyword: str) -> list[str]:
        """The arguments of all lines with the keyword, in order."""
        return [item.text for item in self.instructions if item.keyword == keyword]

    @property
    def user(self) -> str:
        """Who its last line leaves, empty if it names nobody."""
        return (self.texts("USER") or [""])[-1]

    @property
    def args(self) -> dict[str, str]:
        """Build arguments with their defaults."""
        return dict(_assignment(text) for text in self.texts("ARG"))

    @property
    def env(self) -> dict[str, str]:
        """What ENV lines set."""
        return dict(_assignment(word) for text in self.texts("ENV") for word in shlex.split(text))


@dataclass(frozen=True)
class Dockerfile:
    """`stages` by name in their order; `args` stand before the first FROM."""

    args: dict[str, str]
    stages: dict[str, Stage]

    def lineage(self, name: str) -> list[Stage]:
        """The stages that the image of `name` is made of, first to last."""
        stage = self.stages[name]
        return [*(self.lineage(stage.base) if stage.base in self.stages else []), stage]


def read(path: Path = DOCKER / "Dockerfile") -> Dockerfile:
    """The file; raises AssertionError for a keyword that nobody has looked at."""
    args: dict[str, str] = {}
    stages: dict[str, Stage] = {}
    stage: Stage | None = None
    for item in _instructions(path.read_text(encoding="utf-8")):
        assert item.keyword in KEYWORDS, f"{item.keyword} is not understood"
        if item.keyword == "FROM":
            base, as_word, name = item.text.split()
            assert as_word == "AS", item.text
            stage = stages[name] = Stage(name, base)
        elif stage is None:
            assert item.keyword == "ARG", item.text
            args.update([_assignment(item.text)])
        else:
            stage.instructions.append(item)
    return Dockerfile(args, stages)


def mounts_of(run: str) -> list[dict[str, str]]:
    """The --mount options of a RUN line."""
    return [dict(part.split("=", 1) for part in match[1].split(",")) for match in _MOUNT.finditer(run)]


def without_mounts(run: str) -> str:
    """The command of a RUN line."""
    return _MOUNT.sub("", run)


def context_files() -> list[str]:
    """Files that the build gets: those that git has or does not ignore, less what the ignore file drops."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in listed.stdout.splitlines() if (ROOT / name).exists() and is_in_context(name)]


def is_in_context(name: str) -> bool:
    """Whether `docker build` sends the file: the last line that matches it or a folder above it decides."""
    sent = True
    for pattern in ignore_patterns():
        if _matches(pattern.removeprefix("!"), name):
            sent = pattern.startswith("!")
    return sent


def ignore_patterns() -> list[str]:
    """The lines of the ignore file that are no comments."""
    lines = (DOCKER / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def _matches(pattern: str, name: str) -> bool:
    parts = name.split("/")
    if pattern.startswith("**/"):
        return any(fnmatch.fnmatchcase(part, pattern[3:]) for part in parts)
    wanted = pattern.split("/")
    assert "**" not in wanted, f"{pattern} is not understood"
    # A star does not cross folders; what matches a folder matches all below it.
    return len(parts) >= len(wanted) and all(map(fnmatch.fnmatchcase, parts, wanted))


def _instructions(text: str) -> Iterator[Instruction]:
    pending = ""
    for line in text.splitlines():
        if line.lstrip().startswith("#") or not line.strip():
            continue
        if line.endswith("\\"):
            pending += line[:-1].strip() + " "
            continue
        keyword, _, rest = (pending + line.strip()).partition(" ")
        pending = ""
        yield Instruction(keyword, rest.strip())
    assert not pending, "the last line goes on"


def _assignment(text: str) -> tuple[str, str]:
    name, _, value = text.partition("=")
    return name, value.strip('"')
