"""Warning filters that libraries add when they are imported: a process that imported them early has them, too.

A session's filters replace those of the process that takes it up. What a library's import has added there would be lost
with them, as the import is not done again when the session's own `import` statement comes.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

from looseleaf.checkpoint.warning_filters import by_category_name

# A filter, and whether it goes behind the others, by the package whose code added it.
_added: dict[str, list[tuple[Any, bool]]] = {}


@contextmanager
def noted() -> Iterator[None]:
    """Inside, libraries that are imported have their filters noted."""
    add: Any = warnings._add_filter  # type: ignore[attr-defined]

    def add_and_note(*item: Any, append: bool) -> None:
        # Called by `filterwarnings` and `simplefilter`, whose caller it is.
        package = str(sys._getframe(2).f_globals.get("__name__", "")).partition(".")[0]
        _added.setdefault(package, []).append((item, append))
        add(*item, append=append)

    warnings._add_filter = add_and_note  # type: ignore[attr-defined]
    try:
        yield
    finally:
        warnings._add_filter = add  # type: ignore[attr-defined]
        for package, items in _added.items():
            # Some add one for a moment only.
            _added[package] = [(item, append) for item, append in items if item in warnings.filters]


def packages_here() -> set[str]:
    """The packages of other people that this process has imported."""
    names = {name.partition(".")[0] for name in list(sys.modules)}
    return {name for name in names if name not in sys.stdlib_module_names and not name.startswith("_")}


def completed(filters: list[Any], packages: Collection[str]) -> list[Any]:
    """`filters`, of a session that has imported `packages`, with those of packages that only this process has.

    Categories of libraries by name, as in `warning_filters`.
    """
    found = list(filters)
    for package, items in _added.items():
        for item, append in items if package not in packages else ():
            if by_category_name(item) not in found:
                found.insert(len(found) if append else 0, by_category_name(item))
    return found
