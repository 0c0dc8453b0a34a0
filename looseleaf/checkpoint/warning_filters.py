"""The warnings filters of a process as part of its state, without importing libraries for them.

A filter for a library's own category is kept by the category's name: no such warning can come before the library is
imported. Then the filter takes the place that it had, unless the library has set it by itself.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, Final

from looseleaf.checkpoint import by_name
from looseleaf.checkpoint.identity import has_identity
from looseleaf.devices.hook import PostImportHook

# (action, message pattern, category or its (module, qualified name), module pattern, line number)
Filter = tuple[Any, ...]
_CATEGORY: Final = 2
# Filters whose libraries are waited for; what is beyond, the last in the order of filters, is dropped.
WAITING_MAX: Final = 256


def by_category_name(entry: Filter) -> Filter:
    """The filter with a library's category replaced by its name."""
    category = entry[_CATEGORY]
    name = by_name.qualified_name(category) if isinstance(category, type) else None
    return entry if name is None or name[0] == "builtins" else _with_category(entry, name)


def by_category(entry: Filter) -> Filter | None:
    """The filter with its category, None as long as that is not imported."""
    category = entry[_CATEGORY]
    if not isinstance(category, tuple):
        return entry
    module, qualified_name = category
    found: Any = sys.modules.get(module)
    for part in qualified_name.split("."):
        found = getattr(found, part, None)
    return _with_category(entry, found) if isinstance(found, type) and issubclass(found, Warning) else None


def _with_category(entry: Filter, category: Any) -> Filter:
    return (*entry[:_CATEGORY], category, *entry[_CATEGORY + 1 :])


def merged(now: Sequence[Filter], recorded: Sequence[Filter], added: Iterable[Filter]) -> list[Filter]:
    """`now` with those of `added` that it lacks, each before the next one after it in `recorded`, else at the end."""
    found = list(now)
    places = {entry: place for place, entry in reversed(list(enumerate(recorded)))}
    for entry in added:
        if entry in found:
            continue
        after = [other for other in recorded[places.get(entry, len(recorded)) + 1 :] if other in found]
        found.insert(found.index(after[0]) if after else len(found), entry)
    return found


def without_session_categories(filters: Iterable[Filter]) -> list[Filter]:
    """Those filters that move whatever becomes of the session's own classes."""
    return [entry for entry in filters if isinstance(entry[_CATEGORY], tuple) or not has_identity(entry[_CATEGORY])]


class WarningFilters:
    """Reads and sets the filters of this process."""

    def __init__(self) -> None:
        self._recorded: list[Filter] = []
        self._waiting: list[Filter] = []
        self._hooks: list[PostImportHook] = []
        # The list that was set: inside `catch_warnings` another stands in its place.
        self._list: Any = warnings.filters

    def read(self) -> list[Filter]:
        """The filters now, with those that still wait for their libraries."""
        return merged([by_category_name(entry) for entry in warnings.filters], self._recorded, self._waiting)

    def apply(self, recorded: Sequence[Filter]) -> None:
        """Sets the filters, and those of libraries that are not imported when they are."""
        self.wait_no_longer()
        self._recorded = [by_category_name(tuple(entry)) for entry in recorded]
        here = [by_category(entry) for entry in self._recorded]
        waiting = [entry for entry, found in zip(self._recorded, here, strict=True) if found is None]
        self._waiting = waiting[:WAITING_MAX]
        self._list = warnings.filters
        _set(self._list, [found for found in here if found is not None])
        modules = dict.fromkeys(entry[_CATEGORY][0] for entry in self._waiting)
        self._hooks = [PostImportHook(module, self._catch_up) for module in modules]
        for hook in self._hooks:
            hook.start()

    def wait_no_longer(self) -> None:
        """Filters of libraries that are not imported yet are not set any more."""
        for hook in self._hooks:
            hook.stop()
        self._hooks, self._waiting = [], []

    def _catch_up(self) -> None:
        """Sets those filters whose libraries have come."""
        arrived = [entry for entry in self._waiting if by_category(entry) is not None]
        self._waiting = [entry for entry in self._waiting if entry not in arrived]
        # A person's `with catch_warnings(): import ...` ends the list of now; the filters outlive it.
        lists: list[Any] = [self._list]
        if warnings.filters is not self._list:
            lists.append(warnings.filters)
        for filters in lists:
            named = merged([by_category_name(entry) for entry in filters], self._recorded, arrived)
            _set(filters, [found for found in map(by_category, named) if found is not None])


def _set(filters: Any, wanted: list[Filter]) -> None:
    filters[:] = wanted
    warnings._filters_mutated()  # type: ignore[attr-defined]
