"""When one call gets tensors of several devices: let it where CUDA does, raise where and as CUDA does (design §8).

Such a call runs under a dispatch mode, which sees each ATen operator with its real arguments, as CUDA's own checks do.
What each operator checks, and under which name, stands in torch's table of native functions, which comes with torch.
Imported only after torch.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from looseleaf.devices.tags import index_of, storages_of

torch: Any = importlib.import_module("torch")
_dispatch: Any = importlib.import_module("torch.utils._python_dispatch")
Tensor = torch.Tensor

# How torch words a failed check changed with this version.
_NAMES_ARGUMENT_FIRST = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 8)
# Operators that take tensors of any devices, or check for themselves what no mode can know better.
_ANY_DEVICES = frozenset(
    {
        "_copy_from", "_copy_from_and_resize", "_local_scalar_dense", "_pin_memory", "_to_copy", "alias", "copy_",
        "detach", "fill", "fill_", "is_pinned", "is_same_size", "is_set_to", "lift_fresh", "record_stream",
        "resize_as_", "set_",
    }
)
# Their results are where the first argument is, whatever the others are.
_LIKE_FIRST = frozenset({"copy", "fill", "index", "index_fill", "index_put", "masked_fill"})
# CPUs run these where CUDA runs another operator: its name, and its names of the arguments.
_STAND_INS: dict[str, tuple[str, dict[str, str]]] = {
    "stack": ("wrapper_CUDA_cat", {}),
    "embedding": ("wrapper_CUDA__index_select", {"weight": "self", "indices": "index"}),
    "native_batch_norm": ("wrapper_CUDA__cudnn_batch_norm", {}),
    "_native_batch_norm_legit": ("wrapper_CUDA__cudnn_batch_norm", {}),
}


class DeviceCheck(_dispatch.TorchDispatchMode):  # type: ignore[misc]
    """Inside, every operator's arguments are checked as CUDA checks them, and its results tagged.

    `adopt(result, index, args)` tags. Raises RuntimeError before the first operator that CUDA would refuse. What an
    operator makes from no tensor at all, such as a constant, counts as being wherever it is used.
    """

    def __init__(self, adopt: Callable[[Any, int, tuple[Any, ...]], None]) -> None:
        super().__init__()
        self._adopt = adopt
        # What was raised; C++ between here and the caller, such as TorchScript's, may lose its text.
        self.raised: RuntimeError | None = None
        self._anywhere: dict[int, Any] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing here is compiled; torch's wrapper for this would load its compiler at the first mistake."""
        return False

    def settle(self, result: Any, index: int) -> None:
        """Tag with `index` what the call returned and nothing has placed."""
        for one in result if isinstance(result, (list, tuple)) else (result,):
            if isinstance(one, Tensor) and self._is_anywhere(one):
                self._adopt(one, index, ())

    def _is_anywhere(self, tensor: Any) -> bool:
        return any(id(storage) in self._anywhere for storage in storages_of(tensor))

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        tensors = list(_named_tensors(func, args, given))
        indices = [index_of(tensor) for _, tensor, _ in tensors]
        index = next((one for one in indices if one is not None), None)
        if index is not None and any(one != index for one in indices):
            if self._anywhere:
                indices = [
                    index if one is None and self._is_anywhere(tensor) else one
                    for one, (_, tensor, _) in zip(indices, tensors, strict=True)
                ]
            try:
                if func._schema.name.startswith("aten::_foreach_"):
                    return self._rows(func, args, given)
                _check(func, tensors, indices)
            except RuntimeError as error:
                self.raised = error
                raise
            if func._schema.name.removeprefix("aten::") in _LIKE_FIRST:
                index = indices[0]
        result = func(*args, **given)
        if index is not None:
            self._adopt(result, index, (*args, *given.values()))
        elif not tensors or all(self._is_anywhere(tensor) for _, tensor, _ in tensors):
            for one in result if isinstance(result, (list, tuple)) else (result,):
                if isinstance(one, Tensor):
                    self._anywhere.update({id(storage): storage for storage in storages_of(one)})
        return result

    def _rows(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Lists of tensors on several devices go row by row, each on a device of its own."""
        lists = [value for value in (*args, *kwargs.values()) if isinstance(value, (list, tuple))]
        rows = []
        for row in zip(*(value for value in lists if value and isinstance(value[0], Tensor)), strict=False):
            indices = {index_of(tensor) for tensor in row if tensor.dim()}
            if len(indices) > 1:
                raise two_devices_error(*list(indices)[:2])
            rows.append(next((index_of(tensor) for tensor in row if index_of(tensor) is not None), None))
        result = func(*args, **kwargs)
        if isinstance(result, (list, tuple)):
            for made, index in zip(result, rows, strict=False):
                if index is not None:
                    self._adopt(made, index, ())
        return result


def _named_tensors(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any, bool]]:
    """(argument's name, tensor, whether it is written) in the order in which CUDA looks at them."""
    outputs: list[tuple[str, Any, bool]] = []
    inputs: list[tuple[str, Any, bool]] = []
    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        written = argument.is_out or (argument.alias_info is not None and argument.alias_info.is_write)
        found = outputs if argument.is_out else inputs
        for item in value if isinstance(value, (list, tuple)) else (value,):
            if isinstance(item, Tensor):
                found.append((argument.name, item, written))
    yield from outputs
    yield from inputs


def _check(func: Any, tensors: list[tuple[str, Any, bool]], indices: list[int | None]) -> None:
    """Raise unless CUDA takes these tensors, which are on several devices."""
    base, overload = func._schema.name.removeprefix("aten::"), func._schema.overload_name
    if base in _ANY_DEVICES:
        return
    special = _SPECIAL.get(base)
    if special is not None:
        special(tensors, indices)
        return
    if base in _STAND_INS:
        method, renamed = _STAND_INS[base]
        _check_wrapped(method, [(renamed.get(name, name), one, out) for name, one, out in tensors], indices)
        return
    checked = _checked_methods().get(f"{base}.{overload}" if overload else base)
    if checked is not None:
        _check_wrapped(checked, tensors, indices)
        return
    _check_elementwise(tensors, indices)


def _check_wrapped(method: str, tensors: list[tuple[str, Any, bool]], indices: list[int | None]) -> None:
    """The check that CUDA's operators begin with: every tensor is where the first one is."""
    for (name, _, _), index in zip(tensors, indices, strict=True):
        if index != indices[0]:
            raise wrapped_error(name, index, indices[0], method)


def _check_elementwise(tensors: list[tuple[str, Any, bool]], indices: list[int | None]) -> None:
    """The check of element-by-element operators: one number of the host may be among what they only read."""
    common = next(index for index in indices if index is not None)
    numbers = 0
    for (_, tensor, is_written), index in zip(tensors, indices, strict=True):
        if index == common:
            continue
        numbers += 1
        if index is not None or tensor.dim() or is_written or numbers > 1:
            raise two_devices_error(common, index)


def _check_index(tensors: list[tuple[str, Any, bool]], indices: list[int | None]) -> None:
    for (name, tensor, _), index in zip(tensors, indices, strict=True):
        if name == "indices" and index is not None and index != indices[0]:
            raise index_error(indices[0])
        if name == "values" and index != indices[0] and not (tensor.dim() == 0 and index is None):
            raise two_devices_error(indices[0], index)


def _check_masked_fill(tensors: list[tuple[str, Any, bool]], indices: list[int | None]) -> None:
    # The value is read as a number.
    for (name, _, _), index in zip(tensors, indices, strict=True):
        if name == "mask" and index != indices[0]:
            raise RuntimeError(
                f"expected self and mask to be on the same device, but got mask on {device_name(index)} "
                f"and self on {device_name(indices[0])}"
            )


def _check_index_fill(tensors: list[tuple[str, Any, bool]], indices: list[int | None]) -> None:
    # The value is read as a number.
    kept = [place for place, (name, _, _) in enumerate(tensors) if name != "value"]
    if len({indices[place] for place in kept}) > 1:
        _check_elementwise([tensors[place] for place in kept], [indices[place] for place in kept])


def _check_mv(tensors: list[tuple[str, Any, bool]], indices: list[int | None]) -> None:
    # The result is made beside the vector, and is the first argument of the operator that checks.
    raise wrapped_error("mat", indices[0], indices[-1], "wrapper_CUDA_addmv_")


_SPECIAL: dict[str, Callable[[list[tuple[str, Any, bool]], list[int | None]], None]] = {
    "index": _check_index,
    "_unsafe_index": _check_index,
    "index_put": _check_index,
    "index_put_": _check_index,
    "_index_put_impl_": _check_index,
    "masked_fill": _check_masked_fill,
    "masked_fill_": _check_masked_fill,
    "index_fill": _check_index_fill,
    "index_fill_": _check_index_fill,
    "mv": _check_mv,
}


def device_name(index: int | None) -> str:
    """Such as "cuda:0"; None is "cpu"."""
    return "cpu" if index is None else f"cuda:{index}"


def wrapped_error(argument: str, index: int | None, common: int | None, method: str) -> RuntimeError:
    """What CUDA's operator `method` says of an argument that is on `index` where the others are on `common`."""
    if _NAMES_ARGUMENT_FIRST:
        return RuntimeError(
            f"Expected all tensors to be on the same device, but got {argument} is on {device_name(index)}, "
            f"different from other tensors on {device_name(common)} (when checking argument in method {method})"
        )
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{device_name(common)} and {device_name(index)}! (when checking argument for argument {argument} "
        f"in method {method})"
    )


def index_error(index: int | None) -> RuntimeError:
    """What indexing says of an index tensor on a device of its own."""
    text = "indices should be either on cpu or on the same device as the indexed tensor"
    return RuntimeError(f"{text} ({device_name(index)})")


def two_devices_error(first: int | None, second: int | None) -> RuntimeError:
    """What element-by-element operators say; a device is named before the host."""
    named = [device_name(index) for index in sorted((first, second), key=lambda one: one is None)]
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, "
        f"{named[0]} and {named[1]}!"
    )


@functools.cache
def _checked_methods() -> dict[str, str]:
    """By "operator.overload": the name under which CUDA checks its arguments; empty if torch has no table."""
    try:
        text = (Path(importlib.import_module("torchgen").__path__[0]) / _TABLE).read_text()
    except (ImportError, OSError):
        return {}
    blocks = {match[1]: match[2] for match in _BLOCK.finditer(text)}
    found = {}
    for name, block in blocks.items():
        delegate = _DELEGATE.search(block)
        dispatch = blocks.get(delegate[1], "") if delegate else block
        if "device_check: NoCheck" in block or not _ON_CUDA.search(dispatch):
            continue
        base, _, overload = name.partition(".")
        is_out = overload.endswith("out") or "_out" in overload
        base += "_out" if is_out else ""
        if delegate or "structured: True" in block:
            found[name] = f"wrapper_CUDA_{base}" + (f"_{overload}" if overload else "")
        else:
            found[name] = f"wrapper_CUDA_{overload}_{base}"
    return found


_TABLE = "packaged/ATen/native/native_functions.yaml"
_BLOCK = re.compile(r"^- func: ([\w.]+)\(.*\n((?:(?!- func:).*\n)*)", re.MULTILINE)
_DELEGATE = re.compile(r"structured_delegate: ([\w.]+)")
_ON_CUDA = re.compile(r"^ {4}[\w, ]*\bCUDA\b[\w, ]*:", re.MULTILINE)
