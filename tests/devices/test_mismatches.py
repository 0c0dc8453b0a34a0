"""torch's table of native functions, as the checks of mixed devices read it."""

from __future__ import annotations

import pytest
import torch

from looseleaf.devices import mismatches


@pytest.mark.parametrize(
    ("operator", "method"),
    [
        ("addmm", "wrapper_CUDA_addmm"),
        ("mm", "wrapper_CUDA_mm"),
        ("index_select", "wrapper_CUDA__index_select"),
        ("native_layer_norm", "wrapper_CUDA__native_layer_norm"),
        ("searchsorted.Tensor", "wrapper_CUDA_Tensor_searchsorted"),
        ("cat", "wrapper_CUDA_cat"),
        ("scatter.value", "wrapper_CUDA_scatter_value"),
    ],
)
def test_operator_that_checks_its_arguments_has_cuda_s_name(operator: str, method: str) -> None:
    assert mismatches._checked_methods()[operator] == method


@pytest.mark.parametrize("operator", ["add.Tensor", "mul.Tensor", "eq.Tensor", "copy_", "index.Tensor", "where.self"])
def test_operator_that_checks_element_by_element_is_not_in_the_table(operator: str) -> None:
    assert operator not in mismatches._checked_methods()


@pytest.mark.usefixtures("virtual")
def test_torch_without_the_table_still_refuses_to_mix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mismatches, "_TABLE", "nowhere.yaml")
    mismatches._checked_methods.cache_clear()
    try:
        assert mismatches._checked_methods() == {}
        with pytest.raises(RuntimeError, match="found at least two devices, cuda:0 and cpu!"):
            torch.ones(2, 2, device="cuda") @ torch.ones(2, 2)
    finally:
        mismatches._checked_methods.cache_clear()


def test_older_torch_s_wording_names_devices_first(monkeypatch: pytest.MonkeyPatch) -> None:
    newer = str(mismatches.wrapped_error("mat1", None, 0, "wrapper_CUDA_addmm"))
    monkeypatch.setattr(mismatches, "_NAMES_ARGUMENT_FIRST", not mismatches._NAMES_ARGUMENT_FIRST)
    older = str(mismatches.wrapped_error("mat1", None, 0, "wrapper_CUDA_addmm"))
    wordings = {newer, older}
    assert any("but got mat1 is on cpu, different from other tensors on cuda:0" in text for text in wordings)
    assert any("found at least two devices, cuda:0 and cpu! (when checking argument for" in text for text in wordings)
