"""The compose files name only commands and flags that the code has; no engine is needed to see that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from looseleaf.config import DaemonConfig, FrontendConfig, SchedulerConfig, ServiceConfig, StoreConfig
from looseleaf.rpc.service_main import flag_parser

FOLDER = Path(__file__).resolve().parents[2] / "docker"
CONFIGS: dict[str, type[ServiceConfig]] = {
    "looseleaf-checkpoint-store": StoreConfig,
    "looseleaf-scheduler": SchedulerConfig,
    "looseleaf-frontend": FrontendConfig,
    "looseleaf-worker-daemon": DaemonConfig,
}


def services(file_name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / file_name).read_text(encoding="utf-8"))["services"]
    return found


def config_of(command: list[str]) -> ServiceConfig:
    model = CONFIGS[command[0]]
    flags = vars(flag_parser(command[0], model).parse_args(command[1:]))
    return model(**{key: value for key, value in flags.items() if value is not None and key in model.model_fields})


@pytest.mark.parametrize("file_name", ["compose.yaml", "compose.gpu.yaml"])
def test_every_command_parses_as_the_service_would(file_name: str) -> None:
    for name, service in services(file_name).items():
        assert config_of(service["command"]).listen.startswith("127.0.0.1:"), name


def test_services_find_each_other_at_the_addresses_they_listen_on() -> None:
    commands = {name: config_of(service["command"]) for name, service in services("compose.yaml").items()}
    listening = {config.listen for config in commands.values()}
    assert len(listening) == 4
    for name in ("frontend", "worker-daemon"):
        config: Any = commands[name]
        assert config.store == commands["checkpoint-store"].listen and config.scheduler == commands["scheduler"].listen


def test_every_service_is_checked_at_its_own_address_and_waits_for_what_it_needs() -> None:
    found = services("compose.yaml")
    for name, service in found.items():
        address = config_of(service["command"]).listen
        assert service["healthcheck"]["test"] == ["CMD", "looseleaf", "health", address], name
        assert service["init"] is True and "container_name" not in service
        for needed, condition in service.get("depends_on", {}).items():
            assert needed in found and condition == {"condition": "service_healthy"}


def test_gpu_file_only_changes_services_of_the_first() -> None:
    assert set(services("compose.gpu.yaml")) <= set(services("compose.yaml"))
    devices = services("compose.gpu.yaml")["worker-daemon"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices == [{"driver": "nvidia", "count": "all", "capabilities": ["gpu"]}]
