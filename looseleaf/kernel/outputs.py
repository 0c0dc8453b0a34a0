"""`_`, `Out`, `In` and their like around cells that run elsewhere (IPython's caches)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from looseleaf.errors import PreconditionFailed
from looseleaf.recipe.analyze import analyze_cell
from looseleaf.worker.result_cache import (
    checked_results,
    other_results,
    set_results,
    tell_inputs,
    tell_results,
)

# Typed in one session, this is more than the longest notebooks have.
INPUTS_CHARS_MAX: Final = 2_000_000
_RESULT_TABLES: Final = frozenset({"Out", "_oh"})
_INPUT_TABLES: Final = frozenset({"In", "_ih"})
_NUMBERS_SHOWN_MAX: Final = 5


class ResultCache:
    """Keeps the kernel's caches in step with what workers made. `shell`: the kernel's IPython shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def tell(self) -> dict[str, Any]:
        """What a worker needs for one cell; see docs/protocol.md: `context`, `results` and `inputs`."""
        return {"results": tell_results(self._shell), "inputs": tell_inputs(self._shell, INPUTS_CHARS_MAX)}

    def take(self, told: Mapping[str, Any], results: Mapping[str, Any] | None) -> None:
        """A cell to which `told` was told ended with `results`, None if it never did; its variables are here.

        Raises InvalidArgument `FIELD_MALFORMED`.
        """
        if results is not None:
            set_results(self._shell, checked_results(results), told["results"]["numbers"])

    @contextmanager
    def following(self) -> Iterator[None]:
        """Inside, variables are bound anew that the caches hold: stand-ins for values and values for stand-ins."""
        before = tell_results(self._shell)
        try:
            yield
        finally:
            set_results(self._shell, before, before["numbers"])

    def refuse_elsewhere(self, source: str, told: Mapping[str, Any]) -> None:
        """Raises PreconditionFailed `RESULT_CACHE_READ` if a cell for a worker reads what cannot be there."""
        names = analyze_cell(source).read_names
        if others := other_results(self._shell) if names & _RESULT_TABLES else []:
            shown = ", ".join(f"Out[{number}]" for number in others[:_NUMBERS_SHOWN_MAX])
            text = f"{shown} cannot be moved, as the variable of that number was bound anew or deleted"
            raise _refusal(text, sorted(names & _RESULT_TABLES))
        if names & _INPUT_TABLES and told["inputs"]["first"]:
            raise _refusal("the texts of this session's cells are too long to be moved", sorted(names & _INPUT_TABLES))


def _refusal(why: str, names: list[str]) -> PreconditionFailed:
    text = f"this cell runs on a GPU worker and reads {names[0]!r}, but {why}; nothing was run"
    return PreconditionFailed("RESULT_CACHE_READ", text, names=names)
