"""More than one device: copies between them, contexts, replicas; alike on virtual and on real GPUs."""

from __future__ import annotations

import io
import threading

import pytest
import torch
from torch import nn
from torch.nn.parallel import comm

pytestmark = pytest.mark.usefixtures("two_devices")

ZERO, ONE = torch.device("cuda", 0), torch.device("cuda", 1)


def test_copies_between_devices_have_memory_of_their_own() -> None:
    first = torch.arange(3.0, device=ZERO)
    made = [first.to(ONE), first.to(1), first.cuda(1), first.to("cuda:1", non_blocking=True), first.to(device=1)]
    for second in made:
        assert second.device == ONE
        second += 1
    assert first.tolist() == [0, 1, 2]
    target = torch.empty(3, device=ONE)
    target.copy_(first, non_blocking=True)
    assert target.to(ZERO).tolist() == first.tolist()
    target[0] = first[2]
    assert target.tolist() == [2, 1, 2]
    assert first.to(target).device == first.type_as(target).device == ONE
    assert isinstance(torch.cuda.can_device_access_peer(0, 1), bool)


def test_devices_do_not_mix_but_gradients_flow_between_them() -> None:
    first, second = torch.ones(2, device=ZERO, requires_grad=True), torch.ones(2, device=ONE)
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1!"):
        first + second
    with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cuda:1!"):
        first * second[0]
    with pytest.raises(RuntimeError, match=r"same device as the indexed tensor \(cuda:0\)"):
        first[torch.tensor([0], device=ONE)]
    (first.to(ONE) * second).sum().backward()
    assert first.grad.device == ZERO
    assert first.grad.tolist() == [1, 1]


def test_current_device_is_where_new_tensors_go() -> None:
    with torch.cuda.device(1):
        assert torch.cuda.current_device() == 1
        made = [torch.ones(1, device="cuda"), torch.ones(1).cuda(), torch.ones(1).to("cuda")]
        made.append(torch.ones(1, device=ZERO).cuda())
        assert [str(one.device) for one in made] == ["cuda:1"] * 4
        assert torch.cuda.current_stream().device == ONE
        with torch.cuda.device("cuda:0"):
            assert torch.cuda.current_device() == 0
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_device() == 0
    with torch.cuda.device_of(torch.ones(1, device=ONE)), torch.accelerator.device_index(0):
        assert torch.cuda.current_device() == 0
    torch.cuda.set_device(1)
    assert torch.zeros(1, device="cuda").device == ONE
    found = []
    thread = threading.Thread(target=lambda: found.append(torch.cuda.current_device()))
    thread.start()
    thread.join(30)
    assert found == [0]
    torch.cuda.set_device(0)
    torch.set_default_device("cuda:1")
    try:
        assert torch.rand(2).device == nn.Linear(2, 2).weight.device == torch.randperm(3).device == ONE
    finally:
        torch.set_default_device(None)


def test_stream_of_another_device_makes_it_current() -> None:
    stream = torch.cuda.Stream(device=1)
    assert stream.device == ONE
    with torch.cuda.stream(stream):
        assert torch.cuda.current_device() == 1
        assert torch.ones(1, device="cuda").device == ONE
    assert torch.cuda.current_device() == 0


def test_generators_are_each_device_s_own() -> None:
    torch.cuda.manual_seed_all(3)
    state = torch.cuda.get_rng_state(0)
    drawn = torch.rand(3, device=ONE)
    assert torch.equal(torch.cuda.get_rng_state(0), state)
    assert torch.equal(torch.rand(3, device=ZERO).cpu(), drawn.cpu())
    torch.cuda.manual_seed(9)
    assert not torch.equal(torch.cuda.get_rng_state(1), torch.cuda.get_rng_state(0))
    generator = torch.Generator("cuda:1").manual_seed(3)
    assert generator.device == ONE
    assert torch.equal(torch.rand(3, device=ONE, generator=generator), drawn)


def test_memory_is_counted_on_each_device() -> None:
    before = [torch.cuda.memory_allocated(index) for index in (0, 1)]
    kept = torch.zeros(1 << 20, device=ONE)
    assert [torch.cuda.memory_allocated(index) - was for index, was in enumerate(before)] == [0, 4 << 20]
    moved = kept.to(ZERO)
    assert [torch.cuda.memory_allocated(index) - was for index, was in enumerate(before)] == [4 << 20] * 2
    assert moved.device == ZERO


def test_files_load_on_another_device() -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.ones(2, device=ONE), "b": torch.ones(2)}, buffer)

    def loaded(**kwargs: object) -> list[str]:
        buffer.seek(0)
        return [str(value.device) for value in torch.load(buffer, **kwargs).values()]

    assert loaded() == ["cuda:1", "cpu"]
    assert loaded(map_location={"cuda:1": "cuda:0"}) == ["cuda:0", "cpu"]
    assert loaded(map_location="cuda:1") == ["cuda:1", "cuda:1"]
    assert loaded(map_location=lambda storage, place: storage.cuda(0)) == ["cuda:0", "cuda:0"]
    assert loaded(map_location=lambda storage, place: None) == ["cuda:1", "cpu"]
    with torch.cuda.device(1):
        assert loaded(map_location="cuda")[0] in ("cuda:0", "cuda:1")


def test_model_split_over_devices_trains() -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(4, 4).to(ZERO), nn.Linear(4, 1).to(ONE)
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = second(first(torch.ones(2, 4, device=ZERO)).relu().to(ONE)).square().mean()
        loss.backward()
        norm = nn.utils.clip_grad_norm_([*first.parameters(), *second.parameters()], 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert (first.weight.grad.device, second.weight.grad.device) == (ZERO, ONE)
    assert norm.item() >= 0


def test_broadcast_scatter_and_gather_between_devices() -> None:
    x = torch.arange(4.0, device=ZERO)
    assert [str(one.device) for one in comm.broadcast(x, [0, 1])] == ["cuda:0", "cuda:1"]
    parts = comm.scatter(x, [0, 1])
    assert [part.tolist() for part in parts] == [[0, 1], [2, 3]]
    assert [part.device for part in parts] == [ZERO, ONE]
    assert comm.gather(parts, destination=1).device == ONE
    assert comm.gather(parts, destination="cpu").tolist() == [0, 1, 2, 3]
    assert comm.reduce_add([x, x.to(ONE)]).tolist() == [0, 2, 4, 6]
    assert [part.device for part in nn.parallel.scatter(x, [0, 1])] == [ZERO, ONE]


def test_data_parallel_runs_replicas_on_every_device() -> None:
    seen = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 3)

        def forward(self, x):
            seen.append((x.device, tuple(x.shape)))
            return self.layer(x)

    model = nn.DataParallel(Net(), device_ids=[0, 1]).cuda()
    out = model(torch.ones(4, 2, device=ZERO))
    assert out.device == ZERO
    assert sorted(seen, key=str) == [(ZERO, (2, 2)), (ONE, (2, 2))]
    out.sum().backward()
    assert model.module.layer.weight.grad.device == ZERO
    assert model.module.layer.bias.grad.tolist() == [4, 4, 4]
    with pytest.raises(RuntimeError, match="module must have its parameters and buffers on device cuda:0"):
        nn.DataParallel(Net().to(ONE), device_ids=[0, 1])(torch.ones(4, 2))
