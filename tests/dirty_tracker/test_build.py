"""What the build says of itself."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

import looseleaf
from looseleaf.dirty_tracker import _core, build, build_info

CORE_WITH_CUDA = SimpleNamespace(BUILT_WITH_CUDA=True, simd_level=str, populate_read_available=bool)


def test_build_info_has_one_plain_answer_a_question() -> None:
    info = build_info()
    assert info["version"] == looseleaf.__version__
    assert info["built_with_cuda"] is _core.BUILT_WITH_CUDA
    assert info["simd"] in {"avx512", "avx2", "sse2", "neon", "sve", "scalar"}
    assert info["written_pages"] in {"scan", "read"} or info["written_pages"].startswith("not found (")
    assert isinstance(info["populate_read"], bool)
    assert info["cuda"].startswith("loaded, " if info["built_with_cuda"] else "not built")


def test_build_info_cuda_part_that_does_not_load_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> None:
        raise ImportError(f"{name}: libfoo.so.1 is missing")

    monkeypatch.setattr(build, "_core", CORE_WITH_CUDA)
    monkeypatch.setattr(build.importlib, "import_module", refuse)
    info = build_info()
    assert info["cuda"].startswith("failed to load (")
    assert "libfoo.so.1 is missing" in info["cuda"]
    assert info["cuda_device_count"] == 0


@pytest.mark.parametrize(
    ("state", "text"), [((2, ""), "loaded, 2 devices"), ((0, "no driver"), "loaded, 0 devices (no driver)")]
)
def test_build_info_cuda_part_that_loads_counts_devices(
    monkeypatch: pytest.MonkeyPatch, state: tuple[int, str], text: str
) -> None:
    monkeypatch.setattr(build, "_core", CORE_WITH_CUDA)
    monkeypatch.setattr(build.importlib, "import_module", lambda name: SimpleNamespace(device_state=lambda: state))
    assert (build_info()["cuda"], build_info()["cuda_device_count"]) == (text, state[0])


def test_build_info_without_page_tables_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "pagemap_support", lambda: (None, "open failed"))
    assert build_info()["written_pages"] == "not found (open failed)"


def test_dirty_tracker_import_brings_in_neither_numpy_nor_grpc() -> None:
    unwanted = {"numpy", "torch", "grpc", "google"}
    code = f"import sys, looseleaf.dirty_tracker as d; d.build_info(); print(sorted({unwanted} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
