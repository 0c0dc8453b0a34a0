"""tqdm's progress bars: a bar that is made again must not count as one more bar on the screen (design §3).

Their class registers every new object, which decides where later bars are drawn. The functions that make one are part
of the format.
"""

from __future__ import annotations

import sys
from typing import Any


def is_progress_bar(kind: type) -> bool:
    """Whether instances of `kind` are tqdm's."""
    base = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    return base is not None and issubclass(kind, base)


def reduce_progress_bar(bar: Any) -> Any:
    """Its attributes, and whether it is still drawn."""
    state = (dict(vars(bar)), bar in type(bar)._instances)
    return progress_bar, (type(bar),), state, None, None, set_progress_bar


def progress_bar(kind: type) -> Any:
    """A bar that its class does not know of."""
    return object.__new__(kind)


def set_progress_bar(made: Any, state: tuple[dict[str, Any], bool]) -> None:
    """The inverse of `reduce_progress_bar`."""
    attributes, is_drawn = state
    type(made).get_lock()  # made with the first bar of a process
    vars(made).update(attributes)
    if is_drawn:
        type(made)._instances.add(made)
