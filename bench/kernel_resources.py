"""What the CUDA compiler says of each kernel: `python bench/kernel_resources.py` prints it as Markdown; needs nvcc."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[1] / "csrc/dirty_tracker/device_kernels.cu"
ARCHITECTURES = ("75", "80", "86", "89", "90")
LIMIT_S = 900


@dataclass(frozen=True)
class Resources:
    """Of one thread, `shared_bytes` of one block."""

    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int


def resources(nvcc: str, architectures: Sequence[str] = ARCHITECTURES) -> dict[tuple[str, str], Resources]:
    """By kernel and architecture. Raises subprocess.CalledProcessError if it does not compile."""
    targets = [f"-gencode=arch=compute_{arch},code=sm_{arch}" for arch in architectures]
    with tempfile.TemporaryDirectory() as folder:
        command = [
            nvcc, "-c", str(KERNELS), "-o", f"{folder}/kernels.o", "-std=c++17", "-O3", "-Xptxas", "-v", "--threads=2",
            *targets,
        ]  # fmt: skip
        said = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=True).stderr
    found = {}
    for part in said.split("Compiling entry function")[1:]:
        name, arch = re.search(r"(fingerprint|select|gather|compare)_kernel", part), re.search(r"for 'sm_(\d+)'", part)
        assert name and arch, part
        found[name[1], arch[1]] = Resources(
            registers=_number(r"Used (\d+) registers", part),
            stack_bytes=_number(r"(\d+) bytes stack frame", part),
            spill_bytes=_number(r"(\d+) bytes spill stores", part) + _number(r"(\d+) bytes spill loads", part),
            shared_bytes=_number(r"(\d+) bytes smem", part, 0),
        )
    return found


def _number(pattern: str, text: str, default: int | None = None) -> int:
    found = re.search(pattern, text)
    if found is None:
        assert default is not None, f"{pattern} in {text}"
        return default
    return int(found[1])


def table(found: dict[tuple[str, str], Resources]) -> list[str]:
    """Lines of Markdown: registers by kernel and architecture, and what is the same on all of them."""
    architectures = sorted({arch for _, arch in found})
    lines = [
        "| kernel | " + " | ".join(f"sm_{arch}" for arch in architectures) + " | shared memory | stack | spills |",
        "| --- " * (len(architectures) + 4) + "|",
    ]
    for name in dict.fromkeys(name for name, _ in found):
        one = [found[name, arch] for arch in architectures]
        worst = [max(getattr(part, what) for part in one) for what in ("shared_bytes", "stack_bytes", "spill_bytes")]
        lines.append(f"| `{name}` | " + " | ".join(str(part.registers) for part in one) + " | "
                     + " | ".join(f"{size} B" for size in worst) + " |")  # fmt: skip
    return lines


def main() -> int:
    """0 if there is a compiler."""
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        print("nvcc is not installed", file=sys.stderr)
        return 1
    print("\n".join(table(resources(nvcc))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
