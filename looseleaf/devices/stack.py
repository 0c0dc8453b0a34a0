"""Entering and leaving torch's stack of function modes, which every thread has for itself.

Imported only after torch.
"""

from __future__ import annotations

import importlib
from typing import Any

torch: Any = importlib.import_module("torch")
_overrides: Any = importlib.import_module("torch.overrides")


def on_stack(mode: Any) -> bool:
    """Whether `mode` sees this thread's calls now: entered, not running, torch functions not disabled."""
    if torch._C._is_torch_function_all_disabled():
        return False
    at = torch._C._get_function_stack_at
    return any(at(level) is mode for level in range(torch._C._len_torch_function_stack()))


def enter(mode: Any) -> None:
    """Put `mode` above what is there, once."""
    if not on_stack(mode):
        _overrides._push_mode(mode)


def leave(mode: Any) -> None:
    """Take `mode` out of this thread's stack, wherever in it it is."""
    above = []
    while torch._C._len_torch_function_stack():
        top = _overrides._pop_mode()
        if top is not mode:
            above.append(top)
    for other in reversed(above):
        _overrides._push_mode(other)
