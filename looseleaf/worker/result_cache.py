"""IPython's caches of results and inputs: `_`, `Out`, `_dh`, `In`, `_i`, told to another process and set there.

The results themselves are variables, `_7` and `_`; what travels beside them says which of them the caches hold. What
is set has the form that docs/protocol.md gives: `context`, `results` and `inputs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from looseleaf.checkpoint.names import LAST_RESULTS
from looseleaf.errors import InvalidArgument
from looseleaf.protocol import fields

_MISSING: Final = object()


def tell_results(shell: Any) -> dict[str, Any]:
    """`numbers`: the results in `Out`. `last`: of `_`, `__`, `___`: [is bound, shows a result, number of that result].

    "Shows a result" is IPython's own question before it binds them anew: a person's `_ = 5` stays. The number is 0 for
    a result that `Out` has no more. `directories`: [path, whether it is a Path] of `_dh`.
    """
    namespace, table = shell.user_ns, _table(shell)
    numbers = {id(value): number for number, value in list(table.items())}
    last = []
    for name in LAST_RESULTS:
        number = numbers.get(id(getattr(shell.displayhook, name)), 0)
        last.append([name in namespace, _shows_result(shell, name), number])
    directories = [[str(entry), not isinstance(entry, str)] for entry in shell.history_manager.dir_hist]
    return {"numbers": _numbers(namespace, table), "last": last, "directories": directories}


def _table(shell: Any) -> dict[int, Any]:
    """The table of results; an empty one if a person has put something else in its place."""
    table = shell.user_ns.get("_oh")
    return table if isinstance(table, dict) else {}


def _numbers(namespace: Mapping[str, Any], table: Mapping[int, Any]) -> list[int]:
    """The entries that the variables `_<number>` hold too."""
    return [number for number, value in list(table.items()) if namespace.get(f"_{number}", _MISSING) is value]


def other_results(shell: Any) -> list[int]:
    """Numbers of the results that only `Out` holds, as their variables were bound anew or deleted."""
    table = _table(shell)
    return sorted(set(table) - set(_numbers(shell.user_ns, table)))


def _shows_result(shell: Any, name: str) -> bool:
    value = shell.user_ns.get(name, _MISSING)
    if name in shell.user_ns_hidden:
        return shell.user_ns_hidden[name] is value
    return getattr(shell.displayhook, name) is value


def set_results(shell: Any, told: Mapping[str, Any], before: Iterable[int]) -> None:
    """Makes the caches hold what `told` says, out of the variables as they are now.

    `before`: the entries that the teller began with; those that it no longer has are gone.
    """
    namespace, table = shell.user_ns, _table(shell)
    numbers = told["numbers"]
    for number in set(before).difference(numbers):
        table.pop(number, None)
    for number in numbers:
        if f"_{number}" in namespace:
            table[number] = namespace[f"_{number}"]
    for name, (bound, shown, number) in zip(LAST_RESULTS, told["last"], strict=True):
        value = namespace[name] if bound and shown and name in namespace else namespace.get(f"_{number}", "")
        setattr(shell.displayhook, name, value)
        shell.user_ns_hidden[name] = value
    visited = shell.history_manager.dir_hist
    visited[:] = [Path(entry) if is_path else entry for entry, is_path in told["directories"]]


def checked_results(message: Mapping[str, Any]) -> dict[str, Any]:
    """What `tell_results` gave, after its way between processes. Raises InvalidArgument `FIELD_MALFORMED`."""
    told: dict[str, Any] = {
        "numbers": fields.integers(message, "numbers"), "last": fields.rows(message, "last", bool, bool, int),
        "directories": fields.rows(message, "directories", str, bool),
    }  # fmt: skip
    if len(told["last"]) != len(LAST_RESULTS):
        raise InvalidArgument("FIELD_MALFORMED", f"field 'last' has not {len(LAST_RESULTS)} rows")
    return told


def begin_caches(shell: Any, context: Mapping[str, Any]) -> None:
    """Before a cell in a worker: its caches are those of whatever ran here last, and become the kernel's.

    Raises InvalidArgument `FIELD_MALFORMED`.
    """
    if "inputs" in context:
        inputs = fields.mapping(context, "inputs")
        set_inputs(shell, fields.integer(inputs, "first"), fields.rows(inputs, "rows", str, str))
    if "results" in context:
        _begin_results(shell, checked_results(fields.mapping(context, "results")))


def _begin_results(shell: Any, told: Mapping[str, Any]) -> None:
    namespace, table = shell.user_ns, _table(shell)
    namespace.setdefault("Out", table)
    namespace.setdefault("In", shell.history_manager.input_hist_parsed)
    for name, (bound, _, _) in zip(LAST_RESULTS, told["last"], strict=True):
        if bound:
            namespace.setdefault(name, "")
        else:
            namespace.pop(name, None)
    set_results(shell, told, list(table))


def tell_inputs(shell: Any, chars_max: int) -> dict[str, Any]:
    """The texts of `In`, rows of [as typed, as run], from number `first` on.

    The oldest are left out where all are more than `chars_max` characters.
    """
    history = shell.history_manager
    pairs = list(zip(history.input_hist_raw, history.input_hist_parsed, strict=False))
    rows: list[list[str]] = []
    chars = 0
    for raw, parsed in reversed(pairs):
        chars += len(raw) + len(parsed)
        if chars > chars_max:
            break
        rows.append([raw, parsed])
    return {"first": len(pairs) - len(rows), "rows": rows[::-1]}


def set_inputs(shell: Any, first: int, rows: Sequence[tuple[str, str]]) -> None:
    """The inverse of `tell_inputs`; texts that were left out are empty."""
    history, namespace = shell.history_manager, shell.user_ns
    history.input_hist_raw[:] = [""] * first + [raw for raw, _ in rows]
    history.input_hist_parsed[:] = [""] * first + [parsed for _, parsed in rows]
    newest = history.input_hist_raw[1:][-3:]
    history._i00, history._i, history._ii = [*reversed(newest), "", "", ""][:3]
    for number, raw in enumerate(history.input_hist_raw[1:], 1):
        namespace[f"_i{number}"] = raw
