"""Wrong settings are told with their place; each setting knows where its value is from."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from looseleaf.config_files import SECTIONS, ConfigError
from looseleaf.config_load import DEFAULT, MODELS, default_of, flag_of, load, mistyped_variables, settings, variable_of
from looseleaf.kernel_config import KernelConfig


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("LOOSELEAF_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def numbers() -> Iterator[tuple[str, str]]:
    """Every setting of every model that a text is no value of."""
    for section, model in MODELS.items():
        for name, field in model.model_fields.items():
            if field.annotation in (int, float, bool):
                yield section, name


def test_models_and_kernel_are_the_sections_of_the_file() -> None:
    assert {*MODELS, "kernel"} == set(SECTIONS)


def test_every_number_and_switch_is_refused_with_key_value_place_and_what_is_allowed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = list(numbers())
    assert len(found) > 60
    for index, (section, name) in enumerate(found):
        variable, flags = variable_of(MODELS[section], name), {}
        place = ("looseleaf.toml:3", variable, flag_of(name))[index % 3]
        with monkeypatch.context() as patch:
            if place == variable:
                patch.setenv(variable, "soon")
            elif place == flag_of(name):
                flags[name] = "soon"
            else:
                Path("looseleaf.toml").write_text(f"# ours\n[{section}]\n{name} = 'soon'\n")
            with pytest.raises(ConfigError) as refused:
                load(MODELS[section], flags)
        Path("looseleaf.toml").unlink(missing_ok=True)
        text = refused.value.message
        assert text.startswith(f"{section}.{name} = 'soon' (") and f"{place}): must be a valid" in text
        assert refused.value.fields["key"] == f"{section}.{name}"


def test_choices_bounds_lists_and_rules_between_settings_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"must be 'debug', 'info', 'warning' or 'error'"):
        load(MODELS["store"], {"log_level": "loud"})
    with pytest.raises(ConfigError, match=r"cluster.hosts = 99 \(--hosts\): must be less than or equal to 16"):
        load(MODELS["cluster"], {"hosts": 99})
    with pytest.raises(ConfigError, match=r"settings of \[scheduler\]: lease_ttl_ms must not exceed dead_after_s"):
        load(MODELS["scheduler"], {"lease_ttl_ms": 20_000})
    monkeypatch.setenv("LOOSELEAF_DAEMON_BASE_IMPORTS", "numpy,torch")
    with pytest.raises(ConfigError, match=r"base_imports = 'numpy,torch' \(LOOSELEAF_DAEMON_BASE_IMPORTS\): must be"):
        load(MODELS["daemon"])


@pytest.mark.parametrize("section", SECTIONS)
def test_unknown_key_is_refused_with_its_line_and_the_nearest(section: str) -> None:
    known = settings(section)[-1].name
    Path("looseleaf.toml").write_text(f"[{section}]\n\n{known}x = 1\n")
    with pytest.raises(ConfigError, match=rf"{section}\.{known}x \(.*:3\): .*did you mean .*{section}\.{known}\b"):
        settings(section)


def test_origin_is_the_place_that_won(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("looseleaf.toml").write_text("[cluster]\ngpus = 3\nhosts = 2\n[kernel]\nparanoid = true\n")
    monkeypatch.setenv("LOOSELEAF_HOSTS", "4")
    monkeypatch.setenv("LOOSELEAF_ENDPOINT", "/k.sock")
    found = {entry.key: entry for section in ("cluster", "kernel") for entry in settings(section)}
    assert (found["cluster.gpus"].value, found["cluster.gpus"].origin) == (3, f"{Path.cwd()}/looseleaf.toml:2")
    assert (found["cluster.hosts"].value, found["cluster.hosts"].origin) == (4, "LOOSELEAF_HOSTS")
    assert (found["kernel.paranoid"].value, found["kernel.paranoid"].origin[-2:]) == (True, ":5")
    assert found["kernel.endpoint"].origin == "LOOSELEAF_ENDPOINT"
    assert found["cluster.tcp"].origin == DEFAULT


def test_every_setting_has_a_description_and_a_variable_of_its_own() -> None:
    found = [entry for section in SECTIONS for entry in settings(section)]
    assert all(entry.description for entry in found)
    assert len({entry.variable for entry in found}) == len(found) == len({entry.key for entry in found})


def test_without_any_file_or_variable_everything_is_as_the_models_say() -> None:
    for section in SECTIONS:
        for entry in settings(section):
            assert entry.origin == DEFAULT
            default = default_of(section, entry.name)
            assert default in (None, "", Path(), entry.value), entry.key


def test_kernel_setting_of_the_wrong_kind_is_told_with_its_line() -> None:
    Path("looseleaf.toml").write_text("[kernel]\nparanoid = 'maybe'\n")
    with pytest.raises(ConfigError, match=r"kernel.paranoid = 'maybe' \(.*looseleaf.toml:2\): must be true or false"):
        KernelConfig.load()


def test_variables_of_our_own_code_are_settings_or_known_and_strangers_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = Path(__file__).resolve().parents[1]
    sources = [*(root / "looseleaf").rglob("*.py"), *(root / "services").rglob("*.py"), root / "setup.py"]
    texts = [path.read_text(encoding="utf-8") for path in sources]
    # Whole names: what ends with an underscore is the beginning of several.
    names = {name for text in texts for name in re.findall(r"\bLOOSELEAF_[A-Z_]+\b", text) if name[-1] != "_"}
    assert len(names) > 10
    for name in {*names, "LOOSELEAF_AND_MY_OWN_THING"}:
        monkeypatch.setenv(name, "1")
    assert mistyped_variables() == {}
    monkeypatch.setenv("LOOSELEAF_GPSU", "1")
    assert mistyped_variables() == {"LOOSELEAF_GPSU": "LOOSELEAF_GPUS"}
