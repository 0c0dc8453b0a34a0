"""The IPython shell of a worker. Built in the zygote, connected to a relay after the fork."""

from __future__ import annotations

import linecache
import os
import pdb  # noqa: T100 - its debugger is replaced
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, Final, cast

from IPython.core import page
from IPython.core.autocall import ZMQExitAutocall
from IPython.core.compilerop import CachingCompiler
from IPython.core.displayhook import DisplayHook
from IPython.core.displaypub import DisplayPublisher
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.profiledir import ProfileDir, ProfileDirError
from IPython.utils._process_posix import system
from traitlets import CBool, Instance, Type, default
from traitlets.config import Config

from looseleaf.devices import hide_in_shell
from looseleaf.units import MIB
from looseleaf.worker.device_magics import register_device_magics

Publish = Callable[[dict[str, Any]], None]

# Characters of an exception's text, and of each frame of its traceback, that are shown.
ERROR_CHARS_MAX: Final = 1 * MIB


def cut(text: str) -> str:
    """`text`, cut to `ERROR_CHARS_MAX`: an exception may hold a whole data set, and must still fit a message."""
    if len(text) <= ERROR_CHARS_MAX:
        return text
    return f"{text[:ERROR_CHARS_MAX]}... ({len(text) - ERROR_CHARS_MAX} more characters)"


def _nowhere(_message: dict[str, Any]) -> None:
    # In the zygote nothing is displayed; a library that tries at import must not fail.
    return


def _of(part: Any) -> WorkerShell:
    return cast(WorkerShell, part.shell)


class WorkerDisplayHook(DisplayHook):
    """Sends `execute_result`; the prompt number is IPython's own, one less than its count while a cell runs."""

    _message: dict[str, Any] | None = None

    def start_displayhook(self) -> None:
        super().start_displayhook()
        self._message = {"type": "execute_result", "data": {}, "metadata": {}, "execution_count": None}

    def write_output_prompt(self) -> None:
        if self._message is not None:
            self._message["execution_count"] = self.prompt_count

    def write_format_data(self, format_dict: dict[str, Any], md_dict: dict[str, Any] | None = None) -> None:
        if self._message is not None:
            self._message.update(data=format_dict, metadata=md_dict or {})

    def finish_displayhook(self) -> None:
        message, self._message = self._message, None
        self._is_active = False
        if message is not None and message["data"]:
            _of(self).publish(message)


class WorkerDisplayPublisher(DisplayPublisher):
    """Sends `display_data`, `update_display_data` and `clear_output`."""

    def publish(  # type: ignore[override]
        self,
        data: dict[str, Any],
        metadata: dict[str, Any] | None = None,
        *,
        transient: dict[str, Any] | None = None,
        update: bool = False,
        **_kwargs: Any,
    ) -> None:
        metadata = {} if metadata is None else metadata
        self._validate_data(data, metadata)
        _of(self).publish({
            "type": "update_display_data" if update else "display_data",
            "data": data,
            "metadata": metadata,
            "transient": transient or {},
        })

    def clear_output(self, wait: bool = False) -> None:
        _of(self).publish({"type": "clear_output", "wait": bool(wait)})


class WorkerCompiler(CachingCompiler):
    """Compiles under the file name that the kernel chose, so that functions show the same lines wherever they run."""

    def __init__(self) -> None:
        super().__init__()
        self.next_name = ""
        self._folder = ""

    def get_code_name(self, raw_code: str, transformed_code: str, number: int) -> str:
        name, self.next_name = self.next_name, ""
        if name:
            self._folder = os.path.dirname(name)
        elif self._folder:
            # What a cell has run, such as the text below `%%capture`: IPython shows tracebacks by the kind of name.
            name = f"{self._folder}/{zlib.crc32(raw_code.encode('utf-8', 'surrogatepass'))}.py"
        return name or super().get_code_name(raw_code, transformed_code, number)

    def add_source(self, name: str, number: int, source: str) -> None:
        """Makes a cell that ran elsewhere known, for tracebacks through the functions that it defined."""
        self._filename_map[name] = number
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)


class WorkerKernel:
    """What libraries ask of a notebook's kernel: that it is there, and which request it serves."""

    def __init__(self, shell: WorkerShell) -> None:
        self.shell = shell

    def get_parent(self, channel: str | None = None) -> dict[str, Any]:
        """The execute request of the cell that runs, as far as it is known here: its header's `msg_id`."""
        return self.shell.get_parent()


class WorkerShell(InteractiveShell):
    """As ipykernel's shell, but what it shows goes to `publish`."""

    displayhook_class = Type(WorkerDisplayHook)
    display_pub_class = Type(WorkerDisplayPublisher)
    compiler_class = Type(WorkerCompiler)
    autoindent = CBool(False)
    exiter = Instance(ZMQExitAutocall)
    keepkernel_on_exit: bool | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.publish: Publish = _nowhere
        self.last_traceback: list[str] | None = None
        self.failed_while_displaying = False
        self._request: dict[str, Any] = {}
        super().__init__(*args, **kwargs)
        self.kernel = WorkerKernel(self)
        # Libraries tell a notebook from a terminal by this key (tqdm) and by the class's name (rich, plotly).
        self.config.IPKernelApp.tqdm = "in a notebook"
        register_device_magics(self)

    @default("exiter")
    def _default_exiter(self) -> ZMQExitAutocall:
        return ZMQExitAutocall(self)

    def get_parent(self) -> dict[str, Any]:
        """See WorkerKernel."""
        return self._request

    def set_parent(self, parent: dict[str, Any]) -> None:
        """The request that this shell serves from now on."""
        self._request = parent

    def init_environment(self) -> None:
        """The variables that ipykernel sets, so that `!commands` print the same."""
        os.environ.update(
            TERM="xterm-color", CLICOLOR="1", FORCE_COLOR="1", CLICOLOR_FORCE="1", PAGER="cat", GIT_PAGER="cat"
        )

    def init_virtualenv(self) -> None:
        """Nothing: the zygote runs by the environment's own interpreter."""

    def init_hooks(self) -> None:
        super().init_hooks()
        self.set_hook("show_in_pager", page.as_hook(self._page), 99)

    def _page(self, text: Any, start: int = 0, screen_lines: int = 0, pager_cmd: str | None = None) -> None:
        data = text if isinstance(text, dict) else {"text/plain": text}
        self.payloads.write_payload({"source": "page", "data": data, "start": max(0, start)})

    def set_next_input(self, text: str, replace: bool = False) -> None:
        """Puts `text` into the next cell, as `%load` does."""
        self.payloads.write_payload({"source": "set_next_input", "text": text, "replace": replace})

    def ask_exit(self) -> None:
        """`exit` and `quit`: the kernel decides what that means."""
        self.payloads.write_payload({"source": "ask_exit", "keepkernel": bool(self.keepkernel_on_exit)})

    def enable_gui(self, gui: str | None = None) -> None:
        """Refuses event loops of desktop windows: a worker has no screen."""
        if gui not in (None, "", "inline"):
            raise UsageError(f"a GPU worker has no screen for the {gui!r} event loop; use %matplotlib inline or %%cpu")

    @property
    def payloads(self) -> Any:
        """What the cell asks of the front end beside its output."""
        return self.payload_manager

    @property
    def compiler(self) -> WorkerCompiler:
        """`compile` by its own type."""
        return cast(WorkerCompiler, self.compile)

    def _showtraceback(self, etype: type[BaseException], evalue: BaseException, stb: list[str]) -> None:
        if getattr(self.displayhook, "is_active", False):
            self.failed_while_displaying = True
            self.displayhook._is_active = False
        lines = [cut(str(line)) for line in (stb if isinstance(stb, list) else [stb])]
        self.last_traceback = lines
        self.publish({"type": "error", "ename": etype.__name__, "evalue": cut(str(evalue)), "traceback": lines})

    def system_piped(self, cmd: str) -> None:
        """`!cmd`: shows its output as it comes and keeps its status in `_exit_code`."""
        if cmd.rstrip().endswith("&"):
            raise OSError("Background processes not supported.")
        self.user_ns["_exit_code"] = system(self.var_expand(cmd, depth=1))
        if self.system_raise_on_error and self.user_ns["_exit_code"] != 0:
            raise CalledProcessError(self.user_ns["_exit_code"], cmd)

    system = system_piped


# rich, plotly and others ask for exactly this name before they use notebook output.
WorkerShell.__name__ = WorkerShell.__qualname__ = "ZMQInteractiveShell"


def build_shell() -> WorkerShell:
    """The process's one shell, without history on disk and so without a history thread.

    `sys.modules["__main__"]` is its namespace afterwards: what cells define is found there by pickle.
    """
    _use_ipython_debugger()
    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    shell: WorkerShell = WorkerShell.instance(config=config, profile_dir=_profile_dir())
    assert sys.modules["__main__"] is shell.user_module
    hide_in_shell(shell)
    # Made at its first use, which would be in each worker's first cell.
    shell.logger  # noqa: B018
    return shell


def _use_ipython_debugger() -> None:
    """`pdb.set_trace()` and `breakpoint()` open IPython's debugger, as in ipykernel."""
    from IPython.core import debugger

    replaced: Any = debugger
    replaced.Pdb = debugger.InterruptiblePdb
    pdb.Pdb = replaced.Pdb  # type: ignore[misc]
    pdb.set_trace = debugger.set_trace


def _profile_dir() -> ProfileDir:
    from IPython.paths import get_ipython_dir

    try:
        return cast(ProfileDir, ProfileDir.create_profile_dir_by_name(get_ipython_dir(), "default"))
    except (OSError, ProfileDirError):
        # The home directory may be read-only for a worker's user; nothing that matters is kept there.
        place = Path(tempfile.mkdtemp(prefix="looseleaf-ipython-")) / "profile"
        return cast(ProfileDir, ProfileDir.create_profile_dir(str(place)))


def add_sources(shell: WorkerShell, sources: Iterable[tuple[str, int, str]]) -> None:
    """Makes the cells (file name, execution count, text) known to tracebacks."""
    for name, number, source in sources:
        shell.compiler.add_source(name, number, source)
