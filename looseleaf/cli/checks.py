"""The checks of `looseleaf doctor`; each returns one finding, none raises."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from looseleaf.config import ClusterConfig
from looseleaf.errors import LooseLeafError
from looseleaf.units import GIB, MIB, format_bytes

PROBE_TIMEOUT_S: Final = 120.0
DISK_BYTES_WARN: Final = 10 * GIB
DISK_BYTES_FAIL: Final = 1 * GIB
MEMORY_BYTES_WARN: Final = 4 * GIB
OPEN_FILES_WARN: Final = 4_096
OPEN_FILES_FAIL: Final = 512
CLOCK_SKEW_S_MAX: Final = 2.0
PACKAGES: Final = ("grpcio", "protobuf", "torch", "numpy", "cloudpickle", "msgpack", "ipykernel", "jupyter_client")


@dataclass(frozen=True)
class Check:
    """One finding. `advice` says what to do, empty if nothing."""

    name: str
    state: Literal["ok", "warn", "fail"]
    finding: str
    advice: str = ""


def run_checks(config: ClusterConfig) -> list[Check]:
    """All checks, in a fixed order."""
    checks: list[tuple[str, Callable[[], Check]]] = [
        ("python", check_python), ("packages", check_packages), ("torch", lambda: check_torch(config.python)),
        ("native", check_native), ("nvcc", check_nvcc), ("gpus", check_gpus), ("memory", check_memory),
        ("open files", check_open_files), ("locked memory", check_locked_memory),
        ("data folder", lambda: check_disk(config.data)), ("sockets", lambda: check_sockets(config)),
        ("settings", check_settings), ("cluster", lambda: check_cluster(config)), ("jupyter", check_jupyter),
        ("clock", lambda: check_clock(config.data)),
    ]
    return [_guarded(name, run) for name, run in checks]


def _guarded(name: str, run: Callable[[], Check]) -> Check:
    try:
        return run()
    except LooseLeafError as error:
        return Check(name, "fail", str(error))
    except (OSError, ImportError, ValueError, LookupError, subprocess.SubprocessError) as error:
        return Check(name, "fail", f"cannot be checked: {type(error).__name__}: {error}")


def check_python() -> Check:
    """Version and system."""
    found = f"{platform.python_version()} at {sys.executable} on {platform.system()} {platform.release()}"
    if sys.platform != "linux":
        return Check("python", "fail", found, "LooseLeaf runs on Linux: it needs memfd, SCM_RIGHTS and pidfd")
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return Check("python", "fail", found, "install Python 3.11, 3.12 or 3.13")
    return Check("python", "ok", found)


def check_packages() -> Check:
    """What is installed of what matters most."""
    versions, missing = [], []
    for name in PACKAGES:
        try:
            versions.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
    if missing:
        return Check("packages", "fail", f"missing: {', '.join(missing)}", f"pip install {' '.join(missing)}")
    return Check("packages", "ok", ", ".join(versions))


def check_torch(python: str) -> Check:
    """Whether the interpreter of the workers imports torch, and whether torch sees CUDA."""
    code = "import json, torch; print(json.dumps([torch.__version__, torch.cuda.is_available(), torch.version.cuda]))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return Check("torch", "fail", f"{python} cannot import torch: {reason[0]}", f"{python} -m pip install torch")
    version, available, cuda = json.loads(done.stdout.splitlines()[-1])
    return Check("torch", "ok", f"{version}, built for CUDA {cuda}" + ("" if available else ", sees no GPU here"))


def check_native() -> Check:
    """What of the extension was built and works."""
    from looseleaf.dirty_tracker.build import build_info

    info = build_info()
    found = ", ".join(f"{key} {value}" for key, value in info.items())
    if info["built_with_cuda"] and str(info["cuda"]).startswith("failed"):
        return Check("native", "fail", found, "the CUDA part was built but does not load: rebuild on this machine")
    if str(info["written_pages"]).startswith("not found"):
        advice = "saves of restored data are slower: /proc/self/pagemap must be readable, as it is on Linux by default"
        return Check("native", "warn", found, advice)
    return Check("native", "ok", found)


def check_settings() -> Check:
    """Files and variables of the configuration, of every service."""
    from looseleaf.config_files import SECTIONS, ConfigError, config_files
    from looseleaf.config_load import DEFAULT, mistyped_variables, settings

    try:
        chosen = [entry for section in SECTIONS for entry in settings(section) if entry.origin != DEFAULT]
    except ConfigError as error:
        return Check("settings", "fail", error.message, "correct it, then look again")
    files = ", ".join(map(str, config_files())) or "no file"
    text = f"{len(chosen)} set; {files}"
    if mistyped := mistyped_variables():
        names = ", ".join(f"{name} is no setting, {near} is" for name, near in mistyped.items())
        return Check("settings", "warn", f"{text}; {names}", "correct or unset the variable")
    return Check("settings", "ok", text)


def check_nvcc() -> Check:
    """The CUDA compiler, needed only to build."""
    nvcc = shutil.which("nvcc") or (os.environ.get("CUDA_HOME", "/usr/local/cuda") + "/bin/nvcc")
    if not Path(nvcc).exists():
        return Check("nvcc", "ok", "not installed; only needed to build for real GPUs")
    done = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False)
    return Check("nvcc", "ok", f"{nvcc}: {(done.stdout.strip().splitlines() or ['?'])[-1]}")


def check_gpus() -> Check:
    """Devices of the NVIDIA driver against what the extension can use."""
    from looseleaf.local.plan import count_gpus

    found = count_gpus()
    if not found:
        return Check("gpus", "ok", "no NVIDIA GPU; `looseleaf up` lends emulated ones")
    from looseleaf.dirty_tracker.build import build_info

    info = build_info()
    if info["cuda_device_count"] < found:
        rebuild = "rebuild with LOOSELEAF_CUDA=1 on a machine with nvcc"
        advice = str(info["cuda"]) if info["built_with_cuda"] else rebuild
        return Check("gpus", "warn", f"{found} GPU(s), but the extension can use {info['cuda_device_count']}", advice)
    return Check("gpus", "ok", f"{found} GPU(s)")


def check_memory() -> Check:
    """Memory that arenas and workers can have."""
    import psutil

    available = psutil.virtual_memory().available
    text = f"{format_bytes(available)} available"
    if available < MEMORY_BYTES_WARN:
        return Check("memory", "warn", text, "lower arena_bytes and ring_bytes in [cluster] of looseleaf.toml")
    return Check("memory", "ok", text)


def check_open_files() -> Check:
    """RLIMIT_NOFILE: each connection takes several descriptors."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{soft} (may be raised to {hard})"
    if soft < OPEN_FILES_WARN:
        state: Literal["warn", "fail"] = "fail" if soft < OPEN_FILES_FAIL else "warn"
        return Check("open files", state, text, f"`ulimit -n {OPEN_FILES_WARN}` before `looseleaf up`")
    return Check("open files", "ok", text)


def check_locked_memory() -> Check:
    """RLIMIT_MEMLOCK: pinned transfer buffers of real GPUs."""
    from looseleaf.local.plan import count_gpus

    soft, _hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    unlimited = soft == resource.RLIM_INFINITY
    text = "unlimited" if unlimited else format_bytes(soft)
    if not unlimited and soft < 256 * MIB and count_gpus():
        return Check("locked memory", "warn", text, "`ulimit -l unlimited`, else copies from the GPU are slower")
    return Check("locked memory", "ok", text)


def check_disk(data: Path) -> Check:
    """Room and rights where sessions are saved."""
    existing = next(folder for folder in (data, *data.parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    text = f"{data}, {format_bytes(free)} free"
    if not os.access(existing, os.W_OK):
        return Check("data folder", "fail", f"{text}, not writable", "choose another with --data or LOOSELEAF_DATA")
    if free < DISK_BYTES_WARN:
        state: Literal["warn", "fail"] = "fail" if free < DISK_BYTES_FAIL else "warn"
        return Check("data folder", state, text, "free some room, or choose another disk with --data")
    return Check("data folder", "ok", text)


def check_sockets(config: ClusterConfig) -> Check:
    """Lengths of socket paths and the rights of their folder."""
    from looseleaf.rpc.address import socket_path

    socket_path(f"unix:{config.run_dir}/checkpoint-store.sock")
    text = str(config.run_dir)
    if config.run_dir.exists():
        found = config.run_dir.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return Check("sockets", "fail", f"{text} can be written by others", f"chmod 700 {config.run_dir}")
    return Check("sockets", "ok", text)


def check_cluster(config: ClusterConfig) -> Check:
    """Whether one runs, and whether all of it serves."""
    from looseleaf.local.record import read_record

    record = read_record(config.run_dir)
    if record is None:
        return Check("cluster", "ok", "none runs here; `looseleaf up` starts one")
    if not record.alive:
        text = f"the supervisor {record.supervisor_pid} was killed"
        return Check("cluster", "warn", text, "`looseleaf down` cleans up")
    down = [name for name, service in record.services.items() if service.state != "serving"]
    if down:
        return Check("cluster", "fail", f"not serving: {', '.join(down)}", f"see {record.data}/logs")
    return Check("cluster", "ok", f"{len(record.services)} services serve, device {record.device}")


def check_jupyter() -> Check:
    """Whether Jupyter finds our kernelspec."""
    from jupyter_client.kernelspec import KernelSpecManager

    manager = KernelSpecManager()
    specs = manager.get_all_specs()
    ours = [name for name, spec in specs.items() if "looseleaf.kernel" in spec["spec"].get("argv", [])]
    cure = "`looseleaf kernel install --sys-prefix`"
    if not ours:
        searched = os.pathsep.join(manager.kernel_dirs)
        return Check("jupyter", "warn", f"no LooseLeaf kernel in {searched}", cure)
    # A bare "python", as in an installed wheel's kernelspec, Jupyter replaces by its own interpreter.
    pythons = {name: specs[name]["spec"]["argv"][0] for name in ours}
    missing = [name for name, python in pythons.items() if python != "python" and not shutil.which(python)]
    if missing:
        return Check("jupyter", "fail", f"{missing[0]} names an interpreter that is gone", cure)
    return Check("jupyter", "ok", ", ".join(f"{name} at {specs[name]['resource_dir']}" for name in ours))


def check_clock(data: Path) -> Check:
    """The wall clock against that of the data folder's file system, and the monotonic clock's step."""
    existing = next(folder for folder in (data, *data.parents) if folder.exists())
    step_s = time.get_clock_info("monotonic").resolution
    skew_s = 0.0
    # A folder that cannot be written is another check's finding.
    with contextlib.suppress(PermissionError), tempfile.NamedTemporaryFile(dir=existing, prefix=".looseleaf-") as file:
        skew_s = abs(os.fstat(file.fileno()).st_mtime - time.time())
    text = f"{skew_s:.2f} s from the file system's, monotonic step {step_s:g} s"
    if skew_s > CLOCK_SKEW_S_MAX:
        return Check("clock", "warn", text, "set the clock (NTP): times in logs and listings will mislead")
    return Check("clock", "ok", text)
