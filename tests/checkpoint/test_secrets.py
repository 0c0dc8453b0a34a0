"""Values of environment variables whose names are those of secrets stay in their process, and are named."""

from __future__ import annotations

import pytest

from looseleaf.checkpoint.process_state import ProcessState
from looseleaf.kernel_config import SECRET_NAMES


def read(monkeypatch, name, secret_names, last=None):
    monkeypatch.delenv(name, raising=False)
    state = ProcessState(secret_names)
    monkeypatch.setenv(name, "x-value")
    record, unsaved = state.read(last or {}, dict)
    assert ("x-value" in str(record)) is (name in record["environment"])
    return name in record["environment"], [entry.reason for entry in unsaved], record


@pytest.mark.parametrize(
    "name",
    ["HF_TOKEN", "my_secret", "DB_PASSWORD", "OPENAI_API_KEY", "MYAPIKEY", "AWS_ACCESS_KEY_ID", "GH_AUTH", "DB_PWD"],
)
def test_secret_by_the_default_patterns_is_kept_out_and_reported(monkeypatch, name):
    assert read(monkeypatch, name, SECRET_NAMES)[:2] == (False, ["SECRET_ENVIRONMENT"])


@pytest.mark.parametrize("name", ["AUTHOR", "HF_HOME", "MONKEY", "KEYBOARD", "PWDS"])
def test_other_variable_moves(monkeypatch, name):
    assert read(monkeypatch, name, SECRET_NAMES)[:2] == (True, [])


def test_secret_names_are_a_setting(monkeypatch):
    assert read(monkeypatch, "CARD_PIN", ["*_pin"])[:2] == (False, ["SECRET_ENVIRONMENT"])
    assert read(monkeypatch, "HF_TOKEN", [])[:2] == (True, [])


def test_secret_names_of_another_process_of_the_session_hold_too(monkeypatch):
    record = read(monkeypatch, "CARD_PIN", ["*_PIN"])[2]
    assert read(monkeypatch, "DOOR_PIN", [], record)[:2] == (False, ["SECRET_ENVIRONMENT"])
    state = ProcessState([])
    state.apply({"secret_names": ["*_PIN"]}, before_objects=True)
    monkeypatch.setenv("GATE_PIN", "x")
    assert "GATE_PIN" not in state.read({}, dict)[0]["environment"]
