"""What GPUs are, from a driver to whoever answers for them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from looseleaf.devices import probe
from looseleaf.devices.description import VIRTUAL, GpuDescription, described, of_message, pool_text
from looseleaf.errors import InvalidArgument

H100 = GpuDescription("NVIDIA H100", 80 << 30, 9, 0, 132, "12.8", "570.1", 50 << 20, 2048, 232448)
DRIVER = """
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *v) { *v = 12080; return 0; }
int cuDeviceGetCount(int *n) { *n = 2; return 0; }
int cuDeviceGet(int *d, int i) { *d = i; return 0; }
int cuDeviceGetName(char *s, int n, int d) { strcpy(s, "NVIDIA H100"); return 0; }
int cuDeviceTotalMem_v2(unsigned long *s, int d) { *s = 80UL << 30; return 0; }
int cuDeviceGetAttribute(int *v, int a, int d) {
    *v = a == 75 ? 9 : a == 76 ? 0 : a == 16 ? 132 : a == 38 ? 50 << 20 : a == 39 ? 2048 : a == 97 ? 232448 : -1;
    return 0;
}
"""


def test_description_survives_a_message() -> None:
    assert of_message(H100.message()) == H100
    assert of_message({**H100.message(), "later": 1}) == H100
    assert json.loads(pool_text(3, H100)) == {"count": 3, **H100.message()}


@pytest.mark.parametrize("wrong", [{"name": 1}, {"major": -1}, {"memory_bytes": "80"}, {"major": True}])
def test_malformed_description_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument) as caught:
        of_message({**H100.message(), **wrong})
    assert caught.value.reason == "FIELD_MALFORMED"


def test_incomplete_description_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="incomplete"):
        of_message({"name": "half"})


def test_what_nobody_described_is_no_virtual_gpu_by_name() -> None:
    assert described("cuda", 1 << 30, H100) == H100
    assert described("cuda", 1 << 30, None).name != VIRTUAL.name
    assert described("emulated", 1 << 30, H100).name == VIRTUAL.name
    assert described("emulated", 1 << 30, None).memory_bytes == 1 << 30


def test_probe_asks_the_driver(tmp_path: Path) -> None:
    source, library = tmp_path / "driver.c", tmp_path / "libcuda.so.1"
    source.write_text(DRIVER)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    found = probe.gpus(str(library))
    assert len(found) == 2
    assert {**found[0], "driver_version": "570.1"} == H100.message()


def test_probe_without_a_driver_says_so_and_needs_nothing_but_python() -> None:
    told = subprocess.run(
        [sys.executable, "-I", "-S", probe.__file__],
        env={"LD_LIBRARY_PATH": "/nonexistent"}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    if told.returncode == 0:
        pytest.skip("this machine has an NVIDIA driver")
    assert told.stdout == "" and told.stderr.startswith("OSError: libcuda.so.1")


def test_version_of_the_driver_is_empty_without_its_file(tmp_path: Path) -> None:
    assert probe.driver_version(str(tmp_path / "none")) == ""
    (tmp_path / "version").write_text("570.86.15\n")
    assert probe.driver_version(str(tmp_path / "version")) == "570.86.15"
