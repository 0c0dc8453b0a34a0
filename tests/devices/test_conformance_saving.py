"""Copies, pickles and files of device tensors, alike on virtual and on real GPUs."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("device_kind")

CUDA = torch.device("cuda", 0)


def _through_file(value: object, **kwargs: object) -> object:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, **kwargs)


def test_deepcopy_stays_on_the_device_with_memory_of_its_own() -> None:
    tensor = torch.ones(3, device="cuda")
    twice = copy.deepcopy([tensor, tensor[1:]])
    twice[0][1] = 5
    assert twice[0].device == twice[1].device == CUDA
    assert twice[1].tolist() == [5, 1]
    assert tensor.tolist() == [1, 1, 1]
    model = copy.deepcopy(nn.Linear(2, 2).cuda())
    assert model.weight.device == CUDA


@pytest.mark.parametrize("protocol", [2, 5])
def test_pickled_tensor_comes_back_to_the_device(protocol: int) -> None:
    loaded = pickle.loads(pickle.dumps(torch.arange(3.0, device="cuda"), protocol))
    assert loaded.device == CUDA
    assert loaded.tolist() == [0, 1, 2]


def test_saved_tensor_loads_where_it_was_or_where_it_is_mapped() -> None:
    tensor = torch.arange(4.0, device="cuda")
    base, view = _through_file([tensor, tensor[2:]])
    assert base.device == view.device == CUDA
    base[2] = 9
    assert view.tolist() == [9, 3]
    for location in ("cpu", torch.device("cpu"), {"cuda:0": "cpu"}, lambda storage, place: storage):
        assert _through_file(tensor, map_location=location).device.type == "cpu"
    for location in ("cuda", "cuda:0", CUDA):
        assert _through_file(torch.ones(2), map_location=location).device == CUDA
    assert _through_file(torch.ones(2)).device.type == "cpu"
    with pytest.raises(RuntimeError, match="Attempting to deserialize object on CUDA device 63"):
        _through_file(tensor, map_location="cuda:63")


def test_training_checkpoint_resumes_on_the_device() -> None:
    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
        loss = model(torch.ones(2, 3, device="cuda")).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()

    torch.manual_seed(0)
    model = nn.Linear(3, 2).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    saved = _through_file({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
    expected = [step(model, optimizer) for _ in range(3)]
    again = nn.Linear(3, 2).cuda()
    resumed = torch.optim.Adam(again.parameters())
    again.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["optimizer"])
    assert resumed.state[again.weight]["exp_avg"].device == CUDA
    assert [step(again, resumed) for _ in range(3)] == expected


def test_whole_module_saved_loads_on_the_device() -> None:
    model = _through_file(nn.Linear(2, 2).cuda(), weights_only=False)
    assert model.weight.device == CUDA
    assert model(torch.ones(1, 2, device="cuda")).device == CUDA
