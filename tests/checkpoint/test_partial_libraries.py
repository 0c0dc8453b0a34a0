"""A library that another thread is importing is in `sys.modules` before its names are: nobody may ask for them."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import pytest

from looseleaf.checkpoint.device_hashes import real_device_of
from looseleaf.checkpoint.loaded_memory import inline_memory
from looseleaf.checkpoint.manifest import UnitHeader
from looseleaf.checkpoint.previews import preview_of, sizes_of
from looseleaf.checkpoint.stub import Stub
from looseleaf.ids import UnitId
from looseleaf.kernel.live_facts import LiveFacts
from looseleaf.worker.gpu_memory_note import is_out_of_memory
from looseleaf.worker.peak import _highest_bytes


class Value:
    """Of no library."""


def stub(**header: Any) -> Stub:
    return Stub("x", UnitId(1), UnitHeader(kind="instance", **header), None)


TENSOR = stub(type_name="Tensor", type_module="torch", shape=(2,), dtype="torch.float32", device="cuda:0")
ARRAY = stub(type_name="ndarray", type_module="numpy", shape=(2,), dtype="float64")

LOOKS: dict[str, tuple[Callable[[], Any], Any]] = {
    "device": (lambda: real_device_of(object()), None),
    "memory": (lambda: inline_memory(b"abc", "cpu").size_bytes, 3),
    "peak": (_highest_bytes, 0),
    "sizes": (lambda: sizes_of(Value()), {}),
    "preview": (lambda: preview_of(3), "3"),
    "error": (lambda: is_out_of_memory(MemoryError()), False),
    "facts": (lambda: set(LiveFacts({"x": Value()}, lambda _name: False, None, {}).get("x").modules), {__name__}),
    "tensor": (lambda: (TENSOR.shape, TENSOR.dtype, TENSOR.device), ((2,), "torch.float32", "cuda:0")),
    "array": (lambda: (ARRAY.shape, ARRAY.dtype), ((2,), "float64")),
}


@pytest.mark.parametrize("look", LOOKS)
def test_library_whose_import_is_under_way_is_as_none(monkeypatch: pytest.MonkeyPatch, look: str) -> None:
    ask, answer = LOOKS[look]
    for name in ("torch", "numpy", "pandas", "pyarrow"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    found = ask()
    monkeypatch.undo()
    assert found == answer
