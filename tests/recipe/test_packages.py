from __future__ import annotations

from pathlib import Path

import pytest

from looseleaf.recipe import NameFacts, modules_in
from looseleaf.recipe.packages import split_local


@pytest.mark.parametrize(
    ("cells", "target", "imports"),
    [
        ([], "import a.b as c", ("a.b",)),
        (["import a.b as c"], "c.f()", ("a.b",)),
        (["import a.b", "import a.c"], "a.c.f()", ("a", "a.b", "a.c")),
        (["from torch import nn"], "nn.Linear", ("torch",)),
        # through code of the session, and imports in its body
        (["import numpy as np", "def f():\n  import json\n  return np.zeros(3)"], "f()", ("json", "numpy")),
        # 7: a star import may have bound what nobody else did
        (["from math import *"], "sqrt(2)", ("math",)),
        (["from math import *"], "len([])", ()),
        # what made the object, where no header tells
        (["import torchvision", "m = torchvision.models.vgg16()"], "print(m)", ("torchvision",)),
        # also behind what its own cell made of it, one binding after the other
        (["import pandas as pd\ndf = pd.read_csv('a')\ndf = df.dropna()\ndf = df[df.a > 0]"], "df.head()", ("pandas",)),
        (["import pandas as pd\nimport numpy as np", "t = pd.read_csv('a')\nx = t.values\nt = np.ones(1)\ndel t"],
         "x.mean()", ("pandas",)),
        (["import pandas as pd", "d = pd.read_csv('a')", "e = d\nd = 1\nd = [d]"], "e", ("pandas",)),
        (["import pandas as pd", "d = pd.read_csv('a')", "d = 1\ne = d\nd = [d]"], "e", ()),
    ],
)
def test_imports_by_text_are_exact(ask, cells: list[str], target: str, imports: tuple[str, ...]) -> None:
    assert ask(target, *cells).recipe.imports == imports


def test_imports_with_headers_include_classes_of_objects(ask) -> None:
    headers = {"trainer": NameFacts(modules=frozenset({"transformers.trainer", "torch", "builtins", "__main__"}))}
    assert ask("trainer.train()", headers=headers).recipe.imports == ("torch", "transformers.trainer")


def test_local_modules_are_file_dependencies(ask, tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("A = 1")
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").write_text("")
    (tmp_path / "pkg" / "part.py").write_text("")
    recipe = ask("import helper, pkg.part, json", local_module=modules_in(tmp_path)).recipe
    assert recipe.imports == ("json",)
    assert recipe.file_dependencies == ("helper.py", "pkg/part.py")


def test_written_module_is_a_file_dependency(ask) -> None:
    recipe = ask("import helper", "%%writefile helper.py\nA = 1").recipe
    assert (recipe.imports, recipe.file_dependencies) == ((), ("helper.py",))


def test_split_local_drops_what_cannot_be_imported() -> None:
    assert split_local(["", "__main__", ".x", "builtins", "os"], lambda _: None).modules == ("os",)


@pytest.mark.parametrize(
    "cells",
    [
        ["class D(Dataset):\n  pass", "D()"],
        ["class D(Dataset):\n  pass\nd = D()", "d.x"],
        ["class Dataset(Dataset):\n  pass", "Dataset()"],
        ["class D(Dataset): pass", "class E(D): pass", "E()"],
        ["def f(a=Dataset): pass", "f()"],
        ["def make():\n  from torch.utils.data import Subset\n  return Subset([1], [0])\ns = make()", "s[0]"],
    ],
)
def test_import_closure_has_what_classes_are_made_of(ask, cells: list[str]) -> None:
    *earlier, target = cells
    assert "torch.utils.data" in ask(target, "from torch.utils.data import Dataset", *earlier).recipe.imports
