"""Variables that are not here and that a widget, or what it calls, needs."""

from __future__ import annotations

from typing import Any

from looseleaf.kernel.live_facts import names_reached
from looseleaf.kernel.session import KernelSession


def stubs_for_callbacks(session: KernelSession, value: Any) -> list[str]:
    """Those that callbacks which `value` holds read."""
    if session.tracker is None or session.manifest is None:
        return []
    stubs = set(session.tracker.stub_names())
    return sorted(names_reached(value, session.facts()) & stubs) if stubs else []


def stubs_of_library(session: KernelSession, package: str) -> list[str]:
    """Those that hold objects of `package`."""
    if session.tracker is None or session.manifest is None:
        return []
    facts = session.facts()
    return [
        name for name in session.tracker.stub_names()
        if any(module.partition(".")[0] == package for module in facts[name].modules)
    ]  # fmt: skip
