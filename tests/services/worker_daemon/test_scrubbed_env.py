from __future__ import annotations

import pytest

from looseleaf.services.worker_daemon.scrubbed_env import with_gpus_shown


@pytest.mark.parametrize(
    ("device", "visible", "kept"), [("cuda", "", False), ("cuda", "1", True), ("emulated", "", True), ("", "", True)]
)
def test_zygotes_of_real_gpus_do_not_inherit_that_there_are_none(device: str, visible: str, kept: bool) -> None:
    found = with_gpus_shown({"LOOSELEAF_DEVICE": device, "CUDA_VISIBLE_DEVICES": visible, "HOME": "/"})
    assert ("CUDA_VISIBLE_DEVICES" in found) is kept and found["HOME"] == "/"
