"""`nvidia-smi` where there is none: tells of the pool's GPUs in that program's forms (design §4).

Runs as a script of its own, by an interpreter without site packages: it imports the standard library only. What it
knows is in the environment variable LOOSELEAF_POOL_GPUS. Between cells a notebook has nothing running on a GPU; what
only a real device can tell is "[N/A]", as NVIDIA's program has it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Gpu = Mapping[str, Any]

_NOT_KNOWN = "[N/A]"
_MIB = 1 << 20
# Exit statuses of NVIDIA's program.
INVALID, NOT_THERE = 2, 127
_FIELD = re.compile(r"^[a-z][a-z0-9_.]*$")
_RULE = "+-----------------------------------------+------------------------+----------------------+"
_LINE = "+" + "-" * 89 + "+"
_HEAD = """\
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|"""
_PROCESSES = f"""\
{_LINE}
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|  No running processes found                                                             |
{_LINE}"""
_UNITS = {"memory": "MiB", "utilization": "%"}
# What can be asked and only a device at work can tell.
_OF_DEVICES = re.compile(
    r"^(temperature|power|clocks|enforced|fan|ecc|retired_pages|pcie|pstate|serial|vbios_version|encoder|mig|driver_model|"
    r"clocks_throttle_reasons|clocks_event_reasons|display|accounting|inforom|gom|module|addressing_mode|gsp|protected)\b"
)


def _bus(index: int) -> str:
    return f"00000000:{index + 1:02X}:00.0"


def _uuid(index: int) -> str:
    return f"GPU-00000000-0000-4c4c-0000-{index:012x}"


_FIELDS: dict[str, Callable[[Gpu, int, int], str]] = {
    "timestamp": lambda gpu, index, count: time.strftime("%Y/%m/%d %H:%M:%S.000"),
    "driver_version": lambda gpu, index, count: gpu.get("driver_version") or _NOT_KNOWN,
    "count": lambda gpu, index, count: str(count),
    "index": lambda gpu, index, count: str(index),
    "name": lambda gpu, index, count: str(gpu["name"]),
    "uuid": lambda gpu, index, count: _uuid(index),
    "pci.bus_id": lambda gpu, index, count: _bus(index),
    "pci.bus": lambda gpu, index, count: f"0x{index + 1:02X}",
    "pci.device": lambda gpu, index, count: "0x00",
    "pci.domain": lambda gpu, index, count: "0x0000",
    "compute_cap": lambda gpu, index, count: f"{gpu['major']}.{gpu['minor']}",
    "compute_mode": lambda gpu, index, count: "Default",
    "persistence_mode": lambda gpu, index, count: "Disabled",
    "memory.total": lambda gpu, index, count: str(gpu["memory_bytes"] // _MIB),
    "memory.used": lambda gpu, index, count: "0",
    "memory.reserved": lambda gpu, index, count: "0",
    "memory.free": lambda gpu, index, count: str(gpu["memory_bytes"] // _MIB),
    "utilization.gpu": lambda gpu, index, count: "0",
    "utilization.memory": lambda gpu, index, count: "0",
}
_ALIASES = {"gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id"}


def table(gpu: Gpu, now: str) -> str:
    """What the program prints without arguments."""
    driver, cuda = gpu.get("driver_version") or "N/A", gpu.get("cuda_version") or "N/A"
    lines = [now, _LINE, f"| NVIDIA-SMI {driver:<22} Driver Version: {driver:<14} CUDA Version: {cuda:<9}|",
             "|" + _RULE[1:], _HEAD]  # fmt: skip
    for index in range(gpu["count"]):
        memory = f"{0:>7}MiB / {gpu['memory_bytes'] // _MIB:>6}MiB"
        lines += [
            f"| {index:>3}  {gpu['name'][:26]:<26}     Off |   {_bus(index)} Off |                  N/A |",
            f"| N/A   N/A    N/A             N/A /  N/A | {memory:>22} |      0%      Default |",
            "|                                         |                        |                  N/A |", _RULE,
        ]  # fmt: skip
    return "\n".join([*lines, "", _PROCESSES])


def listing(gpu: Gpu, indices: Sequence[int]) -> str:
    """`-L`."""
    return "\n".join(f"GPU {index}: {gpu['name']} (UUID: {_uuid(index)})" for index in indices)


def query(gpu: Gpu, indices: Sequence[int], asked: str, form: str) -> tuple[str, int]:
    """`--query-gpu=ASKED --format=FORM`: the text and the exit status."""
    options = [option.strip() for option in form.split(",")]
    if "csv" not in options:
        return '"--format=" must say "csv"', INVALID
    names = [name.strip() for name in asked.split(",")]
    rows = []
    for index in indices:
        row = []
        for name in names:
            value = _value(gpu, index, name)
            if value is None:
                return f'Field "{name}" is not a valid field to query.', INVALID
            unit = _unit(name) if value.isdecimal() and "nounits" not in options else ""
            row.append(f"{value}{unit}")
        rows.append(", ".join(row))
    heads = [f"{name} [{_unit(name).strip()}]" if _unit(name) else name for name in names]
    return "\n".join(rows if "noheader" in options else [", ".join(heads), *rows]), 0


def _value(gpu: Gpu, index: int, name: str) -> str | None:
    name = _ALIASES.get(name, name)
    if name in _FIELDS:
        return _FIELDS[name](gpu, index, gpu["count"])
    return _NOT_KNOWN if _FIELD.match(name) and _OF_DEVICES.match(name) else None


def _unit(name: str) -> str:
    unit = _UNITS.get(name.partition(".")[0])
    return f" {unit}" if unit else ""


def details(gpu: Gpu, now: str) -> str:
    """`-q`: what of the long form is known."""
    lines = ["", "==============NVSMI LOG==============", ""]

    def say(depth: int, key: str, value: object = "") -> None:
        pad = "    " * depth
        lines.append(f"{pad}{key}" if value == "" else f"{pad}{key:<{44 - 4 * depth}}: {value}")

    say(0, "Timestamp", now)
    say(0, "Driver Version", gpu.get("driver_version") or "N/A")
    say(0, "CUDA Version", gpu.get("cuda_version") or "N/A")
    lines.append("")
    say(0, "Attached GPUs", gpu["count"])
    for index in range(gpu["count"]):
        say(0, f"GPU {_bus(index)}")
        say(1, "Product Name", gpu["name"])
        say(1, "GPU UUID", _uuid(index))
        say(1, "FB Memory Usage")
        for key, size in (("Total", gpu["memory_bytes"]), ("Used", 0), ("Free", gpu["memory_bytes"])):
            say(2, key, f"{size // _MIB} MiB")
        say(1, "Processes", "None")
    return "\n".join(lines)


def _chosen(text: str, count: int) -> list[int] | None:
    """The indices that `-i TEXT` means, None if one is not there."""
    names = {str(i): i for i in range(count)} | {_uuid(i): i for i in range(count)} | {_bus(i): i for i in range(count)}
    found = [names.get(part.strip()) for part in text.split(",")]
    return None if None in found else [index for index in found if index is not None]


def _parsed(arguments: Sequence[str]) -> dict[str, str]:
    """Options with their values; of `-q -d MEMORY` and `--query-gpu name` the next word is the value."""
    long = {"-L": "--list-gpus", "-i": "--id", "-q": "--query", "-h": "--help", "-f": "--filename", "-l": "--loop",
            "-lms": "--loop-ms", "-d": "--display"}  # fmt: skip
    valued = {"--id", "--filename", "--loop", "--loop-ms", "--display", "--query-gpu", "--format",
              "--query-compute-apps"}  # fmt: skip
    found: dict[str, str] = {}
    rest = list(arguments)
    while rest:
        word, _, value = rest.pop(0).partition("=")
        word = long.get(word, word)
        if word in valued and not value and rest and not rest[0].startswith("-"):
            value = rest.pop(0)
        found[word] = value
    return found


_HELP = """\
NVIDIA System Management Interface, answered by LooseLeaf for the GPUs of its pool

    nvidia-smi [-L] [-q] [-i ID] [--query-gpu=FIELDS --format=csv[,noheader][,nounits]]"""
_NEEDS_GPU = (
    "nvidia-smi: {} needs a GPU; this notebook has none between its GPU cells. "
    "Make %%gpu the cell's first line and run it again"
)
_REPEATING = ("--loop", "--loop-ms", "--display")
_KNOWN = {"--list-gpus", "--id", "--query", "--help", "--query-gpu", "--format", "--query-compute-apps", "--version",
          *_REPEATING}  # fmt: skip


def answer(gpu: Gpu, arguments: Sequence[str]) -> tuple[str, int]:
    """What is printed for these arguments, and the exit status."""
    options, now = _parsed(arguments), time.strftime("%a %b %d %H:%M:%S %Y")
    strange = sorted(options.keys() - _KNOWN)
    if strange:
        return _NEEDS_GPU.format(" ".join(strange)), INVALID
    indices: list[int] | None = list(range(gpu["count"]))
    if "--id" in options:
        indices = _chosen(options["--id"], gpu["count"])
        if indices is None:
            return "No devices were found", 6
    if "--help" in options:
        return _HELP, 0
    if "--list-gpus" in options:
        return listing(gpu, indices or []), 0
    if "--query-gpu" in options:
        return query(gpu, indices or [], options["--query-gpu"], options.get("--format", ""))
    if "--query-compute-apps" in options:
        head = options["--query-compute-apps"].replace(",", ", ")
        return "" if "noheader" in options.get("--format", "") else head, 0
    if "--version" in options:
        driver, cuda = gpu.get("driver_version") or "N/A", gpu.get("cuda_version") or "N/A"
        return f"NVIDIA-SMI version  : {driver}\nDRIVER version      : {driver}\nCUDA Version        : {cuda}", 0
    return (details if "--query" in options else table)(gpu, now), 0


def main(arguments: Sequence[str]) -> int:
    """Answers from the environment; without a pool the machine's own program, if it has one, is run instead."""
    try:
        gpu = json.loads(os.environ.get("LOOSELEAF_POOL_GPUS", ""))
    except ValueError:
        gpu = {}
    if not gpu.get("count"):
        return _real(arguments)
    text, status = answer(gpu, arguments)
    print(text)
    return status


def _real(arguments: Sequence[str]) -> int:
    here = os.environ.get("LOOSELEAF_SMI_FOLDER", "")
    entries = [e for e in os.environ.get("PATH", "").split(os.pathsep) if e and os.path.realpath(e) != here]
    found = shutil.which("nvidia-smi", path=os.pathsep.join(entries))
    if found is None:
        print("nvidia-smi: command not found", file=sys.stderr)
        return NOT_THERE
    return os.execv(found, [found, *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
