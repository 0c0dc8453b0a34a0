"""Jupyter widgets move with their variables: the same comm on the page, whichever process holds the object (design §9).

A widget is its class, its comm's id, its traits, its own attributes and the callbacks that were added to it. What
belongs to one process (the comm, locks of a message under way) is left out and made again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

_LIBRARY: Final = "ipywidgets.widgets.widget"
_CLOSED: Final = ""
# Traits that belong to one process or to one message.
_OWN_TRAITS: Final = frozenset({"comm", "log", "_property_lock", "_holding_sync", "_states_to_send"})
# What traitlets keeps in an object's `__dict__`; made by the class again.
_MACHINERY: Final = frozenset(
    {"_trait_values", "_trait_notifiers", "_trait_validators", "_cross_validation_lock", "_model_id"}
)
# Stands for traitlets' All: every trait, or every kind of change.
_ALL: Final = None


def is_widget_part(kind: type) -> bool:
    """Whether instances of `kind` are widgets or their lists of callbacks."""
    library = sys.modules.get(_LIBRARY)
    base = getattr(library, "LoggingHasTraits", None)
    return base is not None and issubclass(kind, base)


def moves(kind: type) -> bool:
    """Whether instances of this type of the widget library are saved, as parts of widgets and of their classes."""
    traitlets = sys.modules.get("traitlets.traitlets")
    described = getattr(traitlets, "BaseDescriptor", None)
    return is_widget_part(kind) or (described is not None and issubclass(kind, described))


def parts(value: Any) -> list[Any]:
    """The objects that `reduce_widget` saves, each as it is."""
    values, attributes, callbacks = _state(value)
    return [type(value), *values.values(), *attributes.values(), *(handler for handler, _name, _type in callbacks)]


def reduce_widget(value: Any) -> Any:
    """How to take a widget part apart: made empty first, so that callbacks may refer to their widget."""
    return make_widget, (type(value),), (_comm_id(value), *_state(value)), None, None, fill_widget


def _state(value: Any) -> tuple[dict[str, Any], dict[str, Any], list[tuple[Any, Any, Any]]]:
    own = vars(value)
    values = {name: kept for name, kept in own.get("_trait_values", {}).items() if name not in _OWN_TRAITS}
    attributes = {name: kept for name, kept in own.items() if name not in _MACHINERY}
    return values, attributes, list(_added_callbacks(own.get("_trait_notifiers", {})))


def _comm_id(value: Any) -> str:
    comm = vars(value).get("_trait_values", {}).get("comm")
    return str(comm.comm_id) if comm is not None else _CLOSED


def _added_callbacks(notifiers: dict[Any, dict[Any, list[Any]]]) -> Iterator[tuple[Any, Any, Any]]:
    """(callback, trait, kind of change) of what `observe` was called with; those of the class come with the class."""
    from traitlets import All
    from traitlets.traitlets import EventHandler

    for name, by_type in notifiers.items():
        for kind, handlers in by_type.items():
            for handler in handlers:
                if not isinstance(handler, EventHandler):
                    yield handler, _ALL if name is All else name, _ALL if kind is All else kind


def make_widget(kind: Any) -> Any:
    """The empty object. No comm is opened: the page has the widget already."""
    return kind.__new__(kind)


def fill_widget(made: Any, state: tuple[str, dict[str, Any], dict[str, Any], list[tuple[Any, Any, Any]]]) -> None:
    """Its contents; then it takes over its comm from whatever stood for it in this process."""
    from traitlets import All

    comm_id, values, attributes, callbacks = state
    vars(made).update(attributes)
    vars(made)["_trait_values"].update(values)
    if comm_id:
        # Before the callbacks: nobody has changed a trait.
        _take_over(made, comm_id)
    for handler, name, kind in callbacks:
        made.observe(handler, All if name is _ALL else name, All if kind is _ALL else kind)


def _take_over(widget: Any, comm_id: str) -> None:
    import comm

    manager = comm.get_comm_manager()
    before = manager.comms.get(comm_id)
    retire(comm_id)
    if before is not None:
        # Still the same widget for the page: it must not be told that one was closed.
        before._closed = True
    taken: Any = comm.create_comm(comm_id=comm_id, target_name="jupyter.widget", primary=False)
    if getattr(taken, "kernel", taken) is None:
        # ipykernel names a comm's kernel when it opens it, and widgets say nothing by a comm without one.
        taken.kernel = sys.modules["ipykernel.kernelbase"].Kernel.instance()
    manager.register_comm(taken)
    widget.comm = taken


def retire(comm_id: str) -> None:
    """This process's copy of a widget is not the newest any more: it takes no messages, and its end closes nothing."""
    instances = getattr(sys.modules.get(_LIBRARY), "_instances", {})
    old = instances.pop(comm_id, None)
    if old is not None:
        old.comm._closed = True
        old.comm = None
