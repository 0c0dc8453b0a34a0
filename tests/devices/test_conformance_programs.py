"""Compiled, scripted, transformed and unusual programs, alike on virtual and on real GPUs."""

# ruff: noqa: PLW0108 - the functions are patched after this module is imported
from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import prune
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

pytestmark = [pytest.mark.usefixtures("device_kind"), pytest.mark.filterwarnings("ignore")]

CUDA = torch.device("cuda", 0)


def _x() -> torch.Tensor:
    return torch.rand(4, 4, device="cuda") + torch.eye(4, device="cuda")


@pytest.mark.parametrize("kind", ["function", "decorator", "module", "method"])
def test_compiled_code_gives_the_same_on_the_device(kind: str) -> None:
    layer, x = nn.Linear(4, 4).cuda(), _x()
    expected = layer(x)
    try:
        if kind == "function":
            found = torch.compile(lambda a: layer(a), backend="eager")(x)
        elif kind == "decorator":

            @torch.compile(backend="eager", fullgraph=True)
            def run(a: torch.Tensor) -> torch.Tensor:
                return F.linear(a, layer.weight, layer.bias)

            found = run(x)
        elif kind == "module":
            found = torch.compile(layer, backend="eager")(x)
        else:
            layer.compile(backend="eager")
            found = layer(x)
        assert found.device == CUDA
        assert torch.allclose(found, expected)
        found.sum().backward()
        assert layer.weight.grad.device == CUDA
    finally:
        torch.compiler.set_stance("default")
        torch._dynamo.reset()


def test_scripts_see_the_device_of_their_arguments() -> None:
    @torch.jit.script
    def made_beside(a: torch.Tensor) -> torch.Tensor:
        return a * 2 + torch.ones(a.size(0), 4, device=a.device)

    scripted = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.ReLU()).cuda())
    traced = torch.jit.trace(lambda a: a @ a.t(), _x())
    for call in (made_beside, scripted, traced, torch.jit.freeze(scripted.eval())):
        assert call(_x()).device == CUDA
    assert torch.jit.wait(torch.jit.fork(lambda a: a + 1, _x())).device == CUDA
    assert made_beside(torch.ones(4, 4)).device.type == "cpu"


def test_script_saved_from_the_host_loads_on_the_device() -> None:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.Linear(4, 2)), buffer)
    for place, expected in (("cuda", "cuda:0"), ("cpu", "cpu")):
        buffer.seek(0)
        loaded = torch.jit.load(buffer, map_location=place)
        assert str(next(loaded.parameters()).device) == expected
        assert str(loaded(torch.ones(1, 4, device=place)).device) == expected
    assert loaded.cuda()(_x()).device == CUDA


@pytest.mark.parametrize(
    "transform",
    [
        lambda x: torch.vmap(lambda row: row + torch.ones(4, device="cuda"))(x),
        lambda x: torch.vmap(lambda row: row + torch.rand(4, device="cuda"), randomness="different")(x),
        lambda x: torch.func.grad(lambda y: (y @ y).sum())(x),
        lambda x: torch.func.grad_and_value(lambda y: y.sum())(x)[1],
        lambda x: torch.func.jacrev(torch.sin)(x[0]),
        lambda x: torch.func.jacfwd(torch.sin)(x[0]),
        lambda x: torch.func.hessian(lambda y: (y**3).sum())(x[0]),
        lambda x: torch.func.vjp(torch.sin, x)[1](x)[0],
        lambda x: torch.func.jvp(torch.sin, (x,), (x,))[1],
        lambda x: torch.func.functional_call(nn.Linear(4, 2).cuda(), {}, (x,)),
    ],
)
def test_transformed_functions_stay_on_the_device(transform) -> None:
    assert transform(_x()).device == CUDA


def test_ensembles_of_models_run_as_one() -> None:
    models = [nn.Linear(4, 2).cuda() for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    base = copy.deepcopy(models[0]).to("meta")

    def run(one, two, x):
        return torch.func.functional_call(base, (one, two), (x,))

    found = torch.vmap(run, in_dims=(0, 0, None))(parameters, buffers, _x())
    assert found.device == CUDA
    assert found.shape == (3, 4, 2)


def test_inner_code_of_transforms_sees_the_device() -> None:
    seen = []

    def look(y):
        seen.append((y.device, y.is_cuda))
        return y.sum()

    torch.vmap(look)(_x())
    torch.func.grad(look)(_x())
    torch.func.jvp(look, (_x(),), (_x(),))
    assert set(seen) == {(CUDA, True)}


@pytest.mark.parametrize(
    "compute",
    [
        torch.linalg.inv, torch.linalg.det, torch.linalg.eigvals, torch.linalg.pinv, torch.linalg.matrix_rank,
        torch.linalg.matrix_exp, torch.fft.fft2, torch.fft.rfft, torch.fft.fftshift,
        lambda x: torch.linalg.eigh(x @ x.T).eigenvectors,
        lambda x: torch.linalg.svd(x).S,
        lambda x: torch.linalg.qr(x).R,
        lambda x: torch.linalg.solve(x, x),
        lambda x: torch.linalg.lstsq(x, x).solution,
        lambda x: torch.linalg.cholesky(x @ x.T + torch.eye(4, device="cuda")),
        lambda x: torch.fft.irfft(torch.fft.rfft(x)),
        lambda x: torch.stft(x.flatten(), 4, window=torch.hann_window(4, device="cuda"), return_complex=True),
        lambda x: torch.cdist(x, x),
        lambda x: torch.histc(x),
        lambda x: torch.unique(x, return_inverse=True)[1],
        lambda x: torch.nonzero(x > 0.5),
        lambda x: torch.where(x > 0.5)[0],
        lambda x: torch.sort(x, dim=0, descending=True).indices,
        lambda x: torch.view_as_real(torch.complex(x, x)),
        lambda x: torch.complex(x, x).conj().imag,
        lambda x: torch.polar(x, x).angle(),
    ],
)
def test_linear_algebra_and_the_like_stay_on_the_device(compute) -> None:
    assert compute(_x()).device == CUDA


def test_sparse_tensors_live_on_the_device_with_all_their_parts() -> None:
    indices = torch.tensor([[0, 1], [1, 0]])
    made = torch.sparse_coo_tensor(indices, torch.ones(2), (2, 2), device="cuda")
    compressed = made.to_sparse_csr()
    for one in (made, made.coalesce(), made + made, made * 2, made.t(), made.half(), compressed.to_sparse_coo()):
        assert one.device == CUDA
        assert one.is_cuda
        assert one.coalesce().indices().device == one.coalesce().values().device == CUDA
    assert torch.sparse.mm(made, torch.ones(2, 2, device="cuda")).tolist() == [[1, 1], [1, 1]]
    assert torch.sparse.sum(made, 0).device == torch.sparse.softmax(made, 1).device == CUDA
    assert made.cpu().coalesce().indices().device.type == "cpu"
    assert pickle.loads(pickle.dumps(made)).device == CUDA
    compressed = torch.sparse_csr_tensor(torch.tensor([0, 1, 2]), torch.tensor([0, 1]), torch.ones(2), device="cuda")
    product = compressed @ torch.ones(2, 2, device="cuda")
    assert compressed.crow_indices().device == compressed.values().device == product.device == CUDA


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_live_on_the_device(layout: torch.layout) -> None:
    made = torch.nested.nested_tensor([torch.ones(2, 2), torch.ones(3, 2)], device="cuda", layout=layout)
    parts = [torch.ones(2, 2, device="cuda"), torch.ones(3, 2, device="cuda")]
    moved = torch.nested.as_nested_tensor(parts, layout=layout)
    for one in (made, moved, made * 2):
        assert one.device == CUDA
        assert torch.nested.to_padded_tensor(one, 0.0).device == CUDA
    assert made.cpu().device.type == "cpu"


@pytest.mark.parametrize("backend", [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION])
def test_attention_runs_with_the_kernel_that_is_chosen(backend: SDPBackend) -> None:
    q = torch.rand(1, 2, 8, 16, device="cuda")
    with sdpa_kernel(backend):
        assert F.scaled_dot_product_attention(q, q, q).device == CUDA
    assert torch.backends.cuda.math_sdp_enabled()


def test_modes_and_subclasses_of_the_person_see_the_device() -> None:
    seen = []

    class Watch(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                seen.append(result.device)
            return result

    class Below(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    class Named(torch.Tensor):
        pass

    with Watch():
        x = torch.ones(2, device="cuda") * 2
    assert seen == [CUDA, CUDA]
    with Below():
        assert (x + 1).device == CUDA
    named = x.as_subclass(Named)
    assert type(named + 1) is Named
    assert (named + 1).device == torch.cat([named, named]).device == CUDA
    assert repr(named) == "Named([2., 2.], device='cuda:0')"
    assert type(named.cpu()) is Named


@torch.library.custom_op("looseleaf_tests::double", mutates_args=())
def _double(a: torch.Tensor) -> torch.Tensor:
    return a * 2


def test_operators_written_by_the_person_give_results_on_the_device() -> None:
    x = _x()
    assert _double(x).device == CUDA
    assert torch.ops.looseleaf_tests.double(x).tolist() == (x * 2).tolist()


def test_modules_made_late_parametrised_pruned_and_swapped() -> None:
    x = _x()
    lazy = nn.Sequential(nn.LazyLinear(3), nn.ReLU(), nn.LazyBatchNorm1d()).cuda()
    assert lazy(x).device == lazy[0].weight.device == CUDA
    spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)).cuda()
    spectral(x).sum().backward()
    pruned = nn.Linear(4, 4).cuda()
    prune.l1_unstructured(pruned, "weight", 0.5)
    assert spectral(x).device == pruned(x).device == CUDA
    parameter = nn.Parameter(torch.ones(2))
    parameter.data = torch.zeros(3, device="cuda")
    assert parameter.device == CUDA
    module = nn.BatchNorm1d(4)
    module.register_buffer("mask", torch.ones(4))
    module.to("cuda", dtype=torch.float64)
    assert {one.device for one in (*module.buffers(), *module.parameters())} == {CUDA}
    assert nn.utils.parameters_to_vector(pruned.parameters()).device == CUDA


def test_results_written_into_given_tensors_and_in_place() -> None:
    x, out = _x(), torch.empty(0, device="cuda")
    assert torch.mul(x, x, out=out) is out
    assert (out.shape, out.device) == (x.shape, CUDA)
    values, places = torch.empty(4, device="cuda"), torch.empty(4, device="cuda", dtype=torch.long)
    torch.max(x, 0, out=(values, places))
    assert values.tolist() == x.max(0).values.tolist()
    address = x.data_ptr()
    for change in (x.add_, x.mul_, x.clamp_min_, x.fill_):
        assert change(1.0) is x
    x[x > 0] = 5
    x += 1
    x[:, 1:].zero_()
    assert x.data_ptr() == address
    assert x.tolist() == [[6, 0, 0, 0]] * 4
    x.index_put_((torch.tensor([0], device="cuda"),), torch.ones(4, device="cuda"))
    assert x[0].tolist() == [1, 1, 1, 1]
