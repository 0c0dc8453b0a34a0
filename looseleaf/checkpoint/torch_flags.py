"""torch's switches for how it computes: precision, kernels, threads. Plain values, by the names they are set under."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

# Attributes below torch.backends. Those of the older interface for precision are not asked: they raise once the newer
# one, which knows what they say, was used.
_ATTRIBUTES: Final = (
    "fp32_precision", "cuda.matmul.fp32_precision", "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction", "cuda.matmul.allow_fp16_accumulation",
    "cudnn.fp32_precision", "cudnn.conv.fp32_precision", "cudnn.rnn.fp32_precision", "cudnn.enabled",
    "cudnn.benchmark", "cudnn.benchmark_limit", "cudnn.deterministic", "mkldnn.enabled", "mkldnn.deterministic",
    "mkldnn.fp32_precision", "mkldnn.matmul.fp32_precision", "opt_einsum.enabled", "opt_einsum.strategy",
)  # fmt: skip
# Kernels of scaled_dot_product_attention: torch.backends.cuda.<name>_sdp_enabled() and enable_<name>_sdp(bool).
_ATTENTION: Final = ("flash", "mem_efficient", "math", "cudnn")


def read() -> dict[str, Any]:
    """Every switch that this torch has and can tell."""
    import torch

    found: dict[str, Any] = {}
    for path in _ATTRIBUTES:
        owner, name = _owner(path)
        try:
            found[path] = getattr(owner, name)
        except (AttributeError, RuntimeError):
            continue  # another version's, or not of this build
    for name in _ATTENTION:
        enabled = getattr(torch.backends.cuda, f"{name}_sdp_enabled", None)
        if enabled is not None:
            found[f"sdp.{name}"] = enabled()
    found["threads"] = torch.get_num_threads()
    found["matmul_precision"] = _matmul_precision()
    return found


def _matmul_precision() -> str | None:
    import torch

    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return None  # set by the newer interface, backend by backend


def apply(values: Mapping[str, Any]) -> None:
    """Sets those that differ. What this torch does not know, or refuses on this machine, stays as it is."""
    import torch

    # First, as it sets some of the others.
    precision = values.get("matmul_precision")
    if precision is not None and precision != _matmul_precision():
        torch.set_float32_matmul_precision(precision)
    now = read()
    for path, value in values.items():
        if path == "matmul_precision" or path not in now or now[path] == value:
            continue
        kind, _, name = path.partition(".")
        if path == "threads":
            torch.set_num_threads(value)
        elif kind == "sdp":
            getattr(torch.backends.cuda, f"enable_{name}_sdp")(value)
        else:
            owner, name = _owner(path)
            try:
                setattr(owner, name, value)
            except RuntimeError:
                continue


def _owner(path: str) -> tuple[Any, str]:
    import torch

    owner: Any = torch.backends
    *parts, name = path.split(".")
    for part in parts:
        owner = getattr(owner, part, None)
    return owner, name
