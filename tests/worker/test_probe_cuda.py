"""What a probe says of packages that use a real driver when they are imported (import-cache study §3)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from probe_rig import run_probes

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGES = {
    "imports_torch": ("import torch", "clean"),
    "starts_cuda": ("import torch\ntorch.cuda.init()", "cuda"),
    # No context, and `torch.cuda.is_initialized()` says no; but no fork could use CUDA any more.
    "counts_devices": ("import torch\ntorch._C._cuda_getDeviceCount()\nassert not torch.cuda.is_initialized()", "cuda"),
    "calls_the_driver": ("import ctypes\nctypes.CDLL('libcuda.so.1').cuInit(0)", "cuda"),
}


def test_real_driver_shows_which_imports_spoil_forks(tmp_path: Path) -> None:
    if torch.version.cuda is None:
        pytest.skip("this torch was built without CUDA")
    for name, (source, _verdict) in PACKAGES.items():
        (tmp_path / f"{name}.py").write_text(source)
    (tmp_path / "packages-1.0.dist-info").mkdir()
    env = {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(REPOSITORY)]), "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
        "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    }  # fmt: skip
    outcomes = run_probes({name: [name] for name in PACKAGES}, env)
    found = {name: (outcome["verdict"], outcome["detail"]) for name, outcome in outcomes.items()}
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        name: verdict for name, (_, verdict) in PACKAGES.items()
    }, found
