"""Every operator of torch that has samples, and every other overridable function that plain arguments can call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SWEEP = Path(__file__).with_name("op_sweep.py")
# What CUDA takes beside a host tensor with dimensions: they read its shape only, copy it, or want it on the host.
MIXED_ALLOWED = {
    "broadcast_tensors", "expand_as", "nn.functional.ctc_loss", "reshape_as", "resize_as_", "tensor_split", "view_as",
}
# Refused by name on virtual devices: compiled for CUDA, or without a kernel for CPUs.
REFUSED = {
    "__dlpack__", "__dlpack_device__", "jiterator_2inputs_2outputs", "jiterator_4inputs_with_extra_args",
    "jiterator_binary", "jiterator_binary_return_by_ref", "jiterator_unary",
    "torch.ops.aten._efficient_attention_forward", "torch.ops.aten._flash_attention_forward",
}


@pytest.mark.slow
@pytest.mark.timeout(240)  # ten seconds of work, on machines that do much else
def test_operators_put_results_on_the_device_and_refuse_mixed_ones(device_kind: str) -> None:
    pytest.importorskip("expecttest", reason="torch's own samples of its operators need it")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(SWEEP), device_kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=220, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["failures"] == []
    assert found["disturbing"] == [], "what a device draws leaves the host's stream of random numbers alone"
    # Virtual devices replace it by a function of their own.
    assert found["untold"] == ["set_"]
    assert set(found["mixed_allowed"]) <= MIXED_ALLOWED
    assert set(found["refused"]) <= (REFUSED if device_kind == "emulated" else set())
    counts = found["counts"]
    print(f"\n{device_kind}: {found['functions']} of {found['overridable']} overridable functions; {counts}")
    # Far below what the sweep reaches, so that another version of torch passes, and an empty sweep does not.
    assert counts["operators"] > 500
    assert counts["samples"] > 900
    assert counts["mixes refused"] > 250
    assert found["functions"] > 0.7 * found["overridable"]
