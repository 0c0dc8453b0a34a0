"""Cells that change which packages are there: found wherever the installer stands, run in the notebook's process."""

from __future__ import annotations

import pytest

SESSION = "import torch, sys\nmodel = torch.nn.Linear(2, 2).cuda()\nv = '1.0'"
ONLY = [
    "%pip install -q torch", "%pip --quiet install x", "!pip install flash-attn --no-build", "!pip3 install x",
    "!pip install xformers --index-url https://example.org/whl/cu118", "%conda install -c nvidia cuda-toolkit",
    "!conda install pytorch-cuda=12.1 -y", "%mamba install x", "!micromamba install x", "!uv pip install vllm",
    "%uv pip install unsloth", "!uv add x", "!uv sync ", "!poetry add x", "!python -m pip install deepspeed",
    "!{sys.executable} -m pip install accelerate=={v}", "!$sys.executable -m pip install x", "!pip uninstall -y torch",
    "pip install torch", "!apt-get install -y nvidia-cuda-toolkit", "!/usr/bin/pip install x", "!sudo pip install x",
    "!PIP_INDEX=x pip install x", "!python setup.py install", "!python3.11 -m pip install x", "!pip -q install x",
    "%%bash\n# the newest\npip install torch\npip install vllm && pip install x", "%%capture\n!pip install deepspeed",
    "get_ipython().system('pip install x')", "get_ipython().run_line_magic('pip', 'install x')",
]  # fmt: skip
AMONG_OTHERS = [
    "!cd repo && pip install .", "!git clone x; pip install x", "%%capture\n!pip install unsloth\nimport torch",
    "if 'colab' in sys.modules:\n  !pip install x", "try:\n  import foo\nexcept ImportError:\n  %pip install foo",
    "%%bash\npip install torch\nnvidia-smi", "x = !pip install y", "def setup():\n  pass\n!pip install x",
]  # fmt: skip
NONE = [
    "!pip list", "%pip show install", "!pip download x", "!echo pip install x", "print('pip install x')", "install = 1",
    "# !pip install x", "!python train.py install", "!ls pip install", "%%writefile a.sh\npip install x",
]  # fmt: skip


@pytest.mark.parametrize("cell", ONLY)
def test_cell_that_only_installs_runs_in_the_notebook_for_sure(ask, cell: str) -> None:
    found = ask(cell, SESSION)
    assert (found.facts.installs, found.facts.only_installs) == (True, True)
    assert (found.recipe.label, found.recipe.confidence) == ("cpu", 1.0)


@pytest.mark.parametrize("cell", AMONG_OTHERS)
def test_cell_that_installs_among_other_things_is_no_gpu_cell_for_it(ask, cell: str) -> None:
    found = ask(cell, SESSION)
    assert (found.facts.installs, found.facts.only_installs) == (True, False)
    assert found.recipe.label == "cpu"


@pytest.mark.parametrize("cell", NONE)
def test_cell_that_installs_nothing_is_not_taken_for_one(ask, cell: str) -> None:
    assert not ask(cell, SESSION).facts.installs


def test_cell_that_installs_and_uses_the_gpu_runs_there(ask) -> None:
    assert ask("!pip install x\nmodel(torch.ones(2).cuda())", SESSION).recipe.label == "gpu"
    assert ask("!pip install deepspeed && deepspeed train.py", SESSION).recipe.label == "gpu"


def test_names_in_an_installers_line_are_read(ask) -> None:
    assert set(ask("!{sys.executable} -m pip install accelerate=={v}", SESSION).state_names) == {"v"}


def test_long_line_that_is_nearly_an_installers_takes_no_time(ask) -> None:
    ask("!" + "A=1 " * 2000 + "pip " + "-x " * 2000)
