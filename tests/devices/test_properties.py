"""Programs of random calls: a virtual device changes where a tensor says it is, never what it holds."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.usefixtures("virtual")

# Each takes two tensors of shape (3, 3) and gives one; the second is ignored by the unary ones.
_CALLS: list[Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = [
    lambda a, b: a + b,
    lambda a, b: a @ b,
    lambda a, b: torch.where(a > b, a, b),
    lambda a, b: torch.stack([a, b]).mean(0),
    lambda a, b: a.t(),
    lambda a, b: a[[2, 0, 1]],
    lambda a, b: a.flip(0).view(3, 3),
    lambda a, b: torch.cat([a[:1], b[1:]]),
    lambda a, b: a.clone().add_(b),
    lambda a, b: torch.tanh(a),
    lambda a, b: a.detach().numpy(force=True).__class__ and a * 2,
    lambda a, b: a.split(1)[0].expand(3, 3),
    lambda a, b: torch.add(a, b, out=torch.empty_like(a)),
]
_MOVES: list[Callable[[torch.Tensor], torch.Tensor]] = [
    lambda t: t.cuda(),
    lambda t: t.cpu(),
    lambda t: t.to("cuda:1"),
    lambda t: t.to(t.device, copy=True),
]
_PROGRAM = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, len(_CALLS) + len(_MOVES) - 1), st.integers(0, 3)),
    min_size=1,
    max_size=20,
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(_PROGRAM)
def test_program_computes_the_same_values_where_devices_say(program: list[tuple[int, int, int, int]]) -> None:
    torch.manual_seed(0)
    plain = [torch.rand(3, 3) for _ in range(4)]
    placed = [plain[0].clone(), plain[1].cuda(), plain[2].to("cuda:1"), plain[3].cuda()]
    where = ["cpu", "cuda:0", "cuda:1", "cuda:0"]
    for left, right, call, to in program:
        if call >= len(_CALLS):
            move = call - len(_CALLS)
            placed[to] = _MOVES[move](placed[left])
            plain[to], where[to] = plain[left], ["cuda:0", "cpu", "cuda:1", where[left]][move]
        else:
            unary = call in (4, 5, 6, 9, 10, 11)
            if not unary and where[left] != where[right]:
                with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
                    _CALLS[call](placed[left], placed[right])
                continue
            placed[to] = _CALLS[call](placed[left], placed[right])
            plain[to], where[to] = _CALLS[call](plain[left], plain[right]), where[left]
        assert str(placed[to].device) == where[to]
    for one, other, device in zip(plain, placed, where, strict=True):
        assert str(other.device) == device
        assert torch.equal(one, other.cpu())
