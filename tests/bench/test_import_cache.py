from __future__ import annotations

from pathlib import Path

import import_cache
import nbformat
from import_cache import Times, compare, interleaved, recipes_of, stand_in_s

TORCH = frozenset({"torch", "numpy"})
RECIPES = {
    "one.ipynb": [TORCH | {"pandas", "seaborn"}, TORCH | {"pandas"}],
    "two.ipynb": [TORCH | {"sklearn", "sklearn.svm"}] * 3,
}


def test_replay_orders_policies_as_they_are_and_is_the_same_each_time() -> None:
    first, again = (compare(RECIPES, Times({}), sessions=12, seeds=2, bare_s=1.0) for _ in range(2))
    assert first == again
    fresh, base, *trees = first
    assert fresh.starts == base.starts == trees[0].starts == 2 * (6 * 2 + 6 * 3)
    assert fresh.mean_s > base.mean_s > trees[0].mean_s
    assert fresh.ready <= base.ready <= trees[0].ready
    assert base.builds == 0 and all(tree.builds > 0 for tree in trees)


def test_starts_of_sessions_interleave_in_order_of_time() -> None:
    starts = interleaved(RECIPES, sessions=4, seed=1)
    assert len(starts) == 2 * 2 + 2 * 3
    assert [start.at_s for start in starts] == sorted(start.at_s for start in starts)
    assert starts != interleaved(RECIPES, sessions=4, seed=2)


def test_stand_in_of_a_part_is_less_than_its_package() -> None:
    assert 0 < stand_in_s("some.part") < stand_in_s("some") == stand_in_s("some")


def test_recipes_are_those_of_gpu_cells_and_parts_bring_their_package(tmp_path: Path) -> None:
    notebook = nbformat.v4.new_notebook()
    sources = ["import os, torch\nimport scipy.stats as stats", "x = torch.zeros(2).cuda(); stats.norm", "print(1)"]
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(notebook, tmp_path / "nb.ipynb")
    [recipe] = recipes_of(tmp_path)["nb.ipynb"]
    assert {"torch", "scipy", "scipy.stats"} <= recipe and "os" not in recipe


def test_folder_without_gpu_cells_is_said(tmp_path: Path) -> None:
    assert import_cache.main([str(tmp_path)]) == 1
