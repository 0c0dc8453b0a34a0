"""LooseLeaf's save and restore as one of the systems that a comparison of notebook state runs side by side.

    adapter.start(folder, globals()); adapter.cell(source); adapter.save("all"); adapter.finish()
    ... in another process: adapter.load_subset(folder, globals(), ["model", "optimizer"])

It is the engine that kernel and workers use, over a checkpoint store on disk, without the services between. What a
kernel tells a person, that a variable was refused and why, is told here when the variable is looked at.
"""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any, Final

from looseleaf.checkpoint.module_code import BASELINE
from looseleaf.checkpoint.stub import unsaved_of
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.errors import PreconditionFailed
from looseleaf.ids import Epoch, SessionId, new_execution_id
from looseleaf.local.store_io import StoreIO

_SESSION: Final = SessionId("s-" + "0" * 32)
# A worker's zygote has done so long before a session comes.
BASELINE.begin()


class RefusedError(PreconditionFailed):
    """A variable was refused at the save; says its name and why."""


class Refused:
    """Stands where a refused variable would be looked up; any use of it raises RefusedError."""

    def __init__(self, text: str) -> None:
        self._text = text


def _refuse(self: Refused, *_arguments: Any, **_keywords: Any) -> Any:
    raise RefusedError("NOT_SAVED", object.__getattribute__(self, "_text"))


# Python asks the type, and not the object, for these.
for _method in (
    "call", "getitem", "setitem", "delitem", "contains", "iter", "next", "reversed", "len", "length_hint", "bool", "eq",
    "ne", "lt", "le", "gt", "ge", "hash", "int", "float", "complex", "index", "bytes", "str", "repr", "format", "neg",
    "pos", "abs", "invert", "enter", "exit", "await", "aiter", "anext", "delattr",
    *(side + name for side in ("", "r", "i") for name in (
        "add", "sub", "mul", "matmul", "truediv", "floordiv", "mod", "pow", "lshift", "rshift", "and", "or", "xor",
    )),
):  # fmt: skip
    setattr(Refused, f"__{_method}__", _refuse)
type.__setattr__(Refused, "__getattribute__", _refuse)


class Adapter:
    """One session over the store in a folder. `written`: bytes that all saves so far put into it, manifests too."""

    # What must be taken out of a namespace before it can be saved: nothing.
    patch: tuple[tuple[str, str], ...] = ()
    # This module last: it takes down what all modules were.
    imports = "import numpy.random, rocksdbpy, looseleaf.services.checkpoint_store.store, looseleaf.local.peer"

    def __init__(self) -> None:
        self.written = 0
        self.note = ""

    def start(self, folder: str, namespace: dict[str, Any]) -> None:
        """Begins a session whose variables are those that `namespace` gets from now on."""
        self.ns = namespace
        self._tracker = self._open(folder, namespace)

    def cell(self, source: str) -> None:
        """Runs a cell."""
        exec(compile(source, "<cell>", "exec"), self.ns)

    def save(self, tag: str) -> None:
        """Saves what changed."""
        before_bytes = self._io.manifest_bytes
        report = self._tracker.save(new_execution_id(), tag)
        self.written += report.bytes_moved + self._io.manifest_bytes - before_bytes
        self.note = "; ".join(f"{entry.name}: {entry.reason}" for entry in report.unsaved)

    def finish(self) -> None:
        """Ends the session; it can be loaded elsewhere."""
        self._io.close()

    def load_all(self, folder: str, namespace: dict[str, Any]) -> None:
        """Restores every variable."""
        tracker = self._open(folder, namespace)
        tracker.restore([])
        self._restore(tracker, tracker.stub_names())

    def load_subset(self, folder: str, namespace: dict[str, Any], names: list[str]) -> None:
        """Restores `names`, and nothing that they do not need."""
        self._restore(self._open(folder, namespace), names)

    def _open(self, folder: str, namespace: dict[str, Any]) -> StateTracker:
        initial = frozenset(namespace)
        self._io = StoreIO(Path(folder) / "store", _SESSION)
        return StateTracker(
            namespace, self._io, session_id=_SESSION, epoch=Epoch(1), hidden=lambda name: name in initial
        )

    def _restore(self, tracker: StateTracker, names: list[str]) -> None:
        report = tracker.restore(names)
        refused = {entry.name: entry for entry in report.failed}
        for name in tracker.stub_names():
            why = unsaved_of(tracker.namespace.pop(name))
            if why is not None:
                refused[name] = why
        for name, why in refused.items():
            # Names that are no globals are looked up there: the variable does not exist, and using it says why.
            setattr(builtins, name, Refused(f"refused: `{name}`: {why.reason} at {why.path}: {why.detail}"))
        self.note = "; ".join(map(str, report.problems))
