"""What needs a real GPU, or would take a virtual device's memory for the host's: refused by name (design §8).

Imported only after torch.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any, NoReturn

from looseleaf.devices.hook import PostImportHook
from looseleaf.devices.mode import Scan, VirtualDeviceMode
from looseleaf.devices.patches import PatchSet, named
from looseleaf.devices.queries import CUDA_MODULES, standing_in
from looseleaf.devices.stack import on_stack
from looseleaf.devices.tags import index_of
from looseleaf.errors import Unsupported

torch: Any = importlib.import_module("torch")
Tensor = torch.Tensor

# In `torch.cuda`, what works on the driver's own objects.
_NEEDS_CUDA = (
    "CUDAGraph", "graph", "make_graphed_callables", "graph_pool_handle", "cudart", "MemPool", "use_mem_pool",
    "CUDAPluggableAllocator", "change_current_allocator", "caching_allocator_alloc", "caching_allocator_delete",
    "caching_allocator_enable", "current_blas_handle", "current_solver_handle", "GreenContext", "_compile_kernel",
    "_record_memory_history", "_snapshot", "_dump_snapshot",
)
_ADVICE = "Nothing was changed; run without it, or where LooseLeaf has GPUs."
ADVICE_KERNEL = "Nothing was changed; register a CPU kernel for it too, or run where LooseLeaf has GPUs."
_TO_HOST = "Nothing was changed; use .cpu() first to hand over a host copy."


def refuse(feature: str, text: str | None = None, advice: str = _ADVICE) -> NoReturn:
    """Raise the refusal of `feature`."""
    says = text or f"{feature} needs a real GPU; this is a LooseLeaf virtual GPU, which computes on the CPU."
    raise Unsupported("VIRTUAL_GPU_UNSUPPORTED", f"{says} {advice}", feature=feature)


def refusal(feature: str, text: str | None = None, advice: str = _ADVICE) -> Callable[..., Any]:
    """A function that only refuses."""
    return named(lambda *args, **kwargs: refuse(feature, text, advice), feature.rpartition(".")[2])


def patch_unsupported(mode: VirtualDeviceMode, patches: PatchSet) -> list[PostImportHook]:
    """Refuse all of it. The hooks wait for modules that are not imported yet; stop them at the end."""
    for name in _NEEDS_CUDA:
        for module in CUDA_MODULES:
            if name in vars(module):
                stand_in = standing_in(vars(module)[name], name, refusal(f"torch.cuda.{name}"))
                patches.set(module, name, stand_in)
    for name in ("_create_jit_fn", "_create_multi_output_jit_fn"):
        patches.set(torch.cuda.jiterator, name, refusal(f"torch.cuda.jiterator.{name}"))
    patches.set(torch.cuda.jiterator._JittedFunction, "__call__", refusal("torch.cuda.jiterator"))
    patches.set(
        torch.func,
        "functionalize",
        refusal("functionalize", "torch.func.functionalize wraps tensors so that a LooseLeaf virtual GPU loses them."),
    )
    _patch_missing(patches)
    _patch_dlpack(patches)
    _patch_fake_tensors(patches)
    _patch_nccl(patches)
    hook = PostImportHook("torch.utils.cpp_extension", lambda: _patch_extensions(mode, patches))
    hook.start()
    return [hook]


def _patch_missing(patches: PatchSet) -> None:
    """Any other function of torch's CUDA build says that it is missing, instead of being an unknown attribute."""

    def missing(name: str) -> Any:
        if name.startswith("_cuda_"):
            return refusal(f"torch._C.{name}")
        raise AttributeError(f"module 'torch._C' has no attribute {name!r}")

    patches.set(torch._C, "__getattr__", missing)


def _patch_dlpack(patches: PatchSet) -> None:
    text = "DLPack cannot carry a tensor of a LooseLeaf virtual GPU to another library; that needs a real GPU."

    def guarded(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def export(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if isinstance(tensor, Tensor) and index_of(tensor) is not None:
                refuse("dlpack", text, _TO_HOST)
            return original(tensor, *args, **kwargs)

        return export

    for owner in (torch._C, torch, importlib.import_module("torch.utils.dlpack")):
        for name in ("_to_dlpack", "_to_dlpack_versioned", "to_dlpack"):
            if name in vars(owner):
                patches.set(owner, name, guarded(vars(owner)[name]))


def _patch_fake_tensors(patches: PatchSet) -> None:
    """A fake tensor asks C++ about its device, which ends the process where torch has no such device."""
    fake = importlib.import_module("torch._subclasses.fake_tensor").FakeTensorMode
    original = fake.from_tensor

    @functools.wraps(original)
    def from_tensor(self: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if index_of(tensor) is not None:
            refuse_fake()
        return original(self, tensor, *args, **kwargs)

    patches.set(fake, "from_tensor", from_tensor)


def refuse_fake() -> NoReturn:
    """What exporting and fake tensors say."""
    refuse(
        "fake_tensor",
        "torch.export and fake tensors cannot trace tensors of a LooseLeaf virtual GPU; that needs a real GPU.",
        "Nothing was changed; trace the module and its inputs on the CPU (.cpu()), or where LooseLeaf has GPUs.",
    )


def _patch_nccl(patches: PatchSet) -> None:
    patches.set(torch.cuda.nccl, "is_available", lambda tensors: False)
    for name in ("version", "init_rank", "unique_id", "all_reduce", "reduce", "broadcast", "all_gather"):
        patches.set(torch.cuda.nccl, name, refusal(f"torch.cuda.nccl.{name}"))
    if not torch.distributed.is_available():
        return
    distributed = importlib.import_module("torch.distributed.distributed_c10d")
    for name in ("init_process_group", "new_group"):
        original = vars(distributed)[name]

        def checked(*args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            if "nccl" in str(kwargs.get("backend", args[0] if args else "")).lower():
                refuse("nccl", advice='Nothing was changed; the backend "gloo" takes tensors of virtual GPUs.')
            return _original(*args, **kwargs)

        for owner in (distributed, torch.distributed):
            patches.set(owner, name, functools.wraps(original)(checked))


def _patch_extensions(mode: VirtualDeviceMode, patches: PatchSet) -> None:
    """CUDA extensions cannot run; the results of C++ ones live where their arguments do."""
    extension = importlib.import_module("torch.utils.cpp_extension")
    for name in ("load", "load_inline"):
        original = vars(extension)[name]

        def checked(*args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
            sources = kwargs.get("sources", args[1] if len(args) > 1 else ())
            named_files = (sources,) if isinstance(sources, str) else sources
            third = args[2] if _original.__name__ == "load_inline" and len(args) > 2 else None
            inline = kwargs.get("cuda_sources", third)
            is_cuda = inline or kwargs.get("with_cuda")
            if is_cuda or any(str(one).endswith((".cu", ".cuh")) for one in named_files or ()):
                refuse("cuda_extension", "A CUDA extension needs a real GPU and its compiler.")
            return _original(*args, **kwargs)

        patches.set(extension, name, functools.wraps(original)(checked))
    original_import = extension._import_module_from_library

    def import_module(*args: Any, **kwargs: Any) -> Any:
        module = original_import(*args, **kwargs)
        for name, function in list(vars(module).items()) if hasattr(module, "__dict__") else ():
            if callable(function) and not isinstance(function, type) and not name.startswith("__"):
                setattr(module, name, placing(mode, function))
        return module

    patches.set(extension, "_import_module_from_library", import_module)


def placing(mode: VirtualDeviceMode, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function`, which is C++ that no mode sees: its new tensors live on the device of its arguments."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not on_stack(mode):
            return function(*args, **kwargs)
        scan = Scan()
        for value in (*args, *kwargs.values()):
            scan.add(value)
        if scan.index is None:
            return function(*args, **kwargs)
        mode.use()
        result = function(*args, **kwargs)
        mode.adopt(result, scan.index, args)
        return result

    return call
