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


@pytest.mark.parametrize(
    "mapped", ["cpu", "cuda", "cuda:0", CUDA, {"cuda:0": "cpu"}, {"cuda:0": "cuda:0"}, None], ids=str
)
@pytest.mark.parametrize("older", [False, True])
def test_each_form_of_map_location_is_followed(mapped: object, older: bool) -> None:
    buffer = io.BytesIO()
    state = {"weight": torch.ones(2, device="cuda"), "shared": None, "step": 3}
    state["shared"] = state["weight"][1:]
    torch.save(state, buffer, _use_new_zipfile_serialization=not older)
    buffer.seek(0)
    loaded = torch.load(buffer, map_location=mapped)
    expected = "cpu" if mapped in ("cpu", {"cuda:0": "cpu"}) else "cuda:0"
    assert str(loaded["weight"].device) == str(loaded["shared"].device) == expected
    loaded["weight"][1] = 7
    assert loaded["shared"].tolist() == [7]
    assert loaded["step"] == 3


def test_map_location_functions_place_each_storage() -> None:
    pair = {"device": torch.ones(1, device="cuda"), "host": torch.ones(1)}
    asked = []

    def place(storage: torch.UntypedStorage, location: str) -> object:
        asked.append((location, storage.device.type))
        return storage.cuda() if location == "cpu" else None

    loaded = _through_file(pair, map_location=place)
    assert sorted(asked) == [("cpu", "cpu"), ("cuda:0", "cpu")]
    assert {name: value.device for name, value in loaded.items()} == {"device": CUDA, "host": CUDA}


@pytest.mark.parametrize("weights_only", [True, False])
def test_parameters_modules_and_devices_pass_through_files(weights_only: bool) -> None:
    model, sparse = nn.BatchNorm1d(2).cuda(), torch.eye(2, device="cuda").to_sparse()
    saved = {"state": model.state_dict(), "parameter": model.weight, "device": CUDA, "sparse": sparse}
    loaded = _through_file(saved, weights_only=weights_only)
    assert {value.device for value in loaded["state"].values()} == {CUDA}
    assert isinstance(loaded["parameter"], nn.Parameter)
    assert loaded["parameter"].device == loaded["sparse"].device == loaded["device"] == CUDA


def test_mapped_file_is_read_to_the_device_and_not_changed_from_there(tmp_path) -> None:
    torch.save({"weight": torch.ones(3)}, tmp_path / "state.pt")
    loaded = torch.load(tmp_path / "state.pt", mmap=True, map_location="cuda")["weight"]
    loaded += 1
    assert loaded.device == CUDA
    assert torch.load(tmp_path / "state.pt")["weight"].tolist() == [1, 1, 1]


def test_optimizer_state_from_the_device_loads_beside_host_parameters() -> None:
    on_device, on_host = nn.Linear(2, 2).cuda(), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(on_device.parameters(), 0.1, momentum=0.9)
    on_device(torch.ones(1, 2, device="cuda")).sum().backward()
    optimizer.step()
    other = torch.optim.SGD(on_host.parameters(), 0.1, momentum=0.9)
    other.load_state_dict(_through_file(optimizer.state_dict()))
    assert other.state[on_host.weight]["momentum_buffer"].device.type == "cpu"
    on_host.load_state_dict(_through_file(on_device.state_dict(), map_location="cpu"))
    assert torch.equal(on_host.weight, on_device.weight.cpu())


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
def test_copies_keep_gradients_sharing_and_device() -> None:
    leaf = torch.ones(2, device="cuda", requires_grad=True)
    (leaf * 3).sum().backward()
    twin = copy.deepcopy(leaf)
    assert twin.grad.tolist() == [3, 3]
    assert twin.device == twin.grad.device == CUDA
    assert copy.copy(leaf).data_ptr() == leaf.data_ptr()
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(leaf * 2)
    storage = leaf.untyped_storage()
    assert storage.clone().device == copy.deepcopy(storage).device == CUDA
    assert leaf.storage().is_cuda
    assert leaf.share_memory_() is leaf
    assert leaf.is_shared()
