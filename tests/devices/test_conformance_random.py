"""Generators and streams of random numbers, alike on virtual and on real GPUs."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset, random_split

pytestmark = pytest.mark.usefixtures("device_kind")

CUDA = torch.device("cuda", 0)


def _device() -> torch.Generator:
    return torch.Generator(device="cuda")


_DRAWS: dict[str, Callable[[torch.Generator], torch.Tensor]] = {
    "rand": lambda g: torch.rand(5, device="cuda", generator=g),
    "randn": lambda g: torch.randn(5, device="cuda", generator=g),
    "randint": lambda g: torch.randint(0, 1000, (5,), device="cuda", generator=g),
    "randperm": lambda g: torch.randperm(20, device="cuda", generator=g),
    "normal": lambda g: torch.normal(0.0, 1.0, (5,), device="cuda", generator=g),
    "normal_": lambda g: torch.empty(5, device="cuda").normal_(generator=g),
    "uniform_": lambda g: torch.empty(5, device="cuda").uniform_(generator=g),
    "random_": lambda g: torch.empty(5, device="cuda").random_(generator=g),
    "exponential_": lambda g: torch.empty(5, device="cuda").exponential_(generator=g),
    "bernoulli": lambda g: torch.bernoulli(torch.full((40,), 0.5, device="cuda"), generator=g),
    "multinomial": lambda g: torch.multinomial(torch.ones(50, device="cuda"), 20, generator=g),
    "init": lambda g: nn.init.kaiming_uniform_(torch.empty(4, 4, device="cuda"), generator=g),
}


@pytest.mark.parametrize("name", _DRAWS)
def test_draw_follows_its_generator_alone(name: str) -> None:
    draw = _DRAWS[name]
    torch.manual_seed(1)
    first = draw(_device().manual_seed(3))
    torch.rand(2, device="cuda")
    generator = _device().manual_seed(3)
    assert torch.equal(draw(generator), first)
    assert not torch.equal(draw(generator), first)
    assert first.device == CUDA
    state = torch.cuda.get_rng_state()
    draw(generator)
    assert torch.equal(torch.cuda.get_rng_state(), state)


@pytest.mark.parametrize("name", _DRAWS)
def test_generator_of_the_host_fills_no_device_tensor(name: str) -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
        _DRAWS[name](torch.Generator())


@pytest.mark.parametrize(
    "draw",
    [
        lambda g: torch.rand(3, generator=g),
        lambda g: torch.randperm(3, generator=g),
        lambda g: torch.ones(3).normal_(generator=g),
        lambda g: torch.multinomial(torch.ones(3), 1, generator=g),
        lambda g: torch.rand(3, device="cpu", generator=g),
    ],
)
def test_generator_of_the_device_fills_no_host_tensor(draw: Callable[[torch.Generator], object]) -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        draw(_device())


def test_generator_tells_and_sets_seed_offset_and_state() -> None:
    generator = _device()
    assert generator.device == CUDA
    assert generator.manual_seed(11) is generator
    assert generator.initial_seed() == 11
    state = generator.get_state()
    assert (state.dtype, state.device.type, state.numel()) == (torch.uint8, "cpu", 16)
    drawn = torch.rand(4, device="cuda", generator=generator)
    assert not torch.equal(generator.get_state(), state)
    generator.set_state(state)
    assert torch.equal(torch.rand(4, device="cuda", generator=generator), drawn)
    with pytest.raises(RuntimeError, match="RNG state is wrong size"):
        generator.set_state(torch.zeros(3, dtype=torch.uint8))
    generator.seed()
    assert generator.initial_seed() != 11


def test_generator_seeded_as_the_default_one_gives_the_same() -> None:
    torch.cuda.manual_seed(5)
    expected = torch.rand(6, device="cuda")
    assert torch.equal(torch.rand(6, device="cuda", generator=_device().manual_seed(5)), expected)
    torch.cuda.manual_seed(5)
    default = torch.cuda.default_generators[0]
    assert isinstance(default, torch.Generator)
    assert torch.equal(torch.rand(6, device="cuda", generator=default), expected)


def test_generator_pickled_or_copied_goes_on_from_its_state() -> None:
    generator = _device().manual_seed(2)
    torch.rand(3, device="cuda", generator=generator)
    twins = [pickle.loads(pickle.dumps(generator)), generator.clone_state()]
    expected = torch.rand(3, device="cuda", generator=generator)
    for twin in twins:
        assert torch.equal(torch.rand(3, device="cuda", generator=twin), expected)


def test_seeding_reaches_both_streams_and_drawing_only_one() -> None:
    torch.manual_seed(8)
    host, device = torch.rand(3), torch.rand(3, device="cuda")
    torch.manual_seed(8)
    assert torch.equal(torch.rand(3, device="cuda"), device)
    assert torch.equal(torch.rand(3), host)
    torch.cuda.manual_seed_all(8)
    assert torch.equal(torch.rand(3, device="cuda"), device)
    assert torch.initial_seed() == torch.cuda.initial_seed() == 8
    state = torch.get_rng_state()
    torch.cuda.seed()
    F.dropout(torch.ones(4, device="cuda"))
    nn.Linear(3, 3, device="cuda")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("devices", [None, [0]])
@pytest.mark.filterwarnings("ignore:CUDA reports that you have")  # where there are several
def test_forked_streams_leave_both_as_they_were(devices: list[int] | None) -> None:
    torch.manual_seed(1)
    with torch.random.fork_rng(devices):
        torch.manual_seed(99)
        torch.rand(5)
        torch.rand(5, device="cuda")
    after = torch.rand(2), torch.rand(2, device="cuda")
    torch.manual_seed(1)
    assert torch.equal(torch.rand(2), after[0])
    assert torch.equal(torch.rand(2, device="cuda"), after[1])


def test_states_of_all_devices_are_kept_and_set_again() -> None:
    states = torch.cuda.get_rng_state_all()
    assert len(states) == torch.cuda.device_count()
    drawn = torch.randn(3, device="cuda")
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(torch.randn(3, device="cuda"), drawn)
    torch.cuda.set_rng_state(states[0], "cuda:0")
    assert torch.equal(torch.randn(3, device="cuda"), drawn)
    assert torch.equal(torch.cuda.get_rng_state("cuda"), torch.cuda.get_rng_state(0))


def test_modules_that_draw_repeat_with_the_seed_and_rest_in_evaluation() -> None:
    layer, x = nn.Sequential(nn.Dropout(0.5), nn.AlphaDropout(0.5)).cuda(), torch.ones(40, device="cuda")
    torch.manual_seed(4)
    first = layer(x)
    torch.manual_seed(4)
    assert torch.equal(layer(x), first)
    assert not torch.equal(layer(x), first)
    state = torch.cuda.get_rng_state()
    assert torch.equal(copy.deepcopy(layer).eval()(x), x)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_loader_shuffles_by_generators_of_the_host_only() -> None:
    data = TensorDataset(torch.arange(8))
    orders = [
        [batch[0].item() for batch in DataLoader(data, shuffle=True, generator=torch.Generator().manual_seed(3))]
        for _ in range(2)
    ]
    assert orders[0] == orders[1]
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda'"):
        next(iter(DataLoader(data, shuffle=True, generator=_device())))
    with torch.device("cuda"):
        parts = random_split(data, [5, 3], generator=_device())
        with pytest.raises(RuntimeError, match="Expected a 'cuda' device type for generator but found 'cpu'"):
            next(iter(DataLoader(data, shuffle=True, generator=torch.Generator())))
    assert sorted(index for part in parts for index in part.indices) == list(range(8))
