"""The computed parts of the build: generated protobuf code and the native extensions; all else is in pyproject.toml.

Switches (environment):
    LOOSELEAF_CUDA=auto|0|1     build `looseleaf.dirty_tracker._cuda` when nvcc is found (default), never, or always
    LOOSELEAF_CUDA_ARCHS=LIST   compute capabilities, default "75;80;86;89;90"; PTX is added for the last
    LOOSELEAF_NATIVE=0          install without compiling: `make` builds the native parts in place afterwards
    CUDA_HOME=DIR               where the CUDA toolkit is, if nvcc is not on PATH
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile
from setuptools import Command, Extension, find_packages, setup
from setuptools.command.build import build
from setuptools.command.build_ext import build_ext
from setuptools.errors import ExecError, OptionError

ROOT = Path(__file__).resolve().parent
PROTO = Path("proto")
NATIVE = Path("csrc/dirty_tracker")
XXHASH = Path("csrc/third_party/xxhash")
CHECKPOINT_NATIVE = Path("csrc/checkpoint")
WORKER_NATIVE = Path("csrc/worker")
KERNELSPEC = "share/jupyter/kernels/looseleaf"
CUDA_ARCHS_DEFAULT = "75;80;86;89;90"
# -g0: debug information makes the extension twenty times larger.
C_FLAGS = ["-O3", "-g0", "-fvisibility=hidden", "-Wall", "-Wextra"]
CXX_FLAGS = ["-std=c++17", *C_FLAGS]


class BuildProto(Command):
    """Generate `looseleaf/v1/*_pb2.py`, `*_pb2.pyi` and `*_pb2_grpc.py` from `proto/`.

    Writes into the source tree for `--inplace` and for an editable install, else into the build folder.
    """

    description = "generate the protobuf and gRPC code"
    user_options = [("build-lib=", "d", "where to write"), ("inplace", "i", "write into the source tree")]
    boolean_options = ["inplace"]
    editable_mode = False

    def initialize_options(self) -> None:
        self.build_lib: str | None = None
        self.inplace = False

    def finalize_options(self) -> None:
        self.set_undefined_options("build", ("build_lib", "build_lib"))

    def run(self) -> None:
        protos = self.get_source_files()
        if not protos:
            self.announce(f"no .proto files in {PROTO}: nothing to generate", level=2)
            return
        try:
            from importlib.resources import files

            well_known = files("grpc_tools").joinpath("_proto")
        except ModuleNotFoundError as error:
            raise ExecError("grpcio-tools is missing: pip install 'grpcio-tools==1.71.*'") from error
        out = self._out()
        out.mkdir(parents=True, exist_ok=True)
        subprocess.check_call([
            sys.executable, "-m", "grpc_tools.protoc", f"-I{PROTO}", f"-I{well_known}",
            f"--python_out={out}", f"--pyi_out={out}", f"--grpc_python_out={out}", *protos,
        ])

    def _out(self) -> Path:
        return Path() if self.editable_mode or self.inplace else Path(str(self.build_lib))

    def get_source_files(self) -> list[str]:
        return sorted(str(path) for path in PROTO.rglob("*.proto"))

    def get_outputs(self) -> list[str]:
        stems = [self._out() / Path(proto).relative_to(PROTO).with_suffix("") for proto in self.get_source_files()]
        return [f"{stem}{end}" for stem in stems for end in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py")]

    def get_output_mapping(self) -> dict[str, str]:
        return {}


class BuildAll(build):
    """`build` with the generated code made first, so that `build_py` finds it."""

    sub_commands = [("build_proto", None), *build.sub_commands]


class BuildNative(build_ext):
    """`build_ext` that also compiles `.cu` files with nvcc, and several C++ files at a time."""

    def build_extension(self, ext: Extension) -> None:
        cuda_sources = [source for source in ext.sources if source.endswith(".cu")]
        ext.sources = [source for source in ext.sources if not source.endswith(".cu")]
        for source in cuda_sources:
            ext.extra_objects.append(self._compile_cuda(Path(source), ext))
        with ParallelCompile("LOOSELEAF_BUILD_JOBS", default=min(4, os.cpu_count() or 1)):
            super().build_extension(ext)

    def _compile_cuda(self, source: Path, ext: Extension) -> str:
        nvcc = find_nvcc()
        if nvcc is None:
            raise ExecError("nvcc vanished during the build")
        target = Path(self.build_temp) / source.with_suffix(".cu.o")
        inputs = [source, *map(Path, ext.depends)]
        archs = cuda_archs()
        stamp = target.with_suffix(".archs")
        if (
            target.exists() and stamp.exists() and stamp.read_text() == ";".join(archs) and not self.force
            and target.stat().st_mtime > max(path.stat().st_mtime for path in inputs)
        ):
            return str(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        gencode = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in archs]
        gencode.append(f"-gencode=arch=compute_{archs[-1]},code=compute_{archs[-1]}")
        command = [
            str(nvcc), "-c", str(source), "-o", str(target), "-std=c++17", "-O3", "--threads=2",
            "-Xcompiler=-fPIC,-fvisibility=hidden", *gencode,
        ]
        self.announce(" ".join(command), level=2)
        subprocess.check_call(command)
        stamp.write_text(";".join(archs))
        return str(target)


def find_nvcc() -> Path | None:
    """The CUDA compiler, or None."""
    home = os.environ.get("CUDA_HOME")
    for candidate in (home and f"{home}/bin/nvcc", shutil.which("nvcc"), "/usr/local/cuda/bin/nvcc"):
        if candidate and Path(candidate).exists():
            return Path(candidate)
    return None


def cuda_home(nvcc: Path) -> Path:
    """The toolkit's folder. nvcc may be a wrapper script, so it is asked rather than its path read."""
    if home := os.environ.get("CUDA_HOME"):
        return Path(home)
    command = [str(nvcc), "--dryrun", "-x", "cu", "/dev/null"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    if found := re.search(r"^#\$ TOP=(.+)$", said, re.MULTILINE):
        return Path(found.group(1)).resolve()
    return nvcc.resolve().parent.parent


def cuda_archs() -> list[str]:
    """Compute capabilities to compile for, lowest first."""
    text = os.environ.get("LOOSELEAF_CUDA_ARCHS", CUDA_ARCHS_DEFAULT)
    archs = [part.strip() for part in text.split(";") if part.strip()]
    if not archs or not all(re.fullmatch(r"\d{2,3}[af]?", arch) for arch in archs):
        raise OptionError(f"LOOSELEAF_CUDA_ARCHS must look like {CUDA_ARCHS_DEFAULT!r}, not {text!r}")
    return archs


def wants_cuda() -> bool:
    """Whether to build `_cuda`, by LOOSELEAF_CUDA."""
    choice = os.environ.get("LOOSELEAF_CUDA", "auto")
    if choice not in ("auto", "0", "1"):
        raise OptionError(f"LOOSELEAF_CUDA must be auto, 0 or 1, not {choice!r}")
    if choice == "1" and find_nvcc() is None:
        raise ExecError("LOOSELEAF_CUDA=1, but nvcc is not on PATH nor in CUDA_HOME: install it or choose 0")
    return choice != "0" and find_nvcc() is not None


def sources(folder: Path, patterns: Iterable[str]) -> list[str]:
    return sorted(str(path) for pattern in patterns for path in folder.glob(pattern))


def extensions() -> list[Extension]:
    """`_core`, `_native` and `_forks` always; `_cuda` by `wants_cuda`."""
    import pybind11

    with_cuda = wants_cuda()
    headers = sources(NATIVE, ["*.h"]) + sources(XXHASH, ["*"])
    # The first two need CUDA's headers; `make native-test` runs the others over a device of plain memory.
    names = ("cuda_bindings.cpp", "cuda_stream.cpp", "device_tracker.cpp", "pinned_ring.cpp")
    cuda_sources = {str(NATIVE / name) for name in names}
    core = Extension(
        "looseleaf.dirty_tracker._core",
        sources=[path for path in sources(NATIVE, ["*.cpp"]) if path not in cuda_sources],
        include_dirs=[pybind11.get_include(), str(NATIVE)],
        define_macros=[("LOOSELEAF_BUILT_WITH_CUDA", str(int(with_cuda)))],
        extra_compile_args=CXX_FLAGS,
        extra_link_args=["-s", "-pthread"],
        depends=headers,
        language="c++",
    )
    graph = Extension(
        "looseleaf.checkpoint._native",
        sources=sources(CHECKPOINT_NATIVE, ["*.cpp"]),
        include_dirs=[pybind11.get_include(), str(CHECKPOINT_NATIVE)],
        extra_compile_args=CXX_FLAGS,
        extra_link_args=["-s"],
        depends=sources(CHECKPOINT_NATIVE, ["*.h"]),
        language="c++",
    )
    forks = Extension(
        "looseleaf.worker._forks",
        sources=sources(WORKER_NATIVE, ["*.c"]),
        extra_compile_args=C_FLAGS,
        extra_link_args=["-s"],
    )
    if not with_cuda:
        return [core, graph, forks]
    home = cuda_home(find_nvcc() or Path())
    cuda = Extension(
        "looseleaf.dirty_tracker._cuda",
        sources=[*sorted(cuda_sources), str(NATIVE / "fingerprint_key.cpp"), *sources(NATIVE, ["*.cu"])],
        include_dirs=[pybind11.get_include(), str(NATIVE), str(home / "include")],
        library_dirs=[str(home / name) for name in ("lib64", "lib") if (home / name).is_dir()],
        libraries=["cudart_static", "rt", "pthread", "dl"],
        extra_compile_args=CXX_FLAGS,
        extra_link_args=["-s"],
        depends=headers,
        language="c++",
    )
    return [core, graph, forks, cuda]


os.chdir(ROOT)
setup(
    packages=find_packages(include=["looseleaf", "looseleaf.*"]),
    # An installed wheel shows its kernel in Jupyter without another step.
    data_files=[(KERNELSPEC, [f"{KERNELSPEC}/kernel.json"])],
    package_data={"": ["py.typed", "*.pyi", "*.json", "*.svg", "*.png", "*.toml"]},
    ext_modules=[] if os.environ.get("LOOSELEAF_NATIVE") == "0" else extensions(),
    cmdclass={"build": BuildAll, "build_proto": BuildProto, "build_ext": BuildNative},
)
