"""The workflows name only actions, files, commands, services and methods that there are; no runner is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_model import BASE_FILE, ROOT, load, variables_of
from shell_lines import check, check_grpcurl, commands_of

WORKFLOWS = sorted((ROOT / ".github" / "workflows").iterdir())


def steps_of(path: Path) -> Iterator[tuple[dict[str, str], dict[str, Any]]]:
    """Every step with the variables of its job."""
    for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
        for step in job["steps"]:
            yield {name: str(value) for name, value in job.get("env", {}).items()}, step


def lines_of(path: Path) -> Iterator[tuple[dict[str, str], list[str]]]:
    for variables, step in steps_of(path):
        for words in commands_of(step.get("run", "")):
            yield variables, words


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_command_of_a_workflow_is_one_that_there_is(path: Path) -> None:
    programs = [check(words, variables) for variables, words in lines_of(path)]
    assert any(programs)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_have_a_major_version_and_the_token_may_only_read(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 90 and re.fullmatch(r"ubuntu-\d\d\.04", job["runs-on"])
    used = [step["uses"] for _variables, step in steps_of(path) if "uses" in step]
    assert used and all(re.fullmatch(r"actions/[a-z-]+@v\d+", name) for name in used)


def test_gate_runs_whole_and_files_that_are_named_exist() -> None:
    texts = {path.name: path.read_text(encoding="utf-8") for path in WORKFLOWS}
    assert "bash .ci/run" in texts["ci.yml"]
    for text in texts.values():
        for name in re.findall(r"(?<![\w/.])((?:docker|examples|tests|docs)/[\w./-]+)", text):
            assert (ROOT / name).exists(), name


def test_compose_workflow_starts_all_asks_every_service_and_cleans_up() -> None:
    path = ROOT / ".github" / "workflows" / "compose.yml"
    words = [words for _variables, words in lines_of(path)]
    variables = next(steps_of(path))[0]
    profiles = {name for service in load().values() for name in service.profiles}
    assert set(variables["COMPOSE_PROFILES"].split(",")) == profiles
    ours = {"COMPOSE_FILE", "COMPOSE_PROFILES"} | variables_of(BASE_FILE)
    assert set(variables) <= ours
    asked = [check_grpcurl(line[1:]) for line in words if line and line[0] == "grpcurl"]
    addresses = {address for address, _method, _request in asked}
    for address in addresses:
        methods = [method for at, method, _request in asked if at == address]
        assert "list" in methods and "grpc.health.v1.Health/Check" in methods
        assert any(method.startswith("looseleaf.v1.") for method in methods), address
    assert len(addresses) == 4
    assert words[-1] == ["docker", "compose", "down", "--volumes", "--timeout", "60"]
    last = [step for _variables, step in steps_of(path)][-2:]
    assert [step["if"] for step in last] == ["failure()", "always()"]
    assert any("exec" in line and "run" in line for line in words), "a notebook"


@pytest.mark.parametrize(
    "line",
    [
        "docker compose -f docker/compose.yaml up --bogus", "docker compose -f docker/other.yaml up",
        "docker compose -f docker/compose.yaml logs shop", "docker compose -f docker/compose.yaml --profile gpus up",
        "docker compose up", "looseleaf helth 127.0.0.1:7401", "grpcurl -plaintext 127.0.0.1:7409 list",
        "grpcurl -plaintext 127.0.0.1:7402 looseleaf.v1.SchedulerService/GetPools",
        "grpcurl -plaintext -d '{\"limt\": 1}' 127.0.0.1:7401 looseleaf.v1.CheckpointStoreService/ListSessions",
        "grpcurl -plaintext 127.0.0.1:7401 looseleaf.v1.SchedulerService/GetPool",
        "docker compose -f docker/compose.yaml exec lab looseleaf run a.ipynb --bogus",
        "GPU=1 docker compose -f docker/compose.yaml up", "wget x", "bash .ci/runs",
        "looseleaf-scheduler --lease-ttl 1",
    ],
)  # fmt: skip
def test_command_that_there_is_not_is_noticed(line: str) -> None:
    (words,) = commands_of(line)
    with pytest.raises((Exception, SystemExit)):
        check(words)
