"""The stages of a worker's life before it runs a cell: imported, host_ready, context_ready, device_ready (design §5).

Nothing of the cell is executed here. What is prepared is the session's state as the namespace sees it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from looseleaf import devices
from looseleaf.checkpoint.ahead import Ahead, Warming
from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.checkpoint.reports import RestoreReport
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.errors import InvalidArgument, PreconditionFailed, Unavailable, Unsupported
from looseleaf.ids import Epoch, ExecutionId, SessionId, Version
from looseleaf.protocol import fields
from looseleaf.protocol.frames import Message
from looseleaf.protocol.state_io import LinkStateIO
from looseleaf.worker.own_files import OwnFiles, needs_own_module
from looseleaf.worker.unsaved import not_live

# Of variables that CUDA and torch read once; which GPUs are visible is ours to say.
_DEVICE_PREFIXES: Final = ("CUDA_", "CUBLAS_", "CUDNN_", "NCCL_", "PYTORCH_", "TORCH_")
_OURS: Final = "CUDA_VISIBLE_DEVICES"


def _device_settings() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith(_DEVICE_PREFIXES) and name != _OURS}


class WorkerState:
    """One session's state in this worker: where it is, what of it is loaded, and the devices it uses.

    `before_load` is called before variables are loaded, `on_import` before a module is imported, with its name, and
    with an empty one afterwards.
    """

    def __init__(
        self,
        namespace: dict[str, Any],
        io: LinkStateIO,
        hidden: Callable[[str], bool],
        before_load: Callable[[], None] = lambda: None,
        on_import: Callable[[str], None] = lambda _name: None,
    ) -> None:
        self._namespace = namespace
        self._io = io
        self._hidden = hidden
        self._before_load = before_load
        self._on_import = on_import
        self._tracker: StateTracker | None = None
        self._session_id = ""
        # Names whose closure lives on a device: their objects are made at attach, when there is one.
        self._waiting: list[str] = []
        self._attached = False
        # Which GPUs are open.
        self._opened: tuple[int, ...] = ()
        # Variables that a device reads when it is opened, while it is open for no cell yet.
        self._opened_with: dict[str, str] | None = None
        self._warming: Warming | None = None
        self.own_files = OwnFiles()

    @property
    def tracker(self) -> StateTracker:
        """The session's tracker. Raises PreconditionFailed `NOT_PREPARED`."""
        if self._tracker is None:
            raise PreconditionFailed("NOT_PREPARED", "this worker holds no session yet; nothing was run")
        return self._tracker

    def use(self, io: LinkStateIO) -> None:
        """From now on by this connection."""
        self._io = io
        if self._tracker is not None:
            # What was mapped ahead is no mapping of this connection's: it must not be given back there.
            self._tracker.io, self._tracker.ahead = io, Ahead()

    def follow_own(self, execution_id: ExecutionId) -> Version | None:
        """Follows the version that this run has made, if it is the newest; None if it is another's."""
        _head, data = self._io.manifest()
        if data is None or decode_manifest(data).execution_id != execution_id:
            return None
        self.tracker.advance(data)
        return self.tracker.version

    def prepare(self, request: Message) -> Message:
        """Imports modules and loads variables at the wanted version; see docs/protocol.md: `prepare`.

        `ahead`: Run was not pressed, so no module of the person's own is run, and what needs one waits.
        Raises PreconditionFailed `OTHER_SESSION`: a worker serves one session only. Unavailable, as another worker will
        do: `OWN_FILES_CHANGED`: it has imported such a module from an older file, unless `keep_modules` is set;
        `DEVICE_NOT_FRESH`: its device was opened ahead, and what the session has set since would count at its opening.
        """
        began_s = time.monotonic()
        self._stop_warming()
        self._refuse_older_files(request)
        ahead = fields.boolean(request, "ahead", False)
        names = fields.texts(request, "names")
        self._enter(request)
        # The version first: its environment and path decide what the imports find, its devices which names must wait.
        imported = self.tracker.restore(
            (), imports=fields.texts(request, "imports", []), version=Version(fields.integer(request, "version")),
            soon=names,
        )  # fmt: skip
        self._refuse_other_settings()
        report = self._load(names, ahead=ahead)
        if ahead:
            self._warming = Warming(self.tracker.ahead.memory.values())
        self.own_files.note()
        total_s = time.monotonic() - began_s
        return {
            "stage_ms": {"import": imported.import_s * 1000, "restore": (total_s - imported.import_s) * 1000},
            "mapped_bytes": report.mapped_bytes,
            "missing": list(report.missing),
            "imported": [{"name": name, "seconds": round(took_s, 4)} for name, took_s in imported.imports_s.items()],
            "failed_imports": [{"name": name, "error": error} for name, error in imported.failed_imports],
            "waiting": list(self._waiting),
            "not_live": not_live(fields.texts(request, "needed", []), self._namespace),
            "pid": os.getpid(),
        }

    def attach(self, request: Message) -> Message:
        """Opens the GPUs and loads what lives on them; see docs/protocol.md: `attach`.

        `ahead`: Run was not pressed. Without `load` they are only opened. Raises Unsupported `DEVICE_FIXED` once others
        are open.
        """
        ahead, load = fields.boolean(request, "ahead", False), fields.boolean(request, "load", True)
        if ahead and devices.backend().kind == "none":
            # Nothing is there yet that could open one.
            return {"opened": False, "mapped_bytes": 0, "missing": []}
        if load:
            self._stop_warming()
        self._open(tuple(fields.integers(request, "gpus")), request, ahead=ahead)
        if not load:
            return {"opened": True, "mapped_bytes": 0, "missing": []}
        self._attached = True
        waiting, self._waiting = self._waiting, []
        report = self._load(waiting, ahead=ahead)
        self.own_files.note()
        return {"opened": True, "mapped_bytes": report.mapped_bytes, "missing": list(report.missing)}

    def _open(self, gpus: tuple[int, ...], request: Message, *, ahead: bool) -> None:
        if gpus != self._opened:
            if self._opened:
                text = f"this worker has opened GPUs {self._opened} and cannot change to {gpus}; nothing was run"
                raise Unsupported("DEVICE_FIXED", text)
            if fields.text(request, "device") == "cuda":
                os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(str(gpu) for gpu in gpus)
            devices.attach(gpus, fields.boolean(request, "delays", False))
            self._opened = gpus
            self._opened_with = _device_settings()
        if not ahead:
            # From here on it is the cell's, and what cells set has no effect, as in any process.
            self._opened_with = None

    def _refuse_other_settings(self) -> None:
        if self._opened_with is not None and _device_settings() != self._opened_with:
            text = "variables that a GPU reads at its opening have changed since this worker opened one"
            raise Unavailable("DEVICE_NOT_FRESH", f"{text}; nothing was run")

    def _stop_warming(self) -> None:
        # From here on somebody waits; what is not warm yet is mapped, and its pages come as they are touched.
        if self._warming is not None:
            self._warming.stop()
            self._warming = None

    def _enter(self, request: Message) -> None:
        session_id = SessionId(fields.text(request, "session_id"))
        epoch = Epoch(fields.integer(request, "epoch"))
        if self._tracker is None:
            self._session_id = session_id
            self._tracker = StateTracker(
                self._namespace, self._io, session_id=session_id, epoch=epoch, hidden=self._hidden
            )
            self._tracker.on_import = self._on_import
        elif session_id != self._session_id:
            raise PreconditionFailed("OTHER_SESSION", "this worker holds another session; nothing was run")
        self._tracker.epoch = epoch
        cwd = request.get("cwd")
        if isinstance(cwd, str) and cwd:
            try:
                os.chdir(cwd)
            except OSError as error:
                raise InvalidArgument("CWD_UNUSABLE", f"the working directory {cwd} cannot be used: {error}") from error

    def _refuse_older_files(self, request: Message) -> None:
        changed = [] if fields.boolean(request, "keep_modules", False) else self.own_files.changed()
        if changed:
            text = f"the files of {', '.join(changed)} have changed since this worker imported them; nothing was run"
            raise Unavailable("OWN_FILES_CHANGED", text, modules=changed)

    def _load(self, names: Sequence[str], *, ahead: bool = False) -> RestoreReport:
        now = [name for name in names if self._attached or not self._lives_on_device(name)]
        if ahead:
            later = set(needs_own_module(self.tracker.manifest, now))
            now = [name for name in now if name not in later]
        self._waiting = sorted({*self._waiting, *names} - {*now})
        self._before_load()
        return self.tracker.restore(now)

    def _lives_on_device(self, name: str) -> bool:
        return self.tracker.manifest.lives_on_device([name])
