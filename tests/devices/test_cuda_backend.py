"""The seam over real CUDA, as far as a machine without a GPU shows it; the rest needs `-m gpu`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest
import torch

from looseleaf import devices
from looseleaf.devices.backend import DeviceState
from looseleaf.devices.cuda_backend import CudaBackend


def test_host_storages_are_seen_and_kept() -> None:
    backend = CudaBackend()
    storage = torch.arange(4, dtype=torch.uint8).untyped_storage()
    assert backend.device_of(storage) == "cpu"
    assert bytes(backend.host_view(storage)) == bytes(range(4))
    assert backend.to_device(storage, "cpu") is storage


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without an NVIDIA GPU")
def test_backend_before_attach_opens_no_context_and_keeps_state() -> None:
    backend = CudaBackend()
    assert isinstance(backend, devices.DeviceBackend)
    assert backend.touched() is None
    backend.reset_touch()
    assert backend.resident_bytes() == {}
    state = DeviceState(1, (bytes(16),))
    backend.apply_device_state(state)
    assert backend.device_state() == state
    assert not torch.cuda.is_initialized()


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without an NVIDIA GPU")
def test_gpus_attached_before_torch_get_the_sessions_state_when_cuda_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    queued: list[tuple[Callable[[], None], object]] = []
    set_states: list[tuple[int, bytes]] = []
    current: list[int] = []

    def generator(index: int) -> SimpleNamespace:
        return SimpleNamespace(set_state=lambda state: set_states.append((index, bytes(state.tolist()))))

    monkeypatch.setattr(torch.cuda, "_queued_calls", queued)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator(0), generator(1)))
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    backend = CudaBackend()
    states = tuple(bytes([number] * 16) for number in range(3))
    backend.apply_device_state(DeviceState(1, states))
    backend.attach_at_first_use(2)
    assert (set_states, current) == ([], []) and not torch.cuda.is_initialized()
    for call, _stack in queued:
        call()
    assert set_states == [(0, states[0]), (1, states[1])] and current == [1]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU, or a torch without CUDA")
def test_bytes_travel_to_the_device_and_back() -> None:
    devices.install("worker", "cuda", 1)
    try:
        devices.attach([0])
        backend = devices.backend()
        assert devices.touched() is None
        moved = backend.to_device(torch.arange(8, dtype=torch.uint8).untyped_storage(), "cuda:0")
        assert backend.device_of(moved) == "cuda:0"
        assert bytes(backend.host_view(moved)) == bytes(range(8))
        assert devices.touched() is not None
        assert devices.resident_bytes()["cuda:0"] >= 8
        torch.cuda.manual_seed_all(5)
        state = devices.device_state()
        drawn = torch.rand(3, device="cuda")
        devices.apply_device_state(state)
        assert torch.equal(torch.rand(3, device="cuda"), drawn)
    finally:
        devices.uninstall()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU, or a torch without CUDA")
def test_gpu_that_was_attached_before_torch_was_imported_is_opened_with_the_sessions_generators() -> None:
    code = """
import sys
from looseleaf import devices
from looseleaf.devices.backend import DeviceState
devices.install("worker", "cuda", 1)
state = (5).to_bytes(8, "little") + bytes(8)
devices.apply_device_state(DeviceState(0, (state,)))
devices.attach([0])
assert "torch" not in sys.modules
import torch
assert not torch.cuda.is_initialized() and devices.touched() is None
drawn = torch.rand(3, device="cuda")
assert devices.touched() is not None
torch.cuda.manual_seed(5)
assert torch.equal(drawn, torch.rand(3, device="cuda")), "as the session's generator draws"
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
