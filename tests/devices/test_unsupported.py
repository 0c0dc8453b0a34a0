"""What virtual devices cannot do is refused by name. Only here: real GPUs can do all of it."""

# ruff: noqa: PLW0108 - the functions are patched after this module is imported
from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.utils.cpp_extension
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from looseleaf.devices import backend
from looseleaf.devices.refusals import REAL_GPU_PACKAGES
from looseleaf.devices.unsupported import placing
from looseleaf.errors import Unsupported

pytestmark = pytest.mark.usefixtures("virtual")

CUDA = torch.device("cuda", 0)


def _x() -> torch.Tensor:
    return torch.ones(2, 2, device="cuda")


@torch.library.custom_op("looseleaf_tests::only_cuda", mutates_args=(), device_types="cuda")
def _only_cuda(a: torch.Tensor) -> torch.Tensor:
    return a * 3


@torch.jit.script
def _names_device(a: torch.Tensor) -> torch.Tensor:
    return a.to("cuda")


_REFUSED: dict[str, Callable[[], object]] = {
    "CUDAGraph": lambda: torch.cuda.CUDAGraph(),
    "graph": lambda: torch.cuda.graph(None),
    "make_graphed_callables": lambda: torch.cuda.make_graphed_callables(nn.Linear(2, 2).cuda(), (_x(),)),
    "graph_pool_handle": lambda: torch.cuda.graph_pool_handle(),
    "cudart": lambda: torch.cuda.cudart(),
    "MemPool": lambda: torch.cuda.MemPool(),
    "CUDAPluggableAllocator": lambda: torch.cuda.memory.CUDAPluggableAllocator("a.so", "b", "c"),
    "change_current_allocator": lambda: torch.cuda.memory.change_current_allocator(None),
    "caching_allocator_alloc": lambda: torch.cuda.caching_allocator_alloc(8),
    "caching_allocator_delete": lambda: torch.cuda.caching_allocator_delete(8),
    "current_blas_handle": lambda: torch.cuda.current_blas_handle(),
    "_record_memory_history": lambda: torch.cuda.memory._record_memory_history(),
    "_snapshot": lambda: torch.cuda.memory._snapshot(),
    "jiterator": lambda: torch.cuda.jiterator._create_jit_fn("template <typename T> T f(T x) { return x; }"),
    "tunableop": lambda: torch.cuda.tunable.enable(),
    "_cuda_sleep": lambda: torch.cuda._sleep(10),
    "nccl": lambda: torch.distributed.init_process_group("nccl", init_method="tcp://127.0.0.1:1", rank=0, world_size=1),
    "nccl named by keyword": lambda: torch.distributed.init_process_group(backend="cpu:gloo,cuda:nccl"),
    "nccl.version": lambda: torch.cuda.nccl.version(),
    "__dlpack__": lambda: _x().__dlpack__(),
    "__dlpack_device__": lambda: _x().__dlpack_device__(),
    "to_dlpack": lambda: torch.utils.dlpack.to_dlpack(_x()),
    "_to_dlpack": lambda: torch._C._to_dlpack(_x()),
    "from_dlpack": lambda: torch.from_dlpack(_x()),
    "numpy.from_dlpack": lambda: np.from_dlpack(_x()),
    "__cuda_array_interface__": lambda: _x().__cuda_array_interface__,
    "reduce_tensor": lambda: torch.multiprocessing.reductions.reduce_tensor(_x()),
    "queue": lambda: torch.multiprocessing.get_context("fork").SimpleQueue().put(_x()),
    "export": lambda: torch.export.export(nn.Linear(2, 2).cuda(), (_x(),)),
    "fake copy": lambda: FakeTensorMode().from_tensor(_x()),
    "fake constructor": lambda: _in_fake_mode(lambda: torch.ones(2, device="cuda")),
    "fake move": lambda: _in_fake_mode(lambda: torch.ones(2).cuda()),
    "linearize": lambda: torch.func.linearize(torch.sin, _x()),
    "functionalize": lambda: torch.func.functionalize(torch.sin)(_x()),
    "make_fx": lambda: make_fx(torch.sin, tracing_mode="fake")(_x()),
    "operator for CUDA only": lambda: _only_cuda(_x()),
    "script that names a device": lambda: _names_device(torch.ones(1)),
    "load_inline": lambda: torch.utils.cpp_extension.load_inline("a", "int f();", "int f() { return 1; }"),
    "load of CUDA sources": lambda: torch.utils.cpp_extension.load("a", ["a.cpp", "a.cu"]),
}


def _in_fake_mode(call: Callable[[], object]) -> None:
    with FakeTensorMode():
        call()


@pytest.mark.parametrize("name", _REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_feature_of_real_gpus_is_refused_and_the_session_goes_on(name: str) -> None:
    with pytest.raises(Unsupported, match="VIRTUAL_GPU_UNSUPPORTED") as refused:
        _REFUSED[name]()
    assert "Nothing was changed" in str(refused.value)
    assert refused.value.fields["feature"]
    assert (_x() + 1).device == CUDA
    assert torch.ones(1).device.type == "cpu"


def test_refused_attributes_read_as_missing_where_they_are_probed() -> None:
    assert not hasattr(_x(), "__cuda_array_interface__")
    assert not hasattr(torch._C, "no_such_name")
    assert torch.as_tensor(_x()).device == CUDA


def test_export_of_host_modules_is_not_refused() -> None:
    program = torch.export.export(nn.Linear(2, 2), (torch.ones(1, 2),))
    assert program.module()(torch.ones(1, 2)).shape == (1, 2)
    assert np.from_dlpack(torch.ones(2)).tolist() == [1, 1]
    assert torch.from_dlpack(np.ones(2)).device.type == "cpu"


def test_results_of_extensions_live_where_their_arguments_do() -> None:
    # As C++ that no mode sees.
    def opaque(*tensors: torch.Tensor) -> list[torch.Tensor]:
        with torch._C.DisableTorchFunction():
            return [tensor * 2 for tensor in tensors]

    called = placing(backend().mode, opaque)  # type: ignore[attr-defined]
    assert [one.device for one in called(_x(), _x())] == [CUDA, CUDA]
    assert called(torch.ones(1))[0].device.type == "cpu"


@pytest.mark.parametrize("package", sorted(REAL_GPU_PACKAGES))
def test_packages_for_real_gpus_say_so_and_optional_imports_go_on(package: str, tmp_path, monkeypatch) -> None:
    (tmp_path / f"{package}.py").write_text("loaded = True")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, package, raising=False)
    with pytest.raises(Unsupported, match=f"{package} needs a real GPU"):
        __import__(package)
    with pytest.raises(ImportError):
        __import__(package)


@pytest.mark.slow
def test_gloo_groups_take_tensors_of_the_device(tmp_path) -> None:
    # A process of its own, because torch's groups leave threads behind.
    code = (
        "import sys, torch, torch.distributed as dist, looseleaf.devices as d\n"
        "d.install('worker', 'emulated', 1)\n"
        "dist.init_process_group('gloo', init_method=f'file://{sys.argv[1]}', rank=0, world_size=1)\n"
        "x = torch.ones(2, device='cuda'); parts = [torch.empty_like(x)]\n"
        "dist.all_reduce(x); dist.all_gather(parts, x)\n"
        "model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())\n"
        "model(x).sum().backward()\n"
        "assert x.is_cuda and parts[0].is_cuda and model.module.weight.grad.is_cuda\n"
        "dist.destroy_process_group()\n"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "group")], check=True, timeout=90)
