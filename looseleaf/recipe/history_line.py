"""What a line of the `%looseleaf` magic asks for: read by the kernel, which does it, and by recipes (design §3, §4)."""

from __future__ import annotations

import keyword
import shlex
from dataclasses import dataclass
from typing import Final

from looseleaf.errors import InvalidArgument
from looseleaf.recipe.gpu_line import seconds_of

# The magic's own name.
HISTORY_MAGIC: Final = "looseleaf"
# The text of a run that no person made: the kernel's log goes on from an older version, and nothing is defined yet.
FORGET_ALL: Final = f"%{HISTORY_MAGIC} forget"
# Versions that `log` shows unless it is told a number.
LOG_VERSIONS: Final = 20
_COMMANDS: Final = (
    "log", "history", "diff", "checkout", "restore", "status", "explain", "outputs", "release", "pin", "help"
)  # fmt: skip
_FLAGS: Final = frozenset({"--force"})
_VALUED: Final = frozenset({"--version", "--as", "-n", "--session"})
_ALLOWED: Final = {
    "log": {"-n"}, "history": {"-n"}, "explain": {"-n"}, "checkout": {"--force"}, "restore": {"--version", "--as"},
    "outputs": {"-n", "--session"},
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HistoryLine:
    """One command with its arguments.

    `versions`: as they were typed, so that -1 is the version before the newest. `names`: of `restore`; `target`: the
    name to bind instead. `version`: of `restore`, 0 if none was named. `limit`: of `log`, `explain` and `outputs`.
    `seconds`: of `pin`, 0 for none.
    `execution`: of `outputs`, a cell's number or id, empty for the list of them; `session`: the one that it is of.
    """

    command: str
    versions: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    version: int = 0
    target: str = ""
    limit: int = LOG_VERSIONS
    force: bool = False
    execution: str = ""
    session: str = ""
    seconds: float = 0.0

    @property
    def binds(self) -> tuple[str, ...]:
        """Names that it binds; a checkout may bind or delete any."""
        return (self.target,) if self.target else self.names


def parse_history_line(line: str) -> HistoryLine:
    """What `line`, the magic's argument, asks for. Raises InvalidArgument `MAGIC_MALFORMED`."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError as error:
        raise _malformed(f"{error} in {line!r}") from error
    command = words[0] if words else "help"
    if command not in _COMMANDS:
        raise _malformed(f"there is no command {command!r}")
    options, rest = _options(command, words[1:])
    if command == "restore":
        return _restore(rest, options)
    if command == "outputs":
        return _outputs(rest, options)
    if command == "pin":
        return _pin(rest)
    limits = {"diff": (0, 2), "checkout": (1, 1)}
    least, most = limits.get(command, (0, 0))
    if not least <= len(rest) <= most:
        wanted = "one version" if least else f"at most {most} versions" if most else "no versions"
        raise _malformed(f"{command!r} takes {wanted}, not {' '.join(rest) or 'nothing'}")
    return HistoryLine(
        command, versions=tuple(_number(text) for text in rest), force="--force" in options,
        limit=_count(options["-n"]) if "-n" in options else LOG_VERSIONS,
    )  # fmt: skip


def _options(command: str, words: list[str]) -> tuple[dict[str, str], list[str]]:
    """(options with their values, the words that are none)."""
    options: dict[str, str] = {}
    rest: list[str] = []
    words = list(words)
    while words:
        word = words.pop(0)
        if not word.startswith("-") or _is_number(word):
            rest.append(word)
            continue
        name, equals, value = word.partition("=")
        if name not in _ALLOWED.get(command, set()):
            raise _malformed(f"{command!r} has no option {name!r}")
        if name in options:
            raise _malformed(f"{name!r} stands there twice")
        if name in _VALUED and not equals:
            if not words:
                raise _malformed(f"{name!r} needs a value")
            value = words.pop(0)
        if name in _FLAGS and equals:
            raise _malformed(f"{name!r} takes no value")
        options[name] = value
    return options, rest


def _restore(names: list[str], options: dict[str, str]) -> HistoryLine:
    names = list(dict.fromkeys(names))
    if not names:
        raise _malformed("'restore' needs the name of a variable")
    target = options.get("--as", "")
    if "--as" in options and len(names) != 1:
        raise _malformed("'--as' goes with one name")
    for name in [*names, *([target] if "--as" in options else [])]:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise _malformed(f"{name!r} is no variable's name")
    version = _number(options["--version"]) if "--version" in options else 0
    return HistoryLine("restore", names=tuple(names), version=version, target=target)


def _outputs(words: list[str], options: dict[str, str]) -> HistoryLine:
    if len(words) > 1:
        raise _malformed(f"'outputs' takes one cell, not {' '.join(words)}")
    limit = _count(options["-n"]) if "-n" in options else LOG_VERSIONS
    return HistoryLine(
        "outputs", execution=words[0] if words else "", session=options.get("--session", ""), limit=limit
    )


def _pin(words: list[str]) -> HistoryLine:
    seconds = seconds_of(words[0]) if len(words) == 1 else 0.0 if not words else None
    if seconds is None:
        raise _malformed(f"'pin' takes a time such as 60s or 5m, not {' '.join(words)}")
    return HistoryLine("pin", seconds=seconds)


def _is_number(text: str) -> bool:
    return text.removeprefix("-").isdecimal() and text.isascii() and len(text) <= len(str(2**63))


def _number(text: str) -> int:
    """A version, or with a minus how many kept versions before the newest."""
    if not _is_number(text) or not -(2**63) < int(text) < 2**63 or int(text) == 0:
        raise _malformed(f"{text!r} is no version: they count from 1, and -1 is the one before the newest")
    return int(text)


def _count(text: str) -> int:
    if not _is_number(text) or int(text) < 1:
        raise _malformed(f"{text!r} is no number of versions")
    return int(text)


def _malformed(why: str) -> InvalidArgument:
    text = f"{why}; nothing was changed. %{HISTORY_MAGIC} help shows what there is"
    return InvalidArgument("MAGIC_MALFORMED", text)
