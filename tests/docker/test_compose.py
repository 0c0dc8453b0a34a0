"""The compose files name only commands, flags, variables, ports and folders that the code has; no engine is needed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_lines import parse_looseleaf
from compose_model import (
    BASE_FILE,
    DIRECT_VARIABLES,
    DOCKER,
    GPU_FILE,
    PEER_FIELDS,
    ROOT,
    ComposeService,
    duration_s,
    load,
    scripts,
    size_bytes,
    top_level,
    variables_of,
)
from dockerfile_model import read

from looseleaf.ids import check_id
from looseleaf.rpc.address import check_listen, dialled_address, host_port
from looseleaf.rpc.service_main import LIFELINE_EXTRA_S

FILES = [(BASE_FILE,), (BASE_FILE, GPU_FILE)]
# A service's one limit beside shutdown_grace_s: what an orderly stop may take beyond it.
STOP_EXTRA_S = LIFELINE_EXTRA_S
SUPPORTED_KEYS = {
    "build", "cap_drop", "command", "depends_on", "deploy", "environment", "healthcheck", "image", "init", "logging",
    "networks", "ports", "profiles", "read_only", "restart", "security_opt", "shm_size", "stop_grace_period", "tmpfs",
    "volumes",
}  # fmt: skip


@pytest.fixture(params=FILES, ids=["virtual", "gpu"])
def services(request: pytest.FixtureRequest) -> dict[str, ComposeService]:
    return load(*request.param)


def hosts_of(services: dict[str, ComposeService]) -> list[ComposeService]:
    return [service for service in services.values() if service.raw["command"][0].endswith(("daemon", "lab"))]


def image_env(service: ComposeService) -> dict[str, str]:
    target = service.raw["build"]["target"]
    return {name: value for stage in read().lineage(target) for name, value in stage.env.items()}


def walk(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, list):
        for item in value:
            yield from walk(item)
    elif isinstance(value, str):
        yield value


def test_every_service_has_only_keys_that_a_test_looks_at(services: dict[str, ComposeService]) -> None:
    for service in services.values():
        assert set(service.raw) <= SUPPORTED_KEYS, service.name


def test_every_program_is_installed_or_copied_into_the_image(services: dict[str, ComposeService]) -> None:
    for service in services.values():
        stages = read().lineage(service.raw["build"]["target"])
        copied = {Path(text.split()[-1]).name for stage in stages for text in stage.texts("COPY")}
        assert service.command[0] in {*scripts(), *copied}, service.name


def test_lab_script_starts_the_daemon_and_jupyterlab() -> None:
    words = (DOCKER / "lab.sh").read_text(encoding="utf-8").split()
    assert "looseleaf-worker-daemon" in words and "looseleaf-worker-daemon" in scripts()
    assert words[words.index("jupyter") + 1] == "lab" and '"$@"' in words


def test_every_variable_is_a_setting_of_the_program_that_gets_it(services: dict[str, ComposeService]) -> None:
    for service in services.values():
        for name in {**image_env(service), **service.environment}:
            if name.startswith("LOOSELEAF_") and name not in DIRECT_VARIABLES:
                assert service.setting_of(name), f"{service.name}: {name} sets nothing"


def test_unknown_variable_or_flag_is_noticed() -> None:
    raw = {"command": ["looseleaf-scheduler"], "environment": {"LOOSELEAF_SCHEDULER_LEASE_TTL": "1"}}
    assert ComposeService("scheduler", raw).setting_of("LOOSELEAF_SCHEDULER_LEASE_TTL") is None
    with pytest.raises(SystemExit):
        _ = ComposeService("scheduler", {"command": ["looseleaf-scheduler", "--lease-ttl", "1"]}).config


def test_settings_are_accepted_and_others_can_dial_every_service(services: dict[str, ComposeService]) -> None:
    for service in services.values():
        config = service.config
        check_listen(config.listen, allow_remote_tcp=config.allow_remote_tcp)
        check_listen(f"{config.metrics_host}:{config.metrics_port}", allow_remote_tcp=config.allow_remote_tcp)
        assert host_port(config.listen)[0] == "0.0.0.0", "other containers must reach it"
    for host in hosts_of(services):
        address = dialled_address(host.config.listen, host.config.advertise)
        assert host_port(address) == (host.name, host_port(host.config.listen)[1])


def test_every_peer_address_is_a_service_at_the_port_on_which_it_listens(services: dict[str, ComposeService]) -> None:
    by_kind = {"store": "checkpoint-store", "scheduler": "scheduler", "frontend": "frontend"}
    dialled = 0
    for service in services.values():
        for field in PEER_FIELDS:
            if (address := getattr(service.config, field, None)) is None:
                continue
            name, port = host_port(address)
            assert name == by_kind[field] and port == host_port(services[name].config.listen)[1]
            assert services[name].raw["networks"] == service.raw["networks"]
            # It is there before the one that dials it starts.
            assert service.raw["depends_on"][name] == {"condition": "service_healthy"}
            dialled += 1
    assert dialled >= 8


def test_healthchecks_ask_the_service_itself_in_words_that_it_takes(services: dict[str, ComposeService]) -> None:
    for service in services.values():
        check = service.raw["healthcheck"]
        assert check["test"][:2] == ["CMD", "looseleaf"]
        verb, given = parse_looseleaf(check["test"][2:])
        assert verb == "health"
        assert host_port(given["address"]) == ("127.0.0.1", host_port(service.config.listen)[1]), service.name
        assert given["timeout_s"] < duration_s(check["timeout"])
        assert duration_s(check["start_interval"]) < duration_s(check["interval"])


def test_dependencies_have_no_cycle_and_need_no_profile_that_is_off(services: dict[str, ComposeService]) -> None:
    needs = {name: set(service.raw.get("depends_on", {})) for name, service in services.items()}
    while needs:
        free = {name for name, needed in needs.items() if not needed & needs.keys()}
        assert free, f"these wait for each other: {needs}"
        for name in free:
            for needed in needs.pop(name):
                assert services[needed].profiles <= services[name].profiles


def test_published_ports_are_on_loopback_unique_and_served(services: dict[str, ComposeService]) -> None:
    published = [(service, port) for service in services.values() for port in service.ports]
    assert len({host for _service, (_address, host, _inside) in published}) == len(published)
    for service, (address, _host, inside) in published:
        assert address == "127.0.0.1", "nothing here is encrypted or, but for JupyterLab, authenticated"
        served = {host_port(service.config.listen)[1], service.config.metrics_port}
        served |= {int(word.removeprefix("--port=")) for word in service.command if word.startswith("--port=")}
        assert inside in served, service.name


def test_a_stop_gets_more_time_than_the_service_takes(services: dict[str, ComposeService]) -> None:
    for service in services.values():
        wanted_s = service.config.shutdown_grace_s + STOP_EXTRA_S
        assert duration_s(service.raw["stop_grace_period"]) > wanted_s, service.name
    assert duration_s(services["lab"].raw["stop_grace_period"]) >= 2 * wanted_s, "JupyterLab first, then its daemon"


def test_everything_that_a_service_writes_lies_in_a_volume_or_in_memory(services: dict[str, ComposeService]) -> None:
    for service in services.values():
        assert service.raw["read_only"] is True
        written = ["/tmp"]
        if service.name in ("checkpoint-store", "scheduler"):
            written.append(str(service.config.data))
        if service in hosts_of(services):
            written += [str(service.config.data), str(service.config.kernel_socket), "/home/looseleaf"]
        for path in written:
            assert any(Path(path).is_relative_to(folder) for folder in service.mounts), (service.name, path)


def test_named_volumes_are_declared_used_and_owned_by_the_images_user(services: dict[str, ComposeService]) -> None:
    used = {source for service in services.values() for source in service.mounts.values() if ":" not in source}
    assert used == set(top_level()["volumes"])
    run = read().stages["run"]
    owned = " ".join(run.texts("RUN"))
    for service in services.values():
        for folder, source in service.mounts.items():
            if not source.startswith("tmpfs:"):
                # A new volume takes over the owner of the image's folder.
                assert folder == "/home/looseleaf" or folder in owned, folder
    # State outlives its container: what the two with a database write is no tmpfs.
    for name in ("checkpoint-store", "scheduler"):
        assert services[name].mounts["/var/lib/looseleaf"] == {"checkpoint-store": "store"}.get(name, name)


def test_kernel_sockets_lie_in_a_private_folder_of_the_images_user(services: dict[str, ComposeService]) -> None:
    uid, _, gid = read().stages["run"].user.partition(":")
    for host in hosts_of(services):
        assert image_env(host)["LOOSELEAF_RUN_DIR"] == "/run/looseleaf" == str(host.config.kernel_socket.parent)
        assert host.mounts["/run/looseleaf"] == f"tmpfs:mode=0700,uid={uid},gid={gid}"


def test_containers_are_hardened_limited_and_reaped(services: dict[str, ComposeService]) -> None:
    for service in services.values():
        raw = service.raw
        assert raw["cap_drop"] == ["ALL"] and raw["security_opt"] == ["no-new-privileges:true"] and raw["init"] is True
        assert raw["restart"] == "unless-stopped" and raw["logging"]["options"]["max-size"]
        assert size_bytes(service.limits["memory"]) and service.limits["pids"]


def test_memory_that_a_host_may_fill_fits_its_limit(services: dict[str, ComposeService]) -> None:
    for host in hosts_of(services):
        config = host.config
        fixed = config.arena_bytes + size_bytes(host.raw["shm_size"]) + 4 * config.ring_bytes
        assert fixed < size_bytes(host.limits["memory"]), "nothing would be left for kernels and workers"


def test_hosts_have_ids_of_their_own_and_one_kind_of_device(services: dict[str, ComposeService]) -> None:
    hosts = hosts_of(services)
    ids = [check_id("host", host.config.host_id) for host in hosts]
    assert len(set(ids)) == len(ids) == 3
    assert len({host.config.device for host in hosts}) == 1
    for host in hosts:
        assert host.config.gpus or host.config.cell_gpus == 1, f"{host.name} lends none, and its cells would see none"
        # What two hosts must have alike, so that a cell's result does not depend on where it ran.
        assert host.config.hash_seed == hosts[0].config.hash_seed
        assert host.mounts["/home/looseleaf"] == "home"


def test_base_file_needs_no_gpu_and_the_other_lends_what_it_reserves() -> None:
    assert not any("reservations" in service.raw["deploy"]["resources"] for service in load().values())
    assert all(host.config.device == "emulated" for host in hosts_of(load()))
    assert set(top_level(GPU_FILE)["services"]) <= set(load())
    for count in ("1", "8"):
        services = load(BASE_FILE, GPU_FILE, variables={"GPUS": count})
        reserved = {
            name: service.raw["deploy"]["resources"]["reservations"]["devices"]
            for name, service in services.items() if "reservations" in service.raw["deploy"]["resources"]
        }  # fmt: skip
        assert reserved == {"worker-daemon": [{"driver": "nvidia", "count": count, "capabilities": ["gpu"]}]}
        lent = {host.name: host.config.gpus for host in hosts_of(services)}
        assert lent == {"worker-daemon": int(count), "worker-daemon-2": 0, "lab": 0}
        # The limits of the first file still hold.
        assert services["worker-daemon"].limits["memory"]


def test_builds_name_files_stages_and_arguments_that_exist(services: dict[str, ComposeService]) -> None:
    images: dict[str, str] = {}
    for service in services.values():
        build = service.raw["build"]
        context = (DOCKER / build["context"]).resolve()
        assert context == ROOT and (context / build["dockerfile"]).is_file()
        lineage = read().lineage(build["target"])
        known = {name for stage in (*lineage, read().stages["build"]) for name in stage.args} | set(read().args)
        assert set(build["args"]) <= known
        # One image, one target.
        assert images.setdefault(service.raw["image"], build["target"]) == build["target"]


def test_every_variable_of_the_files_is_explained_in_them() -> None:
    for file_name in (BASE_FILE, GPU_FILE):
        text = (DOCKER / file_name).read_text(encoding="utf-8")
        comments = "\n".join(line for line in text.splitlines() if line.lstrip().startswith("#"))
        for name in variables_of(file_name):
            assert name in comments, f"{file_name} does not say what {name} is"
            # A setting of ours with this name would be changed by accident.
            assert not name.startswith("LOOSELEAF_")


def test_no_file_has_a_secret_or_leaves_the_private_network() -> None:
    for file_name in (BASE_FILE, GPU_FILE):
        raw = top_level(file_name)
        for service in raw["services"].values():
            assert not {"network_mode", "privileged", "pid", "ipc", "container_name", "cap_add"} & set(service)
        assert not any(word in text.lower() for text in walk(raw) for word in ("password", "docker.sock"))
    assert top_level()["networks"] == {"pool": None}
    assert json.dumps(load()["lab"].environment["JUPYTER_TOKEN"]) == '""', "JupyterLab makes a token of its own"
