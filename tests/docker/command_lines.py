"""Commands of ours, found in files, parsed as the programs themselves would: a wrong verb or option raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from looseleaf.cli.main import build_command


def parse_looseleaf(words: Sequence[str]) -> tuple[str, dict[str, Any]]:
    """The verb (`rpc call`) and the parameters of `looseleaf WORDS`; runs nothing. Raises click's UsageError."""
    command: Any = build_command()
    context = command.make_context("looseleaf", list(words), resilient_parsing=False)
    verbs = []
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        name, command, rest = command.resolve_command(context, rest)
        verbs.append(name)
        context = command.make_context(name, rest, parent=context)
    return " ".join(verbs), dict(context.params)
