"""Stand-ins: what they tell, what they refuse."""

from __future__ import annotations

import copy
import operator
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from looseleaf.checkpoint import stub as stubs
from looseleaf.checkpoint.manifest import UnitHeader, Unsaved
from looseleaf.checkpoint.stub import Stub, is_stub, viewing
from looseleaf.errors import PreconditionFailed
from looseleaf.ids import UnitId


def stub(**header: Any) -> Stub:
    return Stub("x", UnitId(1), UnitHeader(**header), None)


TENSOR: dict[str, Any] = {
    "kind": "instance", "type_name": "Tensor", "type_module": "torch", "shape": (2, 3), "dtype": "torch.float32",
    "device": "cuda:0", "length": 2, "preview": "Tensor((2, 3), torch.float32, cuda:0)",
}  # fmt: skip
ARRAY: dict[str, Any] = {
    "kind": "instance", "type_name": "ndarray", "type_module": "numpy", "shape": (4,), "dtype": "float64", "length": 4,
}  # fmt: skip
LIST: dict[str, Any] = {"kind": "value", "type_name": "list", "type_module": "builtins", "length": 3, "preview": "[1]"}
OTHER: dict[str, Any] = {"kind": "instance", "type_name": "Net", "type_module": "__main__"}


def test_stub_tells_shape_dtype_and_device_as_the_value_does() -> None:
    tensor, array = stub(**TENSOR), stub(**ARRAY)
    assert tensor.shape == torch.Size([2, 3]) and type(tensor.shape) is torch.Size
    assert tensor.dtype is torch.float32 and tensor.device == torch.device("cuda", 0) and len(tensor) == 2
    assert array.dtype == np.float64 and array.shape == (4,)
    with pytest.raises(AttributeError):
        array.head  # noqa: B018


def test_stub_has_a_class_named_after_the_values() -> None:
    assert type(stub(**TENSOR)).__qualname__ == "Tensor (not loaded)" and type(stub(**TENSOR)).__module__ == "torch"
    assert type(stub(**TENSOR)) is type(stub(**TENSOR)) and is_stub(stub(**TENSOR)) and not is_stub(torch.zeros(1))
    unsaved = Stub("g", None, None, Unsaved("g", "GENERATOR", "g[0]", "it runs", 1))
    assert type(unsaved).__name__ == "value (not saved)" and repr(unsaved) == "<g: not saved, GENERATOR at g[0]>"
    assert isinstance(stub(**LIST), Stub)


def test_stubs_of_more_classes_than_are_kept_share_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stubs, "KINDS_MAX", 0)
    assert type(stub(type_name="Rare", type_module="rare")) is Stub


USES: dict[str, Callable[[Any], Any]] = {
    "isinstance": lambda v: isinstance(v, torch.Tensor), "hasattr": lambda v: hasattr(v, "grad"), "copy": copy.copy,
    "deepcopy": copy.deepcopy, "pickle": pickle.dumps, "bool": bool, "float": float, "iter": list, "hash": hash,
    "index": operator.itemgetter(0), "call": lambda v: v(), "add": lambda v: 1 + v, "equal": lambda v: v == v,
    "set": lambda v: setattr(v, "a", 1), "delete": lambda v: delattr(v, "a"), "torch": torch.sum, "numpy": np.sum,
    "array": np.asarray, "tensor": torch.tensor, "contains": lambda v: 1 in v, "with": lambda v: v.__enter__(),
    "format": lambda v: f"{v:.1f}", "ufunc": lambda v: np.add(v, 1), "issubset": lambda v: {1} | v,
}  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_any_other_use_is_refused_by_name(use: str) -> None:
    with pytest.raises(PreconditionFailed, match="`x` is saved but not loaded here") as caught:
        USES[use](stub(**OTHER))
    assert caught.value.reason == "NOT_RESTORED" and caught.value.fields["name"] == "x"


def test_use_of_what_was_never_saved_says_why() -> None:
    unsaved = Stub("g", None, None, Unsaved("g", "GENERATOR", "g[0]", "a generator cannot be moved", 1))
    with pytest.raises(PreconditionFailed, match="a generator cannot be moved") as caught:
        next(unsaved)
    assert caught.value.reason == "NOT_SAVED"


def test_builtin_data_lacks_what_its_class_lacks() -> None:
    assert not hasattr(stub(**LIST), "shape") and getattr(stub(**LIST), "device", "cpu") == "cpu"
    with pytest.raises(PreconditionFailed):
        stub(**LIST).append  # noqa: B018


def test_viewer_finds_nothing_instead_of_a_refusal() -> None:
    other = stub(**OTHER)
    with viewing():
        assert not isinstance(other, (torch.Tensor, dict, str)) and not hasattr(other, "shape")
        with pytest.raises(TypeError, match="not loaded"):
            len(other)
        with pytest.raises(PreconditionFailed):
            list(other)
    with pytest.raises(PreconditionFailed):
        len(other)
