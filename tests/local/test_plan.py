from __future__ import annotations

from pathlib import Path

import pytest

from looseleaf.config import ClusterConfig
from looseleaf.errors import InvalidArgument
from looseleaf.local.plan import (
    DAEMON_FIELDS,
    SERVICE_FIELDS,
    ClusterPlan,
    count_gpus,
    make_plan,
    resolve_devices,
)


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (folder / name).touch()
    return folder


def config(tmp_path: Path, **settings: object) -> ClusterConfig:
    return ClusterConfig(data=tmp_path / "d", **settings)  # type: ignore[arg-type]


def flag(command: list[str], name: str) -> str:
    return command[command.index(name) + 1]


@pytest.mark.parametrize(
    ("settings", "real", "decided"),
    [
        ({}, False, ("emulated", 1)),
        ({}, True, ("cuda", 2)),
        ({"gpus": 0}, True, ("none", 0)),
        ({"gpus": 1}, True, ("cuda", 1)),
        ({"gpus": 4}, False, ("emulated", 4)),
        ({"device": "emulated", "gpus": 8}, True, ("emulated", 8)),
        ({"device": "none", "gpus": 8}, True, ("none", 0)),
    ],
)
def test_devices_are_resolved_from_settings_and_machine(
    tmp_path: Path, dev: Path, settings: dict[str, object], real: bool, decided: tuple[str, int],
) -> None:
    assert resolve_devices(config(tmp_path, **settings), dev if real else tmp_path / "none") == decided


def test_gpus_that_are_not_there_or_shared_by_hosts_are_refused(tmp_path: Path, dev: Path) -> None:
    assert count_gpus(dev) == 2
    with pytest.raises(InvalidArgument, match="NO_GPU_FOUND"):
        resolve_devices(config(tmp_path, device="cuda", gpus=3), dev)
    with pytest.raises(InvalidArgument, match="NO_GPU_FOUND"):
        resolve_devices(config(tmp_path, device="cuda"), tmp_path / "none")
    with pytest.raises(InvalidArgument, match="GPUS_NOT_SHAREABLE"):
        resolve_devices(config(tmp_path, device="cuda", hosts=2), dev)


def test_plan_wires_services_in_start_order_and_survives_json(tmp_path: Path) -> None:
    plan = make_plan(config(tmp_path, hosts=2, gpus=3, device="emulated", emulated_delays=False))
    assert [spec.name for spec in plan.services] == [
        "checkpoint-store", "scheduler", "frontend", "daemon-h0", "daemon-h1"]
    assert plan.host_ids == ["h0", "h1"]
    store, scheduler, frontend, _h0, h1 = plan.services
    assert store.address == f"unix:{tmp_path}/d/run/checkpoint-store.sock"
    assert flag(frontend.command, "--scheduler") == scheduler.address
    assert flag(h1.command, "--kernel-socket") == f"{tmp_path}/d/run/kernel-h1.sock" == plan.kernel_sockets["h1"]
    assert flag(h1.command, "--emulated-delays") == "off" and not plan.emulated_delays
    assert flag(h1.command, "--gpus") == "3"
    assert flag(store.command, "--data") == f"{tmp_path}/d/store"
    assert ClusterPlan.from_json(plan.to_json()) == plan


def test_hosts_beyond_those_of_the_start_stand_by_and_the_scheduler_knows_whom_to_ask(tmp_path: Path) -> None:
    plan = make_plan(config(tmp_path, hosts=1, hosts_max=3, gpus=2, device="emulated", host_boot_s=1.5))
    assert (plan.host_ids, plan.standby, plan.host_boot_s) == (["h0"], ["h1", "h2"], 1.5)
    assert [spec.host_id for spec in plan.services if spec.host_id] == ["h0", "h1", "h2"]
    scheduler = next(spec for spec in plan.services if spec.name == "scheduler")
    assert flag(scheduler.command, "--hosts-socket") == plan.hosts_socket
    assert (flag(scheduler.command, "--hosts-min"), flag(scheduler.command, "--hosts-max")) == ("1", "3")
    assert flag(scheduler.command, "--gpus-per-host") == "2"
    fixed = make_plan(config(tmp_path, hosts=2, hosts_max=1, device="emulated"))
    assert fixed.standby == []
    assert not any("--hosts-socket" in spec.command for spec in fixed.services)


def test_tcp_plan_has_distinct_loopback_ports(tmp_path: Path) -> None:
    plan = make_plan(config(tmp_path, tcp=True, hosts=2, device="none"))
    addresses = [spec.address for spec in plan.services]
    assert len(set(addresses)) == 5
    assert all(address.startswith("127.0.0.1:") for address in addresses)


def test_run_folder_too_long_for_sockets_is_refused_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="SOCKET_PATH_TOO_LONG"):
        make_plan(ClusterConfig(data=tmp_path / ("x" * 100), device="none"))


def test_commands_carry_only_flags_that_the_services_know(tmp_path: Path) -> None:
    from looseleaf.config import DaemonConfig, FrontendConfig, SchedulerConfig, ServiceConfig, StoreConfig
    from looseleaf.rpc.service_main import flag_parser

    types: list[type[ServiceConfig]] = [StoreConfig, SchedulerConfig, FrontendConfig, DaemonConfig]
    for spec, config_type in zip(make_plan(config(tmp_path, device="none")).services, types, strict=True):
        flags = vars(flag_parser(spec.name, config_type).parse_args(spec.command[3:]))
        config_type(**{name: text for name, text in flags.items()
                       if text is not None and not name.startswith("lifeline")})


def test_what_the_cluster_shares_with_services_has_one_default_and_is_handed_on_only_if_chosen(tmp_path: Path) -> None:
    from looseleaf.config import DaemonConfig, StoreConfig

    cluster = ClusterConfig.model_fields
    for names, model in ((SERVICE_FIELDS, StoreConfig), (DAEMON_FIELDS, DaemonConfig)):
        for name in names:
            assert cluster[name].default == model.model_fields[name].default, name
            assert cluster[name].metadata == model.model_fields[name].metadata, name
    # Every shared field is listed, but those that decide what the cluster is.
    own = {"data", "run_dir", "gpus", "device", "emulated_delays"}
    assert cluster.keys() & DaemonConfig.model_fields.keys() - own == {*SERVICE_FIELDS, *DAEMON_FIELDS}
    flags = {"--" + name.replace("_", "-") for name in (*SERVICE_FIELDS, *DAEMON_FIELDS)}
    plain = make_plan(config(tmp_path, device="none")).services[-1].command
    assert not flags & set(plain)
    chosen: dict[str, object] = {name: cluster[name].default for name in (*SERVICE_FIELDS, *DAEMON_FIELDS)}
    told = make_plan(config(tmp_path, device="none", **{**chosen, "keep_warm_s": 7})).services[-1].command
    assert flags <= set(told) and flag(told, "--keep-warm-s") == "7.0"
