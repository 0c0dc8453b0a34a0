from __future__ import annotations

import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from looseleaf.errors import InvalidArgument, NotFound, PreconditionFailed
from looseleaf.rpc.address import dialled_address
from looseleaf.rpc.client import open_channel
from looseleaf.rpc.server import RpcServer

LIMIT_S = 20.0
HAS_IPV6 = Path("/proc/net/if_inet6").exists()


async def health_of(channel: Any, name: str) -> int:
    stub = health_pb2_grpc.HealthStub(channel)
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout_s=LIMIT_S)
    return int(answer.status)


async def test_health_follows_readiness_for_the_whole_and_each_service(rig: Any) -> None:
    names = ["", "looseleaf.v1.SchedulerService", "looseleaf.v1.WorkerDaemonService"]
    assert [await health_of(rig.channel, name) for name in names] == [health_pb2.HealthCheckResponse.SERVING] * 3
    await rig.server.set_ready(False)
    assert [await health_of(rig.channel, name) for name in names] == [health_pb2.HealthCheckResponse.NOT_SERVING] * 3
    with pytest.raises(NotFound):
        await health_of(rig.channel, "looseleaf.v1.NoSuchService")


async def test_socket_is_private_and_gone_after_the_stop(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    server = RpcServer(f"unix:{folder}/a.sock")
    server.bind()
    await server.start([])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "a.sock").stat().st_mode) == 0o600
    await server.stop(0)
    assert list(folder.iterdir()) == []
    await server.stop(0)


async def test_stale_socket_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    server = RpcServer(f"unix:{path}")
    server.bind()
    await server.start([])
    async with open_channel(server.address, peer="store") as channel:
        assert await health_of(channel, "") == health_pb2.HealthCheckResponse.NOT_SERVING
    await server.stop(0)


async def test_live_socket_is_refused_and_left_alone(rig: Any) -> None:
    with pytest.raises(PreconditionFailed, match="ADDRESS_IN_USE"):
        RpcServer(rig.server.address).bind()
    assert await health_of(rig.channel, "") == health_pb2.HealthCheckResponse.SERVING


async def test_ordinary_file_at_the_address_is_refused_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    path.write_text("mine")
    with pytest.raises(PreconditionFailed, match="ADDRESS_IN_USE"):
        RpcServer(f"unix:{path}").bind()
    assert path.read_text() == "mine"


async def test_folder_that_others_can_write_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PreconditionFailed, match="SOCKET_FOLDER_UNSAFE"):
        RpcServer(f"unix:{folder}/a.sock").bind()


async def test_socket_put_in_our_place_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "a.sock"
    server = RpcServer(f"unix:{path}")
    server.bind()
    await server.start([])
    path.unlink()
    path.write_text("another's")
    server.remove_socket()
    assert path.exists()
    await server.stop(0)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
async def test_tcp_port_zero_gives_the_real_port_and_a_taken_one_is_refused(host: str) -> None:
    if host == "[::1]" and not HAS_IPV6:
        pytest.skip("this machine has no IPv6")
    server = RpcServer(f"{host}:0")
    address = server.bind()
    await server.start([])
    assert address.startswith(f"{host}:")
    assert not address.endswith(":0")
    async with open_channel(address, peer="store") as channel:
        assert await health_of(channel, "") == health_pb2.HealthCheckResponse.NOT_SERVING
    with pytest.raises(PreconditionFailed, match="ADDRESS_IN_USE"):
        RpcServer(address).bind()
    await server.stop(0)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "10.1.2.3:7400", "example.org:7400"])
async def test_tcp_beyond_loopback_is_refused_unless_allowed(listen: str) -> None:
    with pytest.raises(InvalidArgument, match="ADDRESS_NOT_LOOPBACK"):
        RpcServer(listen)
    await RpcServer(listen, allow_remote_tcp=True).stop(0)


@pytest.mark.parametrize(
    ("listen", "reason"),
    [
        ("unix:relative.sock", "ADDRESS_MALFORMED"), ("nonsense", "ADDRESS_MALFORMED"), (":7400", "ADDRESS_MALFORMED"),
        ("127.0.0.1:99999", "ADDRESS_MALFORMED"), ("unix:/" + "x" * 107, "SOCKET_PATH_TOO_LONG"),
    ],
)
async def test_malformed_address_is_refused_with_its_reason(listen: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=reason):
        RpcServer(listen)


@pytest.mark.parametrize(
    ("bound", "advertised", "dialled"),
    [
        ("127.0.0.1:7404", "", "127.0.0.1:7404"), ("0.0.0.0:7404", "host-1:7404", "host-1:7404"),
        ("[::]:7404", "host-1:0", "host-1:7404"), ("unix:/run/d.sock", "", "unix:/run/d.sock"),
    ],
)
def test_address_that_others_dial_is_the_advertised_one_or_the_bound_one(
    bound: str, advertised: str, dialled: str
) -> None:
    assert dialled_address(bound, advertised) == dialled


@pytest.mark.parametrize(("bound", "advertised"), [("0.0.0.0:7404", ""), ("[::]:7404", ""), ("h:1", "0.0.0.0:7404")])
def test_address_of_every_interface_is_not_advertised(bound: str, advertised: str) -> None:
    with pytest.raises(InvalidArgument, match=r"ADDRESS_NOT_DIALABLE.*--advertise"):
        dialled_address(bound, advertised)
