"""What the GPUs of a pool are: what a process that has none may say of them (design §4). Loads no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final

from looseleaf.errors import InvalidArgument
from looseleaf.units import GIB

VIRTUAL_MEMORY_BYTES: Final = 16 * GIB
# Longest name or version of a GPU that is taken from another process.
TEXT_CHARS_MAX: Final = 200
# The environment variable by which `nvidia-smi` knows what to answer.
POOL_VARIABLE: Final = "LOOSELEAF_POOL_GPUS"


@dataclass(frozen=True, slots=True)
class GpuDescription:
    """One GPU; those of a pool are taken to be alike. Zero and empty: not known.

    `cuda_version`: the newest that its driver runs, as "12.8".
    """

    name: str
    memory_bytes: int
    major: int
    minor: int
    multi_processors: int
    cuda_version: str = ""
    driver_version: str = ""
    l2_cache_bytes: int = 0
    threads_per_multi_processor: int = 2048
    shared_memory_per_block_optin_bytes: int = 166912

    def message(self) -> dict[str, Any]:
        """Plain values, as `of_message` takes them."""
        return asdict(self)


VIRTUAL: Final = GpuDescription(
    "LooseLeaf Virtual GPU", VIRTUAL_MEMORY_BYTES, 8, 0, 108, "12.8", "570.00", l2_cache_bytes=40 << 20
)


def of_message(message: Mapping[str, Any]) -> GpuDescription:
    """Raises InvalidArgument `FIELD_MALFORMED`; fields that are not known are ignored."""
    found: dict[str, Any] = {}
    for field in fields(GpuDescription):
        if field.name not in message:
            continue
        value, kind = message[field.name], str if field.type == "str" else int
        if type(value) is not kind or (isinstance(value, int) and value < 0):
            raise InvalidArgument("FIELD_MALFORMED", f"a GPU's {field.name} is {value!r}")
        found[field.name] = value[:TEXT_CHARS_MAX] if isinstance(value, str) else value
    try:
        return GpuDescription(**found)
    except TypeError as error:
        raise InvalidArgument("FIELD_MALFORMED", f"the description of a GPU is incomplete: {sorted(found)}") from error


def described(kind: str, memory_bytes: int, description: GpuDescription | None) -> GpuDescription:
    """What there is to say of a GPU of `kind` with `memory_bytes`, of which perhaps more was told."""
    if description is not None and kind == "cuda":
        return description
    known = VIRTUAL if kind != "cuda" else replace(VIRTUAL, name="NVIDIA GPU", driver_version="", cuda_version="")
    return replace(known, memory_bytes=memory_bytes)


def pool_text(count: int, description: GpuDescription) -> str:
    """The value of `POOL_VARIABLE`."""
    return json.dumps({"count": count, **description.message()})
