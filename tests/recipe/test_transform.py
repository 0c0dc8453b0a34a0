from __future__ import annotations

import pytest

from looseleaf.recipe.transform import transform


def test_transform_plain_python_is_kept() -> None:
    assert transform("x = 1\n").python == "x = 1\n"


@pytest.mark.parametrize("magic", ["time", "capture", "prun", "memit"])
def test_transform_cell_magic_body_is_unwrapped(magic: str) -> None:
    assert transform(f"%%{magic}\nx = f(y)\n").python == "x = f(y)\n"


def test_transform_blank_lines_before_cell_magic_are_skipped() -> None:
    assert transform("\n\n  %%time\n  x = 1\n").python.strip() == "x = 1"


def test_transform_capture_binds_its_variable() -> None:
    assert transform("%%capture --no-stderr out\nprint(1)").binds == ("out",)
    assert transform("%%capture --no-stderr\nprint(1)").binds == ()


def test_transform_timeit_body_is_isolated_with_setup() -> None:
    moved = transform("%%timeit -n 10 n = 3\nx = n\n")
    assert (moved.isolated, moved.setup, moved.python) == (True, "n = 3", "x = n\n")


@pytest.mark.parametrize(
    ("text", "override", "count"),
    [("%%gpu\nx", "gpu", 1), ("%%gpu 2\nx", "gpu", 2), ("%%gpu -n 4\nx", "gpu", 4), ("%%cpu\nx", "cpu", 1)],
)
def test_transform_override_is_read(text: str, override: str, count: int) -> None:
    moved = transform(text)
    assert (moved.override, moved.gpu.count) == (override, count)


@pytest.mark.parametrize("text", ["%%gpu\n%%time\nx = y", "%%time\n%%gpu\nx = y"])
def test_transform_override_composes_with_other_magics(text: str) -> None:
    moved = transform(text)
    assert moved.override == "gpu"
    assert moved.python.strip() == "x = y"


@pytest.mark.parametrize("magic", ["bash", "html", "javascript", "latex", "script python", "writefile a.py"])
def test_transform_foreign_body_is_no_python(magic: str) -> None:
    assert transform(f"%%{magic}\nx = = 1\n").python == ""


def test_transform_writefile_keeps_path_and_text() -> None:
    assert transform("%%writefile pkg/mod.py\nA = 1\n").files == (("pkg/mod.py", "A = 1\n"),)


def test_transform_unknown_cell_magic_body_is_optional_python() -> None:
    moved = transform("%%RecordEvent train\nx = 1\n")
    assert moved.optional
    assert moved.python == "x = 1\n"


def test_transform_magic_line_interpolation_is_read() -> None:
    assert transform('%%bash -s "$first" {second}\necho $1').reads == ("first", "second")


def test_transform_line_magics_become_calls() -> None:
    assert "run_line_magic('cd', 'data')" in transform("%cd data\nx = 1").python
    assert "system('ls {p}')" in transform("!ls {p}").python


def test_transform_automagic_only_on_single_line_cells() -> None:
    assert "run_line_magic('pip'" in transform("pip install torch").python
    assert transform("ls = 3").python == "ls = 3"
    assert "run_line_magic" not in transform("pip install torch\nx = 1").python


@pytest.mark.parametrize("text", ["", "%%", "%%time", "%%gpu", "\x00", "%%gpu\n" * 50, "'''", "%%time?\nx"])
def test_transform_odd_text_never_raises(text: str) -> None:
    transform(text)
