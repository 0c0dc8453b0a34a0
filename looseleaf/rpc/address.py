"""gRPC addresses: which are allowed, and socket files that are safe and never stale."""

from __future__ import annotations

import fcntl
import ipaddress
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from looseleaf.errors import InvalidArgument, PreconditionFailed

# sun_path of sockaddr_un holds 108 bytes with the closing zero.
SOCKET_PATH_BYTES_MAX: Final = 107
CONNECT_TIMEOUT_S: Final = 1.0


def socket_path(address: str) -> Path | None:
    """The socket file of `unix:/path`, or None for TCP; raises InvalidArgument `ADDRESS_MALFORMED`."""
    if address.startswith("unix:"):
        path = address.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
        if not path.startswith("/"):
            raise InvalidArgument("ADDRESS_MALFORMED", f"{address!r}: a Unix address is unix:/absolute/path")
        if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
            raise InvalidArgument(
                "SOCKET_PATH_TOO_LONG",
                f"{path} has more than {SOCKET_PATH_BYTES_MAX} bytes, which Linux does not allow for a socket: "
                "choose a shorter folder with --run-dir, with --data of `looseleaf up`, or with LOOSELEAF_DATA and "
                "LOOSELEAF_RUN_DIR together",
            )
        return Path(path)
    host_port(address)
    return None


def host_port(address: str) -> tuple[str, int]:
    """Host, without the brackets of IPv6, and port of a TCP address; raises InvalidArgument `ADDRESS_MALFORMED`."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise InvalidArgument("ADDRESS_MALFORMED", f"{address!r} is neither unix:/absolute/path nor host:port")
    return host.strip("[]"), int(port)


def check_listen(address: str, *, allow_remote_tcp: bool) -> None:
    """Refuses a TCP address that other machines can reach, unless it is allowed: calls are not encrypted."""
    if socket_path(address) is not None:
        return
    host, _port = host_port(address)
    if not allow_remote_tcp and not _is_loopback(host):
        raise InvalidArgument(
            "ADDRESS_NOT_LOOPBACK",
            f"{address} can be reached from other machines, and calls are neither encrypted nor authenticated: "
            "listen on 127.0.0.1 or a Unix socket, or pass --allow-remote-tcp on",
        )


def dialled_address(bound: str, advertised: str) -> str:
    """Where others reach a server that listens on `bound`: `advertised`, with the bound port for port 0, else `bound`.

    Raises InvalidArgument `ADDRESS_NOT_DIALABLE` if that is an address of every interface, such as 0.0.0.0.
    """
    address = advertised or bound
    if socket_path(address) is not None:
        return address
    host, port = host_port(address)
    if host in ("0.0.0.0", "::"):
        raise InvalidArgument(
            "ADDRESS_NOT_DIALABLE",
            f"{address} is no address that other hosts can dial: pass --advertise NAME:PORT with this host's name",
        )
    if port == 0 and socket_path(bound) is None:
        return f"{address.rpartition(':')[0]}:{host_port(bound)[1]}"
    return address


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@contextmanager
def claimed_socket(path: Path) -> Iterator[None]:
    """Around the bind of `path`: makes its folder (0700), removes a dead server's file, refuses a live one's.

    The folder is locked meanwhile, so that two servers that start together cannot both think the file is stale.
    Raises PreconditionFailed `ADDRESS_IN_USE` or `SOCKET_FOLDER_UNSAFE`.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_folder(path.parent)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        _remove_stale(path)
        umask = os.umask(0o177)
        try:
            yield
        finally:
            os.umask(umask)
    finally:
        os.close(folder)


def is_listening(path: Path) -> bool:
    """Whether some process accepts connections on the socket file."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(CONNECT_TIMEOUT_S)
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:
            # A full backlog or a missing permission: somebody is there.
            return True
    return True


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        text = f"{path} exists and is not a socket: move it away or listen elsewhere"
        raise PreconditionFailed("ADDRESS_IN_USE", text)
    if is_listening(path):
        raise PreconditionFailed(
            "ADDRESS_IN_USE", f"another process serves {path}: stop it (`looseleaf down`) or listen elsewhere")
    path.unlink()


def _check_folder(folder: Path) -> None:
    found = folder.stat()
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o022:
        raise PreconditionFailed(
            "SOCKET_FOLDER_UNSAFE",
            f"other users can put files into {folder}: `chmod 700 {folder}` or choose another with --run-dir",
        )
