"""What reads small device values, and what uses them."""

from __future__ import annotations

import pytest

from looseleaf.recipe.label import CERTAIN
from looseleaf.recipe.name_facts import NameFacts
from tests.recipe.test_label import gpu

READS = [
    "x['rows'].tolist()", "str(x.device)", "plt.plot([v.cpu() for v in x])", "f'{x:.2f} {x[0]!r}'", "len(x)",
    "x.shape", "float(x)", "[l.item() for l in x]", "x[-1]", "x[1:3]", "x['loss'].item()", "print('%.3f' % x)",
    "print('{:.2f} {}'.format(x, 1))", "print(*[v.item() for v in x])", "for l in x:\n    print(l.item())",
    "for i, l in enumerate(x):\n    total = i + l.item()", "best = min(v.item() for v in x)",
    "{k: v.cpu() for k, v in x.items()}", "ys = [float(v) for v in x if v is not None]",
    "x.detach().cpu().numpy().mean()", "x.to('cpu').sum()", "x.squeeze().tolist()", "x.T.tolist()",
    "print(x if x is not None else 'none')", "'loss' in x", "assert x.shape[0] == 3, x",
    "x.device == torch.device('cuda:0')", "x[0].device", "print(x[0].device)",
    "{k: v.device.type for k, v in x.items()}",
    "if x.item() > 0:\n    print(x)\nelse:\n    print('no')", "print(x.device.type, x.dtype)", "while not x: break",
    "torch.stack([v.cpu() for v in x]).mean()", "with open('f') as f:\n    f.write(str(x))",
    "x, y = x.item(), 2\nx + 1", "a = x.item()\ndel x", "rows = dict(loss=x.item())",
    "np.array([v.detach().cpu().numpy() for v in x])",
]  # fmt: skip
USES = [
    "x.mean().item()", "x * 2", "x[0] + 1", "f(x)", "y = x", "y = x[0]", "x[0] = 1", "x.add_(1)", "x.append(1)",
    "sum(x)", "[v * 2 for v in x]", "[f(v) for v in x]", "for l in x:\n    total = total + l", "sorted(x)", "x > 0",
    "x[x > 0]", "out['x'] = x", "out.append(x)", "x.weight.item()", "x.to('cuda:1')", "x.to(place)", "x @ x", "-x",
    "(y := x)", "x.backward()", "x.float()", "[l for l in x][0] + 1", "torch.stack(x)", "for l in x:\n    y = l",
    "z = [x]", "x.item(f(x))", "torch.zeros(2, device=x.device)", "'a' + x", "x == 1", "x in [1]",
    "torch.zeros(2, device=x[0].device)", "if c:\n    x = 1\nx + 1", "for l in x:\n    y + 1\n    y = l.cpu()\nl + 1",
    "x.device.f(x)", "print(x + 1)", "x.sum",
]  # fmt: skip


@pytest.mark.parametrize("text", READS)
def test_small_value_is_read_in_the_kernel(ask, text: str) -> None:
    recipe = ask(text, "import torch", headers={"x": gpu(4096)}).recipe
    assert (recipe.label, "x" in recipe.names) == ("cpu", True), recipe.reason


@pytest.mark.parametrize("text", USES)
def test_small_value_is_used_on_the_gpu(ask, text: str) -> None:
    assert ask(text, "import torch", headers={"x": gpu(4096)}).recipe.label == "gpu"


@pytest.mark.parametrize(
    ("text", "sure"),
    [("x.item()", True), ("print(x.detach().cpu(), x.shape)", True), ("x[0].item()", False), ("list(x)", False),
     ("[v.item() for v in x]", False), ("x.get('a')", False), ("y[0] = x.item()", True)],
)  # fmt: skip
def test_reading_what_a_variable_holds_is_doubted(ask, text: str, sure: bool) -> None:
    recipe = ask(text, headers={"x": gpu(4)}).recipe
    assert (recipe.label, recipe.confidence >= CERTAIN) == ("cpu", sure)


def test_value_that_called_code_names_too_is_used_there(ask) -> None:
    cells = ("def report(): return (x + 1).item()", "def other(): return 1")
    headers = {
        "x": gpu(4), "report": NameFacts("function", global_names=frozenset({"x"})), "other": NameFacts("function"),
    }  # fmt: skip
    assert ask("print(x, report())", *cells, headers=headers).recipe.label == "gpu"
    assert ask("print(x, other())", *cells, headers=headers).recipe.label == "cpu"


def test_memory_figures_of_the_whole_device_are_a_question(ask) -> None:
    asked = ask("free, total = torch.cuda.mem_get_info()", "import torch").recipe
    assert (asked.label, asked.reason) == ("cpu", "It only asks about the GPU.")
    assert ask("torch.cuda.memory_allocated()", "import torch").recipe.label == "gpu"
