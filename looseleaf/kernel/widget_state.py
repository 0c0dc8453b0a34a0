"""The state of Jupyter widgets as plain values: binary parts inside it, or beside it as on the wire.

A widget message has `state`, `buffer_paths` and the message's buffers; buffer i belongs at path i of the state (Jupyter
widget messaging protocol, version 2).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

Path = list[Any]

DEPTH_MAX: Final = 64
_BINARY: Final = (bytes, bytearray, memoryview)


def join_state(data: Mapping[str, Any], buffers: Sequence[Any]) -> dict[str, Any]:
    """A copy of the message's state with its buffers in their places; paths that lead nowhere are left out."""
    state = data.get("state")
    if not isinstance(state, dict):
        # Comms that are no widgets say what they like under this name.
        return {}
    joined = copy.deepcopy(state)
    paths = data.get("buffer_paths")
    for path, buffer in zip(paths if isinstance(paths, list) else [], buffers, strict=False):
        _put(joined, path, bytes(buffer))
    return joined


def _put(state: Any, path: Any, value: bytes) -> None:
    if not isinstance(path, list) or not path:
        return
    try:
        for step in path[:-1]:
            state = state[step]
        state[path[-1]] = value
    except (KeyError, IndexError, TypeError):
        return


def split_state(state: Mapping[str, Any]) -> tuple[dict[str, Any], list[Path], list[bytes]]:
    """The state without its binary parts, their paths, and them."""
    paths: list[Path] = []
    buffers: list[bytes] = []
    return _without_buffers(dict(state), [], paths, buffers), paths, buffers


def _without_buffers(value: Any, path: Path, paths: list[Path], buffers: list[bytes]) -> Any:
    if len(path) > DEPTH_MAX:
        return value
    if isinstance(value, dict):
        for key, item in value.items():
            if isinstance(item, _BINARY):
                paths.append([*path, key])
                buffers.append(bytes(item))
        return {
            key: _without_buffers(item, [*path, key], paths, buffers)
            for key, item in value.items()
            if not isinstance(item, _BINARY)
        }
    if isinstance(value, (list, tuple)):
        # A list keeps its length: None stands where the bytes go.
        kept: list[Any] = []
        for index, item in enumerate(value):
            if isinstance(item, _BINARY):
                paths.append([*path, index])
                buffers.append(bytes(item))
                kept.append(None)
            else:
                kept.append(_without_buffers(item, [*path, index], paths, buffers))
        return kept
    return value


def size_bytes(value: Any, depth: int = 0) -> int:
    """About how much memory a state takes."""
    if isinstance(value, (str, bytes)):
        return len(value) + 50
    if depth > DEPTH_MAX:
        return 50
    if isinstance(value, dict):
        return 50 + sum(size_bytes(key, depth + 1) + size_bytes(item, depth + 1) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return 50 + sum(size_bytes(item, depth + 1) for item in value)
    return 50
