"""What is told of a GPU without memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from looseleaf import devices
from looseleaf.worker.gpu_memory_note import NAMES_SHOWN_MAX, is_out_of_memory, memory_note


@pytest.fixture
def virtual() -> Iterator[None]:
    devices.install("worker", "emulated", 1, memory_bytes=1 << 30, delays=False)
    devices.attach([0])
    yield
    devices.uninstall()


def test_only_torchs_own_error_counts() -> None:
    assert is_out_of_memory(torch.OutOfMemoryError("full"))
    assert not is_out_of_memory(MemoryError()) and not is_out_of_memory(RuntimeError("CUDA out of memory"))


@pytest.mark.usefixtures("virtual")
def test_note_names_the_largest_variables_on_the_gpu() -> None:
    namespace = {f"t{n}": torch.ones(n << 18, device="cuda") for n in range(1, 8)}
    net = torch.nn.Linear(1024, 4096).cuda()
    note = memory_note({**namespace, "net": net, "host": torch.ones(1 << 24), "_hidden": net, "text": "x"})
    assert "of 1.0 GiB of the GPU's memory" in note
    names = note.partition("largest variables there: ")[2].partition(".")[0]
    assert names.startswith("net 16") and "host" not in note and "_hidden" not in note
    assert note.count("MiB") <= NAMES_SHOWN_MAX + 1
    assert "none of it in tensors" in memory_note({})
