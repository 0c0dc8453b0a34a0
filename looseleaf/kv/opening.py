"""Opens a `KvBackend` by the name of its kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from looseleaf.errors import InvalidArgument
from looseleaf.kv.backend import KvBackend
from looseleaf.kv.memory import MemoryKv
from looseleaf.kv.rocksdb_py import open_rocksdb_py
from looseleaf.kv.rocksdict import open_rocksdict

KV_KINDS: Final[Mapping[str, Callable[[Path], KvBackend]]] = MappingProxyType(
    {"rocksdb-py": open_rocksdb_py, "rocksdict": open_rocksdict, "memory": lambda path: MemoryKv()}
)


def open_kv(path: Path, kind: str = "rocksdb-py") -> KvBackend:
    """Opens or creates the database in folder `path` with the binding `kind`, one of KV_KINDS.

    A folder stays with the kind that made it. Raises InvalidArgument `KV_KIND_UNKNOWN` and what that kind raises.
    """
    opener = KV_KINDS.get(kind)
    if opener is None:
        raise InvalidArgument("KV_KIND_UNKNOWN", f"no database kind {kind!r}; use one of {', '.join(KV_KINDS)}")
    return opener(path)
