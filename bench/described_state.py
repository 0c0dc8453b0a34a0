"""What a notebook's variables are after each of its cells, from a description: live objects without their libraries.

`{"notebook": NAME, "after": {CELL ID: {VARIABLE: {"type", "flag", "gpu_bytes", "modules", "globals"}}}}`. `type` is the
class with its module, `flag` a plain value, `gpu_bytes` what it reaches on a GPU, `modules` further modules of classes
that it reaches, `globals` names that code it reaches reads. What is said of a variable holds until another cell says
more or deletes it; of one that nothing is said of only the name is known, as of an object too large to look at.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from looseleaf.recipe import ExecutionLog, NameFacts
from looseleaf.recipe.name_facts import UNKNOWN_NAME, Payload

StateBefore = Callable[[str, ExecutionLog], Mapping[str, NameFacts]]


def facts_of(described: Mapping[str, Any], payload_id: int) -> NameFacts:
    """What a header would say of the variable."""
    if "flag" in described:
        flag = described["flag"]
        return NameFacts(type_name=type(flag).__name__, type_module="builtins", flag=flag, has_flag=True)
    module, _, name = described["type"].rpartition(".")
    size_bytes = described.get("gpu_bytes", 0)
    return NameFacts(
        type_name=name,
        type_module=module or "builtins",
        modules=frozenset({module or "builtins", *described.get("modules", ())}),
        global_names=frozenset(described.get("globals", ())),
        payloads={payload_id: Payload("cuda:0", size_bytes)} if size_bytes else {},
    )


def state_before(path: Path) -> StateBefore:
    """Facts of the live names before a cell, called once for each cell in document order."""
    after = json.loads(path.read_text(encoding="utf-8"))["after"]
    known: dict[str, NameFacts] = {}
    last: list[str] = []

    def answer(cell_id: str, log: ExecutionLog) -> Mapping[str, NameFacts]:
        for name, described in after.get(last.pop(), {}).items() if last else ():
            known[name] = facts_of(described, len(known) + 1)
        last.append(cell_id)
        return {name: known.get(name, UNKNOWN_NAME) for name in log.definitions}

    return answer
