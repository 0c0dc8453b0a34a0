"""JupyterLab beside a cluster: its command, its environment, and its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from looseleaf.errors import InvalidArgument, Unsupported
from looseleaf.kernel.install import KERNEL_NAME, kernel_spec
from looseleaf.local.record import CLUSTER_ID_VARIABLE, ClusterRecord

PROGRAM: Final = "jupyter-lab"
# After a signal: JupyterLab shuts its kernels down, which commit their last state.
STOP_TIMEOUT_S: Final = 20.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def find_lab() -> list[str]:
    """The command of JupyterLab: of the search path, else of this interpreter's environment.

    Raises Unsupported `JUPYTERLAB_MISSING`.
    """
    folders = os.pathsep.join([os.environ.get("PATH", os.defpath), str(Path(sys.executable).parent)])
    found = shutil.which(PROGRAM, path=folders)
    if found is None:
        text = 'JupyterLab is not installed here: pip install "looseleaf[lab]"'
        raise Unsupported("JUPYTERLAB_MISSING", text)
    return [found]


def split_words(words: Sequence[str]) -> list[str]:
    """Arguments of JupyterLab: the path, which must exist, and its options.

    Raises InvalidArgument `NOTEBOOK_MISSING`.
    """
    paths = [word for word in words[:1] if not word.startswith("-")]
    for path in paths:
        if not Path(path).exists():
            raise InvalidArgument("NOTEBOOK_MISSING", f"there is no notebook or folder {path}")
    return [*words[len(paths):], *paths]


def write_kernelspec(data: Path) -> Path:
    """Writes the kernelspec into the cluster's data folder; returns the folder for JUPYTER_PATH."""
    root = data / "jupyter"
    folder = root / "kernels" / KERNEL_NAME
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "kernel.json").write_text(json.dumps(kernel_spec(), indent=1), encoding="utf-8")
    return root


class LabServer:
    """JupyterLab as a child whose kernels find the cluster of `record`, whatever is installed or configured."""

    def __init__(self, command: Sequence[str], record: ClusterRecord, *, owned: bool) -> None:
        self._command = [*command, f"--MultiKernelManager.default_kernel_name={KERNEL_NAME}"]
        self._child: subprocess.Popen[bytes] | None = None
        self._signals_seen = 0
        paths = [str(write_kernelspec(Path(record.data))), os.environ.get("JUPYTER_PATH", "")]
        self._environ = {
            **os.environ, "JUPYTER_PATH": os.pathsep.join(filter(None, paths)), "LOOSELEAF_DATA": record.data,
            "LOOSELEAF_RUN_DIR": record.run_dir, "LOOSELEAF_ENDPOINT": record.kernel_sockets[record.hosts[0]],
        }  # fmt: skip
        if owned:
            # Should this process be killed: the supervisor ends what bears its mark.
            self._environ[CLUSTER_ID_VARIABLE] = record.cluster_id

    def run(self) -> int:
        """Returns when JupyterLab has ended, by itself or by a signal to this process: its exit code, 0 by a signal.

        On the main thread only. A signal asks JupyterLab to end; it is killed by the second one, or if it is still
        there after STOP_TIMEOUT_S.
        """
        with self._heeding_signals():
            # In a session of its own: Ctrl-C would make JupyterLab ask whether it is meant.
            child = self._child = subprocess.Popen(
                self._command, env=self._environ, stdin=subprocess.DEVNULL, start_new_session=True)
            if self._signals_seen:
                self._ask(0, None)
            code = child.wait()
        return 0 if self._signals_seen else code

    @contextmanager
    def _heeding_signals(self) -> Iterator[None]:
        # Before there is a child: a signal in between must neither be lost nor end this process without it.
        # One that this process was started to ignore, as `nohup` does, stays ignored.
        heeded = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._ask) for number in heeded}
        before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self._kill)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _ask(self, _number: int, _frame: Any) -> None:
        self._signals_seen += 1
        if self._child is None:
            return
        if self._signals_seen > 1 and _number:
            # Whoever asks twice does not want to wait.
            self._child.kill()
        self._child.terminate()
        signal.setitimer(signal.ITIMER_REAL, STOP_TIMEOUT_S)

    def _kill(self, _number: int, _frame: Any) -> None:
        if self._child is not None:
            self._child.kill()
