"""Devices for these tests. `device_kind` runs a conformance test on virtual GPUs, and with `-m gpu` on real ones."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from looseleaf import devices


def _has_real_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def device_kind(request: pytest.FixtureRequest) -> Iterator[str]:
    """"emulated" or "cuda", with devices installed as in a worker."""
    kind: str = request.param
    if kind == "cuda" and not _has_real_gpu():
        pytest.skip("no NVIDIA GPU, or a torch without CUDA")
    devices.install("worker", kind, 1)  # type: ignore[arg-type]
    yield kind
    devices.uninstall()


@pytest.fixture(params=["emulated", pytest.param("cuda", marks=pytest.mark.gpu)])
def two_devices(request: pytest.FixtureRequest) -> Iterator[str]:
    """As `device_kind`, with two devices."""
    import torch

    kind: str = request.param
    if kind == "cuda" and torch.cuda.device_count() < 2:
        pytest.skip("fewer than two NVIDIA GPUs, or a torch without CUDA")
    devices.install("worker", kind, 2)  # type: ignore[arg-type]
    yield kind
    if kind == "cuda":
        torch.cuda.set_device(0)
    devices.uninstall()


@pytest.fixture
def virtual() -> Iterator[None]:
    """Two virtual GPUs of 1 GiB, as in a worker."""
    devices.install("worker", "emulated", 2, memory_bytes=1 << 30)
    yield
    devices.uninstall()


@pytest.fixture
def kernel() -> Iterator[None]:
    """A kernel whose pool has two virtual GPUs."""
    devices.install("kernel", "emulated", 2)
    yield
    devices.uninstall()
