"""docs/errors.md names every reason that the code can give, and none that it cannot."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

from looseleaf.errors import ERRORS_BY_CODE

ROOT = Path(__file__).resolve().parents[1]
CLASSES = {cls.__name__ for cls in ERRORS_BY_CODE.values()} | {"LooseLeafError"}
REASON = re.compile(r"[A-Z][A-Z0-9_]+")


def sources() -> Iterator[Path]:
    """Our own Python files; `looseleaf/services` is a link to `services`."""
    for folder in (ROOT / "looseleaf", ROOT / "services"):
        for path in sorted(folder.rglob("*.py")):
            if not {"v1", "services"} & set(path.relative_to(ROOT).parts[1:]):
                yield path


@functools.cache
def reasons() -> frozenset[str]:
    """Every literal reason that an error of ours is made with."""
    found = set()
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant)):
                continue
            name = getattr(node.func, "id", getattr(node.func, "attr", ""))
            if name in CLASSES and isinstance(node.args[0].value, str):
                found.add(node.args[0].value)
    return frozenset(found)


def catalogue() -> set[str]:
    """Every reason that the page names."""
    text = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    return {word for word in re.findall(r"`([A-Z0-9_]+)`", text) if REASON.fullmatch(word)}


def test_every_reason_of_the_code_is_in_the_catalogue() -> None:
    assert reasons() - catalogue() == set()


def test_catalogue_names_no_reason_that_the_code_lacks() -> None:
    peers = {word for word in catalogue() if word.endswith(("_DOWN", "_TIMEOUT"))}
    assert catalogue() - reasons() - peers == set()


def test_reasons_are_upper_snake_words() -> None:
    assert all(REASON.fullmatch(reason) for reason in reasons())
