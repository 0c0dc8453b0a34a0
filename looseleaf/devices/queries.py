"""Questions to `torch.cuda` and `torch.accelerator` that need no device, answered for the virtual or pooled one (§4).

The kernel answers the same as a worker, so that `device = "cuda" if torch.cuda.is_available() else "cpu"` is right
wherever its cell runs. Imported only after torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from looseleaf.devices.description import VIRTUAL, GpuDescription
from looseleaf.devices.device_type import patch_device_type
from looseleaf.devices.generators import generator_answers
from looseleaf.devices.patches import PatchSet, named
from looseleaf.devices.requests import checked
from looseleaf.devices.virtual import VirtualGpus

torch: Any = importlib.import_module("torch")
CUDA_MODULES: tuple[Any, ...] = (torch.cuda, torch.cuda.memory, torch.cuda.random, torch.cuda.streams)

CUDNN_VERSION = 91002
FFT_PLANS_MAX = 4096
# What `torch.accelerator` asks C++: by its name there, the answer of `torch.cuda`.
_ACCELERATOR_IN_C = {
    "_accelerator_getDeviceIndex": "current_device", "_accelerator_setDeviceIndex": "set_device",
    "_accelerator_exchangeDevice": "_exchange_device", "_accelerator_maybeExchangeDevice": "_exchange_device",
}


class DeviceProperties:
    """As `torch.cuda.get_device_properties` gives them."""

    def __init__(self, index: int, gpu: GpuDescription) -> None:
        self.name = self.gcnArchName = gpu.name
        self.major, self.minor = gpu.major, gpu.minor
        self.total_memory = gpu.memory_bytes
        self.multi_processor_count = gpu.multi_processors
        self.is_integrated = 0
        self.is_multi_gpu_board = 0
        self.warp_size = 32
        self.max_threads_per_multi_processor = gpu.threads_per_multi_processor
        self.max_threads_per_block = 1024
        self.regs_per_multiprocessor = 65536
        self.shared_memory_per_block = 49152
        self.shared_memory_per_block_optin = gpu.shared_memory_per_block_optin_bytes
        self.shared_memory_per_multiprocessor = gpu.shared_memory_per_block_optin_bytes + 1024
        self.L2_cache_size = gpu.l2_cache_bytes
        self.pci_bus_id = self.pci_device_id = self.pci_domain_id = index
        self.uuid = f"00000000-0000-4c4c-0000-{index:012x}"

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def index_from(gpus: VirtualGpus, device: Any) -> int:
    """The index a `torch.cuda` function means by its `device` argument; raises as they do."""
    if device is None:
        return gpus.current
    if isinstance(device, int):
        return checked(gpus, device)
    given = torch.device(device)
    if given.type != "cuda":
        raise ValueError(f"Expected a cuda device, but got: {given}")
    return gpus.current if given.index is None else checked(gpus, given.index)


def has_cuda_build() -> bool:
    """Whether this torch was built for CUDA: what it was built for it tells itself, without a device."""
    return bool(torch.backends.cuda.is_built())


def _build_answers(gpus: VirtualGpus) -> dict[str, Callable[..., Any]]:
    gpu = gpus.description
    return {"get_arch_list": lambda: [f"sm_{gpu.major}{gpu.minor}"], "get_gencode_flags": lambda: ""}


def cuda_answers(gpus: VirtualGpus) -> dict[str, Callable[..., Any]]:
    """By the name of the `torch.cuda` function."""

    def properties(device: Any = None) -> DeviceProperties:
        return DeviceProperties(index_from(gpus, device), gpus.description)

    def set_device(device: Any) -> None:
        if isinstance(device, int) and device < 0:
            return
        gpus.current = index_from(gpus, device)

    def exchange_device(index: int) -> int:
        previous = gpus.current
        if index >= 0:
            gpus.current = checked(gpus, index)
        return previous if index >= 0 else -1

    answers: dict[str, Callable[..., Any]] = {
        "is_available": lambda: gpus.count > 0,
        "device_count": lambda: gpus.count,
        "current_device": lambda: gpus.current,
        "set_device": set_device,
        "_exchange_device": exchange_device,
        "_maybe_exchange_device": exchange_device,
        "get_device_name": lambda device=None: properties(device).name,
        "get_device_capability": lambda device=None: (properties(device).major, properties(device).minor),
        "get_device_properties": properties,
        "can_device_access_peer": lambda device, peer: index_from(gpus, device) != index_from(gpus, peer),
        "is_bf16_supported": lambda including_emulation=True: gpus.count > 0,
        "is_tf32_supported": lambda: gpus.count > 0,
        **({} if has_cuda_build() else _build_answers(gpus)),
        "is_initialized": lambda: gpus.context_open,
        "is_current_stream_capturing": lambda: False,
        "get_allocator_backend": lambda: "native",
        "get_sync_debug_mode": lambda: 0,
        "set_sync_debug_mode": lambda debug_mode: None,
        "_is_in_bad_fork": lambda: gpus.bad_fork,
    }
    answers.update(generator_answers(gpus))
    return answers


def accelerator_answers(gpus: VirtualGpus) -> dict[str, Callable[..., Any]]:
    """By the name of the `torch.accelerator` function."""
    cuda = cuda_answers(gpus)

    def current_accelerator(check_available: bool = False) -> Any:
        return torch.device("cuda")

    return {
        "is_available": cuda["is_available"],
        "device_count": cuda["device_count"],
        "current_accelerator": current_accelerator,
        "current_device_index": cuda["current_device"],
        "current_device_idx": cuda["current_device"],
        "set_device_index": cuda["set_device"],
        "set_device_idx": cuda["set_device"],
    }


def patch_queries(gpus: VirtualGpus, patches: PatchSet) -> None:
    """Answer every question that needs no device."""
    for name, answer in cuda_answers(gpus).items():
        patches.set_where_same(CUDA_MODULES, name, named(answer, name))
    for name, answer in accelerator_answers(gpus).items():
        if name in vars(torch.accelerator):
            patches.set(torch.accelerator, name, named(answer, name))
    patch_device_type(patches)
    for name, same in _ACCELERATOR_IN_C.items():
        if hasattr(torch._C, name):
            patches.set(torch._C, name, named(cuda_answers(gpus)[same], name))
    patches.set(torch.backends.cudnn, "is_available", lambda: True)
    if not has_cuda_build():
        patches.set(torch.version, "cuda", gpus.description.cuda_version or VIRTUAL.cuda_version)
        patches.set(torch.backends.cuda, "is_built", named(lambda: True, "is_built"))
        patches.set(torch.backends.cudnn, "version", lambda: CUDNN_VERSION)
    # Plans of Fourier transforms that CUDA would keep; there are none.
    patches.set(torch.backends.cuda.cuFFTPlanCache, "size", 0)
    patches.set(torch.backends.cuda.cuFFTPlanCache, "max_size", FFT_PLANS_MAX)
    patches.set(torch.backends.cuda.cuFFTPlanCache, "clear", lambda self: None)
    # Layers ask this before they lay out weights for cuDNN, which is not there.
    patches.set(torch.backends.cudnn, "is_acceptable", lambda tensor: False)


def standing_in(original: Any, name: str, refuse: Callable[..., Any]) -> Any:
    """What only refuses, in the place of `original`: a class stays a class, for torch checks against these."""
    if not isinstance(original, type):
        return named(refuse, name)

    def new(cls: type, *args: Any, **kwargs: Any) -> Any:
        return refuse(*args, **kwargs)

    return type(name, (original,), {"__new__": new, "__module__": original.__module__})
