"""Questions of TensorFlow and JAX about devices, answered in a kernel for the pool's real GPUs (design §4).

Never imports either: it waits until the person does. Both open a GPU when they are first asked for their devices, and
take most of its memory; a kernel must not, so they are confined to the CPU there. Virtual GPUs exist for torch alone:
a kernel of those leaves both as they are, and so do its workers.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any, Final

from looseleaf.devices.hook import PostImportHook
from looseleaf.devices.patches import PatchSet, named
from looseleaf.devices.virtual import VirtualGpus

log = logging.getLogger("looseleaf.devices")

LIBRARIES: Final = ("tensorflow", "jax")
_GPU_PLATFORMS: Final = frozenset({"gpu", "cuda"})


class JaxDevice:
    """What `jax.devices()` gives in a kernel; unpickled on a worker it is that worker's device of the same number."""

    platform, process_index, local_hardware_id = "gpu", 0, 0

    def __init__(self, index: int, kind: str) -> None:
        self.id, self.device_kind = index, kind

    def __repr__(self) -> str:
        return f"CudaDevice(id={self.id})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JaxDevice) and other.id == self.id

    def __hash__(self) -> int:
        return hash(("cuda", self.id))

    def __reduce__(self) -> tuple[Any, ...]:
        return jax_device, (self.id, self.device_kind)


def jax_device(index: int, kind: str) -> Any:
    """The device of this number: JAX's own where it has GPUs, else one that only stands for it."""
    jax = sys.modules.get("jax")
    found = jax.devices() if jax is not None else []
    return found[index] if index < len(found) and found[index].platform == "gpu" else JaxDevice(index, kind)


class FrameworkAnswers:
    """Watches for both libraries while it is started."""

    def __init__(self, gpus: VirtualGpus) -> None:
        self._gpus = gpus
        self._patches = PatchSet()
        answers = {"tensorflow": self._tensorflow, "jax": self._jax}
        self._hooks = [PostImportHook(name, self._quietly(name, answers[name])) for name in LIBRARIES]

    @staticmethod
    def _quietly(name: str, answer: Callable[[], None]) -> Callable[[], None]:
        """What fails here would come out of the person's import, or keep the kernel from its cluster."""

        def patch() -> None:
            try:
                answer()
            except Exception as error:
                # Another version than those known, or one that has opened its devices already.
                log.warning("library_not_answered_for name=%s error=%s: %s", name, type(error).__name__, error)

        return patch

    def start(self) -> None:
        """Answers at once for what is imported already."""
        for hook in self._hooks:
            hook.start()

    def stop(self) -> None:
        """Both libraries answer themselves again."""
        for hook in self._hooks:
            hook.stop()
        self._patches.restore()

    def _set(self, owner: Any, answers: dict[str, Callable[..., Any]]) -> None:
        for name, answer in answers.items():
            if hasattr(owner, name):
                self._patches.set(owner, name, named(answer, name))

    def _tensorflow(self) -> None:
        tensorflow: Any = sys.modules["tensorflow"]
        config, gpus = tensorflow.config, self._gpus
        own = config.list_physical_devices
        # Its own view from now on: no operation of a cell on the CPU opens a GPU.
        config.set_visible_devices([], "GPU")

        def listed(prefix: str, make: Any, inner: Any, device_type: str | None = None) -> list[Any]:
            found = [] if device_type == "GPU" else [d for d in inner(device_type) if d.device_type != "GPU"]
            wanted = range(gpus.count) if device_type in (None, "GPU") else ()
            return [*found, *(make(name=f"/{prefix}:GPU:{index}", device_type="GPU") for index in wanted)]

        def list_physical_devices(device_type: str | None = None) -> list[Any]:
            return listed("physical_device", config.PhysicalDevice, own, device_type)

        own_logical = config.list_logical_devices

        def list_logical_devices(device_type: str | None = None) -> list[Any]:
            return listed("device", config.LogicalDevice, own_logical, device_type)

        def quiet(*args: Any, **kwargs: Any) -> None:
            """A worker's TensorFlow begins anew: settings of a device that is not here have nothing to hold on to."""

        lists = {"list_physical_devices": list_physical_devices, "list_logical_devices": list_logical_devices}
        self._set(config, lists)
        if (experimental := getattr(config, "experimental", None)) is not None:
            own_growth = experimental.set_memory_growth

            def set_memory_growth(device: Any, enable: bool) -> None:
                (quiet if device.device_type == "GPU" else own_growth)(device, enable)

            details = {"device_name": gpus.description.name, "compute_capability": self._capability()}
            own_details = getattr(experimental, "get_device_details", quiet)

            def get_device_details(device: Any) -> Any:
                return dict(details) if device.device_type == "GPU" else own_details(device)

            self._set(
                experimental,
                {**lists, "set_memory_growth": set_memory_growth, "get_device_details": get_device_details},
            )
        first = "/device:GPU:0" if gpus.count else ""
        self._set(
            tensorflow.test,
            {"gpu_device_name": lambda: first, "is_gpu_available": lambda *args, **kwargs: bool(first)},
        )

    def _capability(self) -> tuple[int, int]:
        return self._gpus.description.major, self._gpus.description.minor

    def _jax(self) -> None:
        jax: Any = sys.modules["jax"]
        gpus = self._gpus
        jax.config.update("jax_platforms", "cpu")

        def answering(inner: Callable[..., Any], own: Callable[[], Any]) -> Callable[..., Any]:
            """`own()` where the question is about GPUs or about no platform, else JAX's answer."""

            def answer(*args: Any, **kwargs: Any) -> Any:
                backend = kwargs.get("backend", args[0] if args and isinstance(args[0], str) else None)
                asks_gpu = gpus.count > 0 and (backend is None or backend in _GPU_PLATFORMS)
                return own() if asks_gpu else inner(*args, **kwargs)

            return answer

        def devices() -> list[JaxDevice]:
            return [JaxDevice(index, gpus.description.name) for index in range(gpus.count)]

        owns: dict[str, Callable[[], Any]] = {
            "devices": devices, "local_devices": devices, "device_count": lambda: gpus.count,
            "local_device_count": lambda: gpus.count, "default_backend": lambda: "gpu",
        }  # fmt: skip
        self._set(jax, {name: answering(getattr(jax, name), own) for name, own in owns.items() if hasattr(jax, name)})
