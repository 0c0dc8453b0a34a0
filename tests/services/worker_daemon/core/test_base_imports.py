from __future__ import annotations

import pytest

from looseleaf.services.worker_daemon.core.base_imports import LAST_IMPORT, BaseImports

CONFIGURED = ("numpy", "torch", "torch.nn", "torchvision")


def test_import_that_makes_a_base_unfit_is_left_out_at_once_with_its_parts() -> None:
    base = BaseImports(CONFIGURED)
    assert base.blame("torch", "")
    assert base.left == ("numpy", "torchvision")


def test_import_at_which_starts_end_is_left_out_at_the_second_time_running() -> None:
    base = BaseImports(CONFIGURED)
    for name, left in (("torch", 4), ("numpy", 4), ("torch", 4), ("torch", 2), ("torchvision", 2)):
        assert base.blame("", name)
        assert len(base.left) == left
    base.served()
    assert base.blame("", "torchvision") and "torchvision" in base.left


@pytest.mark.parametrize("culprit", ["", "ipykernel.zmqshell"])
def test_start_that_failed_at_nothing_that_was_configured_is_no_better_the_next_time(culprit: str) -> None:
    base = BaseImports(CONFIGURED)
    assert not base.blame(culprit, "")
    assert base.left == CONFIGURED


def test_base_is_never_empty_unless_the_last_import_is_unfit_too() -> None:
    base = BaseImports(("grpc",))
    assert base.blame("grpc", "") and base.left == (LAST_IMPORT,)
    assert base.blame(LAST_IMPORT, "") and base.left == ()
    assert not base.blame(LAST_IMPORT, "")


def test_base_without_any_import_by_configuration_stays_so() -> None:
    base = BaseImports(())
    assert base.starts_max == 1 and not base.blame("numpy", "numpy") and base.left == ()


def test_starts_that_end_at_one_import_after_the_other_come_to_an_end() -> None:
    base = BaseImports(CONFIGURED)
    starts = 0
    while base.left and starts < 100:
        starts += 1
        base.blame("", base.left[-1])
    # Each of them twice, and what then is imported so that something is: nothing, for it was unfit before.
    assert starts == 2 * len(CONFIGURED) < BaseImports(CONFIGURED).starts_max
