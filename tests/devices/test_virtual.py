"""The virtual GPUs' own state, without torch."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.devices import virtual
from looseleaf.devices.backend import DeviceState, device_index
from looseleaf.devices.virtual import Ledger, VirtualGenerator, VirtualGpus
from looseleaf.errors import InvalidArgument


@given(st.lists(st.integers(0, 10_000)), st.randoms())
def test_ledger_counts_back_to_zero_in_any_order_of_frees(sizes: list[int], random) -> None:
    ledger = Ledger(1 << 40)
    charged = [ledger.add(size) for size in sizes]
    assert ledger.live_bytes() == sum(charged)
    assert all(one >= size and one % 512 == 0 for one, size in zip(charged, sizes, strict=True))
    random.shuffle(charged)
    for one in charged:
        ledger.free(one)
    assert ledger.live_bytes() == 0
    assert ledger.peak_bytes == sum(charged)
    assert ledger.reserved_bytes() >= ledger.peak_bytes


def test_ledger_refuses_what_does_not_fit_and_counts_nothing_for_it() -> None:
    ledger = Ledger(1024)
    assert ledger.add(1025) is None
    assert ledger.live_bytes() == 0
    assert ledger.add(600) == 1024
    assert ledger.add(1) is None
    assert ledger.live_bytes() == ledger.peak_bytes == 1024


def test_generator_repeats_from_its_state_and_never_within() -> None:
    generator = VirtualGenerator(7)
    seeds = [generator.next_seed() for _ in range(1000)]
    assert len(set(seeds)) == 1000
    state = generator.get()
    following = generator.next_seed()
    generator.set(state)
    assert generator.next_seed() == following
    generator.manual_seed(7)
    assert generator.next_seed() == seeds[0]
    with pytest.raises(ValueError, match="wrong size"):
        generator.set(b"x")


def test_negative_seed_wraps_as_torch_s_does() -> None:
    generator = VirtualGenerator()
    generator.manual_seed(-1)
    assert generator.seed == (1 << 64) - 1


def test_state_moves_between_processes_with_different_device_counts() -> None:
    many, one = VirtualGpus(3), VirtualGpus(1)
    many.current = 2
    many.generators[0].manual_seed(5)
    one.apply(many.state())
    assert one.current == 0
    assert one.generators[0].seed == 5
    many.apply(DeviceState())
    assert many.state().current_device == 0


def test_delays_are_taken_once_per_context_and_by_size(monkeypatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(virtual.time, "sleep", slept.append)
    gpus = VirtualGpus(1, delays=True)
    gpus.open_context()
    gpus.open_context()
    gpus.copied(1000)
    gpus.copied(20_000_000_000)
    assert slept == [0.3, 1.0]
    quick = VirtualGpus(1)
    quick.open_context()
    quick.copied(1 << 40)
    assert len(slept) == 2


def test_child_of_a_process_without_context_may_use_the_device() -> None:
    gpus = VirtualGpus(1)
    gpus.after_fork_in_child()
    gpus.touch()
    gpus.after_fork_in_child()
    with pytest.raises(RuntimeError, match="Cannot re-initialize CUDA"):
        gpus.touch()


def test_device_names_are_read_strictly() -> None:
    assert device_index("cpu") is None
    assert device_index("cuda") == 0
    assert device_index("cuda:12") == 12
    for wrong in ("", "cuda:", "cuda:x", "tpu:0", "cuda:-1", "CUDA"):
        with pytest.raises(InvalidArgument, match="DEVICE_UNKNOWN"):
            device_index(wrong)
