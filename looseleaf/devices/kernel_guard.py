"""A kernel between GPU cells: it answers for the pool's devices and has none itself (design §4, §9).

Questions and plain values (seeds, the current device, `torch.device`) work. The first real use of a device raises
`PreconditionFailed("CUDA_IN_CPU_CELL")` before the call has done anything. torch asks one Python function to open the
device before C++ uses it, so nearly everything is caught there, in every thread, at no cost to CPU cells.
Small device values may be *read* here: see `KernelBackend.to_device`.
Imported only after torch.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from looseleaf.devices import autograd, stack, touch
from looseleaf.devices.backend import device_index
from looseleaf.devices.generators import DefaultGenerator, real_generator
from looseleaf.devices.generators import Generator as VirtualGenerator
from looseleaf.devices.identity import Identity
from looseleaf.devices.legacy import patch_legacy
from looseleaf.devices.memory import accelerator_memory_answers, memory_answers, work_answers
from looseleaf.devices.mode import Handler, VirtualDeviceMode
from looseleaf.devices.moves import Moves
from looseleaf.devices.patches import named
from looseleaf.devices.queries import CUDA_MODULES, index_from, patch_queries, standing_in
from looseleaf.devices.requests import HOST
from looseleaf.devices.storages import patch_class_defaults, patch_serialization, patch_storages
from looseleaf.devices.streams import StreamRegistry, generic
from looseleaf.devices.tagged_backend import TaggedBackend
from looseleaf.devices.tags import index_of, retag_storage, storage_index
from looseleaf.devices.threads import patch_threads
from looseleaf.devices.virtual import SEGMENT_BYTES, VirtualGpus, round_up
from looseleaf.errors import PreconditionFailed

torch: Any = importlib.import_module("torch")

# Work on a device beyond what memory and work answers name.
_REFUSED = (
    "Stream", "ExternalStream", "Event", "CUDAGraph", "graph", "make_graphed_callables",
    "cudart", "MemPool", "current_blas_handle", "current_solver_handle",
)
# Reading a small device value: these give numbers, text or a host copy.
_READS = """
item tolist __repr__ __format__ __float__ __int__ __bool__ __index__ __complex__ __len__ __getitem__ __iter__
clone __contains__ numpy __array__ __deepcopy__ is_nonzero
"""


# What torch itself calls; a person never wrote it.
_NAMES = {"torch.cuda._lazy_init": "a tensor or module on a CUDA device"}


def refuse(what: str) -> NoReturn:
    """Raise the one error of this module, or what takes the cell to a worker."""
    touch.tell(what)
    raise PreconditionFailed(
        "CUDA_IN_CPU_CELL",
        "This cell ran on the CPU, by its own mark or because nothing in it seemed to need a GPU, but it uses one "
        f"({what}). Nothing was lost: variables are as the statements before left them. "
        "Make %%gpu the cell's first line, in place of %%cpu if that is there, and run it again.",
        used=what,
    )


def refusing(name: str) -> Callable[..., Any]:
    """A function that only refuses, saying `name`."""
    return named(lambda *args, **kwargs: refuse(_NAMES.get(name, name)), name.rpartition(".")[2])


class _ReadMode(VirtualDeviceMode):
    """Entered once a device value was materialised for reading; anything but reading one is a use of the device."""

    def __init__(self, gpus: VirtualGpus, in_backward: Callable[[], bool]) -> None:
        super().__init__(gpus, in_backward)
        self._printing = threading.local()

    def use(self) -> None:
        """Reading is none."""

    def write(self, func: Any) -> None:
        refuse(getattr(func, "__name__", str(func)))

    def printing(self, handler: Handler) -> Handler:
        """`handler`, which may compute with the value: torch's printer does."""

        def read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            before = getattr(self._printing, "on", False)
            self._printing.on = True
            try:
                return handler(func, args, kwargs)
            finally:
                self._printing.on = before

        return read

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(self._printing, "on", False):
            return super().call(func, args, kwargs)
        for value in (*args, *kwargs.values()):
            self._refuse_device(func, value)
        return func(*args, **kwargs)

    def construct(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: Any, from_tensors: bool = True
    ) -> Any:
        return self.call(func, args, kwargs)

    def _refuse_device(self, func: Any, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if index_of(value) is not None:
                refuse(getattr(func, "__name__", str(func)))
        elif isinstance(value, (list, tuple)):
            for item in value:
                self._refuse_device(func, item)


class _Reads(Moves):
    """Moves to the host are reads; every other one is a use."""

    def move(self, func: Any, tensor: Any, target: int, kwargs: dict[str, Any]) -> Any:
        if target != HOST and index_of(tensor) != target:
            refuse("Tensor.to")
        return super().move(func, tensor, target, kwargs)

    def copy_(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if index_of(args[0]) is not None:
            refuse("Tensor.copy_")
        return func(*args, **kwargs)


class KernelBackend(TaggedBackend):
    """See DeviceBackend, for a kernel of either kind of device. `close` undoes all patches."""

    def __init__(self, gpus: VirtualGpus, kind: str) -> None:
        super().__init__(gpus, _read_mode(gpus))
        self.kind = kind
        self._reading = False
        self._patch()

    def _patch(self) -> None:
        patches, gpus = self.patches, self.gpus
        patch_class_defaults(patches)
        patch_queries(gpus, patches)
        patch_storages(gpus, self.mode, patches)
        patch_serialization(lambda storage, index: refuse("torch.load to a CUDA device"), gpus, patches)
        patch_legacy(patches, lambda *args, **kwargs: refuse("a torch.cuda tensor type"))
        names = {*memory_answers(gpus), *work_answers(gpus), *_REFUSED} - {"mem_get_info"}
        for name in sorted(names):
            if hasattr(torch.cuda, name):
                stand_in = standing_in(getattr(torch.cuda, name), name, refusing(f"torch.cuda.{name}"))
                patches.set_where_same(CUDA_MODULES, name, stand_in)
        patches.set_where_same(CUDA_MODULES, "mem_get_info", named(self._free_and_total, "mem_get_info"))
        # Optimizers ask for the current stream before every step, on CPUs too: an answer, not a use.
        streams = StreamRegistry(gpus)
        for name, answer in streams.answers().items():
            patches.set_where_same(CUDA_MODULES, name, named(answer, name))
        patches.set(torch.accelerator, "current_stream", named(streams.current, "current_stream"))
        for name in ("Stream", "Event"):
            patches.set(torch, name, generic(getattr(torch, name), refusing(f"torch.{name}")))
        for name in (*accelerator_memory_answers(gpus), "synchronize", "set_stream"):
            if name in vars(torch.accelerator):
                answers = name == "get_memory_info"
                answer = named(self._free_and_total, name) if answers else refusing(f"torch.accelerator.{name}")
                patches.set(torch.accelerator, name, answer)
        generators = tuple(DefaultGenerator(gpus, index) for index in range(gpus.count))
        patches.set(torch.cuda, "default_generators", generators)
        self._patch_tensors()
        patch_threads(self.ensure_thread, self.leave_thread, patches)

    def _free_and_total(self, device: Any = None) -> tuple[int, int]:
        """Of the GPU that the next cell gets: it holds nothing but what this session keeps on it."""
        index, total = index_from(self.gpus, device), self.gpus.memory_bytes
        return max(total - round_up(self.gpus.session_bytes(index), SEGMENT_BYTES), 0), total

    def _patch_tensors(self) -> None:
        """The few ways to a device that do not ask torch's Python side to open it."""
        patches = self.patches
        original_to, original_type = torch.Tensor.to, torch.Tensor.type
        original_parse = torch._C._nn._parse_to
        original_storage_to = torch.UntypedStorage.to
        original_register_hook = torch.Tensor.register_hook

        def to(self: Any, *args: Any, **kwargs: Any) -> Any:
            first = args[0] if args else kwargs.get("device")
            if isinstance(first, int) and not isinstance(first, bool):
                refuse("Tensor.to")
            return original_to(self, *args, **kwargs)

        def cuda(self: Any, *args: Any, **kwargs: Any) -> Any:
            refuse("Tensor.cuda")

        def parse_to(*args: Any, **kwargs: Any) -> Any:
            first = args[0] if args else kwargs.get("device")
            if isinstance(first, int) and not isinstance(first, bool):
                refuse("Module.to")
            return original_parse(*args, **kwargs)

        def convert(self: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
            name = dtype if isinstance(dtype, str) else getattr(dtype, "__module__", "")
            if isinstance(name, str) and name.startswith("torch.cuda"):
                refuse("Tensor.type")
            return original_type(self) if dtype is None else original_type(self, dtype, *args, **kwargs)

        def storage_to(self: Any, *, device: Any, non_blocking: bool = False) -> Any:
            if torch.device(device).type == "cuda":
                refuse("Storage.to")
            return original_storage_to(self, device=device, non_blocking=non_blocking)

        def register_hook(self: Any, hook: Any) -> Any:
            # The tensor may be moved to a device before the first gradient comes.
            return original_register_hook(self, autograd.placing_hook(self, hook))

        def pin_memory(self: Any, device: Any = None) -> Any:
            # A loader that pins its batches is no use of a device; only a later copy is.
            return self

        for name, function in (("to", to), ("cuda", cuda), ("type", convert), ("pin_memory", pin_memory)):
            # C++ names the function to a mode by looking it up on the class, where it finds ours.
            self.mode.handlers[function] = self.mode.handlers[getattr(torch.Tensor, name)]
            patches.set(torch.Tensor, name, function)
        if self.kind == "emulated":
            patches.set(torch.Tensor, "register_hook", register_hook)
        patches.set(torch._C._nn, "_parse_to", parse_to)
        patches.set(torch.UntypedStorage, "to", storage_to)
        patches.set(torch, "Generator", _guarded_generator(self.kind))

    def ensure_thread(self) -> None:
        """Virtual values that are in the kernel for reading are seen as such in this thread too."""
        if self._reading:
            stack.enter(self.mode)

    def to_device(self, storage: Any, device: str) -> Any:
        """Tags `storage`: its tensors say that they are on `device` and may be read (`item`, `repr`, `cpu`, ...).

        Any other use of them raises CUDA_IN_CPU_CELL. From now on CPU cells pay for a mode: ~2 µs a torch call.
        """
        index = device_index(device)
        if index != storage_index(storage):
            self.gpus.resize(max(self.gpus.count, (index or 0) + 1))
            retag_storage(self.gpus, storage, index)
        if index is not None:
            self._reading = True
            self.ensure_thread()
        return storage

    def touched(self) -> float | None:
        return None

    def reset_touch(self) -> None:
        return

    def attach(self, gpus: Sequence[int], delays: bool = False) -> None:
        refuse("attach")

    def resident_bytes(self) -> dict[str, int]:
        return {}


def _read_mode(gpus: VirtualGpus) -> _ReadMode:
    mode = _ReadMode(gpus, autograd.in_backward)
    mode.handlers.update(Identity(mode).handlers())
    mode.handlers.update(_Reads(mode).handlers())
    for function in (torch.Tensor.__repr__, torch.Tensor.__format__):
        mode.handlers[function] = mode.printing(mode.handlers[function])
    for name in _READS.split():
        function = getattr(torch.Tensor, name, None)
        if function is not None and function not in mode.handlers:
            mode.handlers[function] = _read(mode)
    return mode


def _read(mode: _ReadMode) -> Handler:
    def read(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        index = index_of(args[0]) if args and isinstance(args[0], torch.Tensor) else None
        if index is not None:
            mode.adopt(result, index, args)
        return result

    return read


def _guarded_generator(kind: str) -> Any:
    """`torch.Generator` that refuses a CUDA device; isinstance works for torch's own objects.

    The generator of a virtual device that is restored can be read here.
    """

    class Kind(type(real_generator)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, real_generator)

    class Generator(real_generator, metaclass=Kind):  # type: ignore[misc]
        def __new__(cls, device: Any = "cpu") -> Any:
            if isinstance(device, int) or torch.device(device).type == "cuda":
                if kind == "emulated" and torch._C._is_torch_function_all_disabled():
                    return VirtualGenerator(device)
                refuse("torch.Generator")
            return real_generator(device)

    Generator.__module__, Generator.__qualname__ = "torch", "Generator"
    return Generator
