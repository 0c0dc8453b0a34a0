"""One installation of the device seam: role, kind, and the backend once torch is there."""

from __future__ import annotations

import contextlib
import importlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from looseleaf.devices.backend import KINDS, ROLES, DeviceBackend, DeviceState, NoneBackend
from looseleaf.devices.description import GpuDescription, described
from looseleaf.devices.framework_answers import FrameworkAnswers
from looseleaf.devices.hook import PostImportHook
from looseleaf.devices.patches import PatchSet
from looseleaf.devices.refusals import REFUSALS
from looseleaf.devices.spawned import watch_spawns
from looseleaf.devices.virtual import VirtualGpus
from looseleaf.devices.warned import WarningPlaces
from looseleaf.errors import InvalidArgument

GPUS_MAX = 64

_forking: Installation | None = None
_fork_hook_registered = False


class Installation:
    """Holds what `install` was told. Before torch is imported there is no backend, only values to give it."""

    def __init__(
        self,
        role: str,
        kind: str,
        gpus: int,
        delays: bool,
        memory_bytes: int,
        description: GpuDescription | None = None,
        session_bytes: Callable[[int], int] | None = None,
    ) -> None:
        if role not in ROLES or kind not in KINDS or not 0 <= gpus <= GPUS_MAX or memory_bytes <= 0:
            raise InvalidArgument(
                "DEVICES_MALFORMED",
                f"No such device setting: role {role!r}, kind {kind!r}, {gpus} GPUs (0 to {GPUS_MAX}), "
                f"{memory_bytes} bytes each. Nothing was changed.",
            )
        self.role, self.kind = role, kind
        self.gpus = VirtualGpus(gpus, memory_bytes, delays, described(kind, memory_bytes, description))
        if session_bytes is not None:
            self.gpus.session_bytes = session_bytes
        self._backend: Any = None
        self._pending: DeviceState | None = None
        # Real GPUs that were attached before torch was there; None: nothing was.
        self._attached_early: tuple[int, ...] | None = None
        # Those who asked for raw access before torch was there, with their threads.
        self._raw_later: list[tuple[int, contextlib.ExitStack]] = []
        self._hook = PostImportHook("torch", self._torch_imported)
        self._warnings = WarningPlaces()
        self._patches = PatchSet()
        self._spawn_hook: PostImportHook | None = None
        self._answers: FrameworkAnswers | None = None

    def start(self) -> None:
        """Watch for torch, or patch it now if it is there."""
        if self.kind == "none":
            return
        self._hook.start()
        if self.kind == "emulated" and self.role != "zygote":
            self._spawn_hook = watch_spawns(self._settings, self._patches)
        if self.kind == "cuda" and self.role == "kernel":
            self._answers = FrameworkAnswers(self.gpus)
            self._answers.start()
        if self.kind == "emulated" and self.role in ("worker", "reference"):
            REFUSALS.start()
            self._warnings.start()
            _watch_forks(self)

    def stop(self) -> None:
        """Undo everything."""
        _watch_forks(None)
        self._hook.stop()
        REFUSALS.stop()
        self._warnings.stop()
        if self._spawn_hook is not None:
            self._spawn_hook.stop()
        if self._answers is not None:
            self._answers.stop()
        self._patches.restore()
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    def _settings(self) -> tuple[str, str, int, bool, int]:
        """What a spawned child shall install."""
        return (self.role, self.kind, self.gpus.count, self.gpus.delays, self.gpus.memory_bytes)

    def _torch_imported(self) -> None:
        """Runs in the importing thread."""
        if self.role == "zygote":
            self._warm()
            return
        if self.role == "kernel":
            module: Any = importlib.import_module("looseleaf.devices.kernel_guard")
            self._backend = module.KernelBackend(self.gpus, self.kind)
        elif self.kind == "emulated":
            module = importlib.import_module("looseleaf.devices.emulated_backend")
            self._backend = module.EmulatedBackend(self.gpus)
        else:
            module = importlib.import_module("looseleaf.devices.cuda_backend")
            self._backend = module.CudaBackend()
        if self._pending is not None:
            self._backend.apply_device_state(self._pending)
        if self._attached_early is not None:
            # Again: a cell may have set it since, such as to the GPU 0 of its author's machine, which others may use.
            _show_gpus(self._attached_early)
            self._backend.attach_at_first_use(len(self._attached_early))
        for thread, inside in self._raw_later:
            if thread == threading.get_ident():
                inside.enter_context(self._backend.raw())

    def _warm(self) -> None:
        """Import what a worker forked from here will install; patches nothing."""
        name = "emulated_backend" if self.kind == "emulated" else "cuda_backend"
        importlib.import_module(f"looseleaf.devices.{name}")

    def backend(self) -> DeviceBackend:
        """The backend; NoneBackend while torch is not imported, when no storage can exist."""
        return NoneBackend() if self._backend is None else self._backend

    @contextlib.contextmanager
    def raw(self) -> Iterator[None]:
        """See DeviceBackend.raw; also for the rest of a block in which torch is imported."""
        with contextlib.ExitStack() as inside:
            if self._backend is not None:
                inside.enter_context(self._backend.raw())
                yield
                return
            entry = threading.get_ident(), inside
            self._raw_later.append(entry)
            try:
                yield
            finally:
                self._raw_later.remove(entry)

    def ensure_thread(self) -> None:
        """See the package."""
        if self._backend is not None:
            self._backend.ensure_thread()

    def attach(self, gpus: Sequence[int], delays: bool) -> None:
        """Open a context; before torch is imported, only note how many devices there are.

        Raises Unsupported `NO_DEVICE`.
        """
        if self._backend is not None or self.kind == "none":
            self.backend().attach(gpus, delays)
            return
        if self.kind == "emulated":
            self.gpus.delays = delays
            self.gpus.resize(len(gpus))
            self.gpus.open_context()
        elif self.kind == "cuda":
            _show_gpus(gpus)
            self._attached_early = tuple(gpus)

    def device_state(self) -> DeviceState:
        """The backend's, or what shall be applied to it."""
        if self._backend is not None:
            return self._backend.device_state()  # type: ignore[no-any-return]
        return self._pending or DeviceState()

    def apply_device_state(self, state: DeviceState) -> None:
        """To the backend, or to the one that is made when torch is imported."""
        if self._backend is not None:
            self._backend.apply_device_state(state)
        else:
            self._pending = state

    def after_fork_in_child(self) -> None:
        """A child of a process that used a device may not use it."""
        self.gpus.after_fork_in_child()


def _show_gpus(gpus: Sequence[int]) -> None:
    """Let this process see these GPUs only. The driver reads this once, at its first use."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in gpus)


def _watch_forks(installation: Installation | None) -> None:
    """Tell `installation`, and only the latest, about forks; the interpreter keeps one hook for good."""
    global _forking, _fork_hook_registered
    _forking = installation
    if installation is not None and not _fork_hook_registered:
        _fork_hook_registered = True
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    if _forking is not None:
        _forking.after_fork_in_child()
