"""Packages that do at import what packages do, and what a probe must say of each."""

from __future__ import annotations

from pathlib import Path

CUDA = "import ctypes\ndriver = ctypes.CDLL('libcuda.so.1')\n"

# name → (source, the probe's verdict)
CASES = {
    "quiet_one": ("VALUE = 1", "clean"),
    "prints": ("import sys\nprint('a banner')\nsys.stderr.write('a warning')", "clean"),
    "loads_driver": (CUDA, "clean"),
    "cuda_in_function": (CUDA + "def use():\n    driver.cuInit(0)", "clean"),
    "cuda_at_import": (CUDA + "driver.cuInit(0)", "cuda"),
    "cuda_by_another": ("import cuda_at_import", "cuda"),
    "asks_runtime": (
        """import os, sys, types
pid = os.getpid()
core = types.SimpleNamespace(_cuda_isInBadFork=lambda: os.getpid() != pid)
sys.modules['torch'] = types.SimpleNamespace(_C=core)""",
        "cuda",
    ),
    "thread_at_import": (
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True, name='pest').start()",
        "threads",
    ),
    "native_thread": ("import _thread, time\n_thread.start_new_thread(time.sleep, (1000,))", "threads"),
    "hangs_after_fork": ("import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(1000))", "hang"),
    "dies_after_fork": ("import os\nos.register_at_fork(after_in_child=lambda: os.abort())", "error"),
    "socket_at_import": ("import socket\nsock = socket.socket()", "fds"),
    "loop_at_import": ("import selectors\nselector = selectors.EpollSelector()", "fds"),
    "file_at_import": ("file = open(__file__)", "clean"),
    "forks_at_import": (
        "import os, time\npid = os.fork()\nif pid == 0:\n    os.setsid()\n    time.sleep(1000)", "children",
    ),
    "forks_and_goes_on": ("import os\npid = os.fork()", "children"),
    "daemon_at_import": (
        "import subprocess\nsubprocess.run(['sh', '-c', 'sleep 1000 >/dev/null 2>&1 &'], check=True)", "children",
    ),
    "loads_grpc": ("import sys, types\nsys.modules['grpc'] = types.ModuleType('grpc')", "grpc-like"),
    "jax_backend": (
        "import sys, types\nsys.modules['jax._src.xla_bridge'] = types.SimpleNamespace(_backends={'cpu': 1})",
        "grpc-like",
    ),
    "raises": ("raise RuntimeError('half installed')", "error"),
    "has_no_disk": ("raise OSError(28, 'No space left on device')", "passing"),
    "has_no_server": ("raise ConnectionRefusedError('license server')", "passing"),
    "has_no_memory": ("raise MemoryError", "passing"),
    "exits": ("import sys\nsys.exit('no license')", "error"),
    "interrupts": ("raise KeyboardInterrupt", "error"),
    "circular_a": ("import circular_b\nDONE = True", "clean"),
    "circular_b": ("import circular_a\nDONE = True", "clean"),
    "circular_bad": ("import circular_worse\nVALUE = 1", "error"),
    "circular_worse": ("from circular_bad import VALUE", "clean"),
    "changes_cwd": ("import os, tempfile\nos.chdir(tempfile.gettempdir())", "effects"),
    "changes_signals": ("import signal\nsignal.signal(signal.SIGTERM, lambda *_: None)", "effects"),
    "changes_umask": ("import os\nos.umask(0)", "effects"),
    "wakes_up": (
        "import os, signal\nreader, writer = os.pipe2(os.O_NONBLOCK)\nsignal.set_wakeup_fd(writer)", "fds",
    ),
    "path_of_its_own": ("import os, sys\nsys.path.append(os.path.dirname(__file__) + '/vendored')", "clean"),
    "path_of_the_cwd": ("import sys\nsys.path.insert(0, '')", "effects"),
}  # fmt: skip


def write_packages(folder: Path) -> None:
    """All of `CASES` as modules in `folder`."""
    for name, (source, _verdict) in CASES.items():
        (folder / f"{name}.py").write_text(source)
