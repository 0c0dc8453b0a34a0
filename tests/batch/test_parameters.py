"""Parameters beside papermill's own: the same types, the same cell, the same place."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Any

import nbformat.v4 as nbf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.batch.parameters import collect, has_place, inject, read_parameters, source_of, typed_value
from looseleaf.errors import InvalidArgument, Unsupported

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,6}", fullmatch=True)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3), ("-3", -3), ("1_000", 1000), ("0.5", 0.5), ("1e3", 1000.0), ("True", True), ("true", True),
        ("False", False), ("None", None), ("null", None), ("~", None), ("adam", "adam"), ("", ""), ("no", "no"),
        ("2026-01-31", "2026-01-31"), ("a: b", "a: b"), ("- 1", "- 1"), ("0x10", "0x10"),
        ("[1, 2.5, null]", [1, 2.5, None]),
        ("{lr: 0.1, name: x}", {"lr": 0.1, "name": "x"}), ("[2026-01-31]", ["2026-01-31"]), ("'3'", "3"), ('"3"', "3"),
    ],
)  # fmt: skip
def test_typed_value_is_what_a_person_means(text: str, value: Any) -> None:
    found = typed_value(text)
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize(
    "text", ["3", "-3", "1_000", "0.5", "1e3", "True", "False", "None", "adam", "no", "a: b", "inf"]
)
def test_typed_value_of_scalars_is_papermills(text: str) -> None:
    cli = pytest.importorskip("papermill.cli")
    assert typed_value(text) == cli._resolve_type(text)


def test_later_and_rawer_parameters_win(tmp_path: Path) -> None:
    first, second = tmp_path / "p.yaml", tmp_path / "q.json"
    first.write_text("a: 1\nb: [x, 2026-01-31]\nc: yes\n")
    second.write_text('{"a": 2, "d": {"k": null}}')
    found = collect([first, second], [("c", "3"), ("e", "4")], [("e", "5")])
    assert found == {"a": 2, "b": ["x", "2026-01-31"], "c": 3, "d": {"k": None}, "e": "5"}
    (tmp_path / "empty.yaml").write_text("# nothing\n")
    assert read_parameters(tmp_path / "empty.yaml") == {}


@pytest.mark.parametrize("name", ["1a", "a b", "a=1", "class", "", "a.b", "a\nimport os"])
def test_name_that_is_no_variable_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument, match="PARAMETER_MALFORMED"):
        collect([], [(name, "1")], [])


@pytest.mark.parametrize("text", [b"a: [", b"- 1", b"3", b"\xff", b"1: a"])
def test_bad_parameter_file_is_refused_by_name(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "bad.yaml"
    path.write_bytes(text)
    for file in (path, tmp_path / "absent.yaml"):
        with pytest.raises(InvalidArgument, match="PARAMETERS_UNREADABLE") as caught:
            read_parameters(file)
        assert file.name in caught.value.message


def test_without_pyyaml_json_is_read_and_yaml_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "yaml":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    assert typed_value('{"a": [1, true]}') == {"a": [1, True]} and typed_value("plain") == "plain"
    (tmp_path / "p.json").write_text('{"a": 1}')
    assert read_parameters(tmp_path / "p.json") == {"a": 1}
    with pytest.raises(Unsupported, match="YAML_MISSING"):
        typed_value("{a: 1}")


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_cell_assigns_exactly_the_values(parameters: dict[str, Any]) -> None:
    namespace: dict[str, Any] = {}
    parameters = {f"v_{name}": value for name, value in parameters.items()}
    exec(source_of(parameters), namespace)
    # repr tells 1 from True and 1.0, and compares NaN.
    assert repr({name: namespace[name] for name in parameters}) == repr(parameters)


@given(st.dictionaries(NAMES, VALUES, max_size=4))
def test_cell_is_papermills_to_the_letter(parameters: dict[str, Any]) -> None:
    translators = pytest.importorskip("papermill.translators")
    assert source_of(parameters) == translators.PythonTranslator.codify(parameters)


KERNELSPEC = {"name": "python3", "language": "python", "display_name": "Python 3"}


def notebook(*tags: str) -> Any:
    cells = [nbf.new_markdown_cell("# Title")]
    cells += [nbf.new_code_cell(f"x = '{tag}'", metadata={"tags": [tag]} if tag else {}) for tag in tags]
    return nbf.new_notebook(cells=cells, metadata={"kernelspec": KERNELSPEC})


@pytest.mark.parametrize(
    "tags",
    [(), ("",), ("parameters", ""), ("", "parameters"), ("parameters", "injected-parameters", ""),
     ("injected-parameters", "parameters"), ("parameters", "parameters")],
)  # fmt: skip
@pytest.mark.parametrize("minor", [2, 5])
def test_injected_notebook_is_papermills_key_by_key(tags: tuple[str, ...], minor: int) -> None:
    parameterize = pytest.importorskip("papermill.parameterize")
    parameters = {"a": 1, "text": 'q"uote', "nested": {"k": [None, True]}}
    ours, theirs = notebook(*tags), notebook(*tags)
    for nb in (ours, theirs):
        nb.nbformat_minor = minor
        for number, cell in enumerate(nb.cells):
            # As papermill does when it reads a notebook.
            cell.metadata.setdefault("tags", [])
            if minor >= 5:
                cell.id = f"i{number}"
            else:
                del cell["id"]
    theirs.metadata["papermill"] = {}
    theirs = parameterize.parameterize_notebook(theirs, parameters)
    del theirs.metadata["papermill"]
    assert has_place(ours) is bool(set(tags) & {"parameters", "injected-parameters"})
    ours = inject(ours, parameters)
    for mine, other in zip(ours.cells, theirs.cells, strict=True):
        # New ids are random.
        mine.pop("id"), other.pop("id")
    assert ours == theirs


def test_without_parameters_the_notebook_stays_as_it_is() -> None:
    nb = notebook("parameters")
    assert inject(nb, {}) is nb and len(nb.cells) == 2
