"""Streams, events, threads and loaders, alike on virtual and on real GPUs."""

from __future__ import annotations

import _thread
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, default_collate, default_convert

pytestmark = pytest.mark.usefixtures("device_kind")

CUDA = torch.device("cuda", 0)


def test_streams_are_current_inside_their_block() -> None:
    stream, other = torch.cuda.Stream(), torch.cuda.Stream(device="cuda:0", priority=-1)
    default = torch.cuda.current_stream()
    assert default == torch.cuda.default_stream()
    assert default.cuda_stream == 0
    assert stream != other
    assert stream.device == CUDA
    with torch.cuda.stream(stream):
        with torch.cuda.stream(other):
            assert torch.cuda.current_stream() == other
        assert torch.cuda.current_stream() == stream
        value = torch.ones(3, device="cuda") * 2
    with torch.cuda.stream(None):
        assert torch.cuda.current_stream() == default
    torch.cuda.current_stream().wait_stream(stream)
    value.record_stream(torch.cuda.current_stream())
    assert value.tolist() == [2, 2, 2]
    stream.synchronize()
    assert stream.query()
    for one in (stream, default):
        assert isinstance(one, torch.cuda.Stream)
        assert isinstance(one, torch.Stream)
    assert len({stream, other, default, torch.cuda.default_stream()}) == 3


def test_stream_is_of_its_thread() -> None:
    found = []
    with torch.cuda.stream(torch.cuda.Stream()):
        thread = threading.Thread(target=lambda: found.append(torch.cuda.current_stream().cuda_stream))
        thread.start()
        thread.join(30)
    assert found == [0]


def test_set_stream_stays_until_it_is_set_again() -> None:
    stream, default = torch.cuda.Stream(), torch.cuda.default_stream()
    torch.cuda.set_stream(stream)
    try:
        assert torch.cuda.current_stream("cuda:0") == stream
    finally:
        torch.cuda.set_stream(default)
    assert torch.cuda.current_stream() == default


def test_events_order_streams_and_tell_time() -> None:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    stream = torch.cuda.Stream()
    start.record()
    with torch.cuda.stream(stream):
        torch.ones(100, 100, device="cuda") @ torch.ones(100, 100, device="cuda")
        end.record(stream)
    done = stream.record_event()
    torch.cuda.current_stream().wait_event(done)
    done.wait()
    done.synchronize()
    end.synchronize()
    torch.cuda.synchronize()
    torch.cuda.synchronize(CUDA)
    assert end.query()
    assert done.query()
    assert start.elapsed_time(end) >= 0
    assert isinstance(done, torch.cuda.Event)
    assert isinstance(done, torch.Event)


def test_event_that_keeps_no_time_tells_none() -> None:
    plain, timed, unrecorded = torch.cuda.Event(), torch.cuda.Event(True), torch.cuda.Event(enable_timing=True)
    plain.record()
    timed.record()
    torch.cuda.synchronize()
    assert unrecorded.query()
    with pytest.raises((ValueError, RuntimeError)):
        plain.elapsed_time(timed)
    with pytest.raises((ValueError, RuntimeError)):
        timed.elapsed_time(unrecorded)


def test_generic_streams_and_events_are_of_the_accelerator() -> None:
    stream, event = torch.Stream(device="cuda"), torch.Event(device="cuda", enable_timing=True)
    assert stream.device == CUDA
    event.record()
    torch.accelerator.synchronize()
    assert torch.accelerator.current_stream().device == CUDA
    assert torch.accelerator.current_accelerator().type == "cuda"
    assert torch.accelerator.current_device_index() == 0
    with torch.accelerator.device_index(0):
        assert torch.cuda.current_device() == 0


def test_every_kind_of_thread_sees_the_device() -> None:
    x, found, done = torch.ones(2, device="cuda"), [], threading.Event()

    def look() -> None:
        found.append((x.device, (x + 1).device, torch.zeros(1, device="cuda").is_cuda, torch.cuda.current_device()))

    def nested() -> None:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join(30)

    def raw() -> None:
        look()
        done.set()

    nested()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(nested).result(30)
        pool.submit(look).result(30)
        assert list(pool.map(lambda size: torch.rand(size, device="cuda").sum().device, [1, 2, 3])) == [CUDA] * 3
    _thread.start_new_thread(raw, ())
    assert done.wait(30)
    timer = threading.Timer(0, look)
    timer.start()
    timer.join(30)
    assert found == [(CUDA, CUDA, True, 0)] * 5


def test_threads_train_one_model_each() -> None:
    def train(seed: int) -> float:
        model = nn.Linear(2, 1).cuda()
        nn.init.constant_(model.weight, float(seed))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 2, device="cuda")).square().mean().backward()
            optimizer.step()
        assert model.weight.grad.device == CUDA
        return model(torch.ones(1, 2, device="cuda")).square().item()

    with ThreadPoolExecutor(3) as pool:
        assert all(loss < 200 for loss in pool.map(train, range(1, 4)))


class _Rows(IterableDataset):
    def __iter__(self):
        yield from ({"values": torch.full((2,), float(row)), "row": row} for row in range(6))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin", [False, True])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_loader_of_dictionaries_feeds_the_device(workers: int, pin: bool) -> None:
    seen = []
    for batch in DataLoader(_Rows(), batch_size=3, num_workers=workers, pin_memory=pin):
        assert batch["values"].device.type == "cpu"
        assert batch["values"].is_pinned() == pin
        moved = batch["values"].to("cuda", non_blocking=True)
        assert moved.device == CUDA
        assert not moved.is_pinned()
        seen += moved[:, 0].tolist()
    assert sorted(set(seen)) == [0, 1, 2, 3, 4, 5]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_loader_with_kept_workers_and_a_collate_that_moves() -> None:
    data = TensorDataset(torch.arange(6.0))
    loader = DataLoader(data, 2, num_workers=1, persistent_workers=True)
    assert [batch[0].cuda().sum().item() for _ in range(2) for batch in loader] == [1, 5, 9] * 2
    loader._iterator._shutdown_workers()
    moving = DataLoader(data, 2, collate_fn=lambda rows: default_collate(rows)[0].to("cuda"))
    assert [batch.device for batch in moving] == [CUDA] * 3


def test_collating_device_tensors_keeps_them_there() -> None:
    x = torch.ones(2, device="cuda")
    assert default_collate([x, x]).device == CUDA
    assert default_collate([{"a": x, "b": 1}, {"a": x, "b": 2}])["a"].shape == (2, 2)
    assert default_convert({"a": x})["a"] is x


def test_copies_that_do_not_block_arrive() -> None:
    pinned = torch.arange(1000.0).pin_memory()
    device = pinned.to("cuda", non_blocking=True)
    back = torch.empty(1000, pin_memory=True)
    back.copy_(device, non_blocking=True)
    torch.cuda.synchronize()
    assert torch.equal(back, pinned)
    assert pinned.cuda(non_blocking=True).device == CUDA
    assert nn.Linear(2, 2).to("cuda", non_blocking=True).weight.device == CUDA
