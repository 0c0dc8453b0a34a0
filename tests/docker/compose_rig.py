"""The services of compose.yaml as processes of this machine, where no container engine runs.

Each container is a process with the container's command, its environment and nothing else of ours. Three things are
mapped: a service's name and 0.0.0.0 become a loopback address of its own, so that every call between two services goes
over TCP between two addresses; a mount becomes a folder under the rig's, shared where the volume is; the program is the
one of `bin_folder`. Health is asked for by the files' own healthcheck commands.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from compose_model import BASE_FILE, DOCKER, ComposeService, duration_s, load

# A container runs none of the machine's other programs of ours.
PASSED_VARIABLES: Final = ("LANG", "LC_ALL", "OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# What the image sets, see the Dockerfile.
IMAGE_ENVIRONMENT: Final = {"LOOSELEAF_RUN_DIR": "/run/looseleaf", "HOME": "/home/looseleaf"}
THREADS_ENVIRONMENT: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
START_TIMEOUT_S: Final = 120.0
_ADDRESS = re.compile(r"([a-z0-9.-]+):(\d+)")


class ComposeRig:
    """A context manager: inside it, all services of `names` are healthy; after it, none of their processes is left."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        files: Sequence[str] = (BASE_FILE,),
        bin_folder: Path = Path(sys.executable).parent,
        extra_programs: Path | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        everything = load(*files, variables=variables)
        self.services = {name: service for name, service in everything.items() if name in names}
        # A short folder: sockets' paths have a limit.
        self.folder = Path(tempfile.mkdtemp(prefix="ll-"))
        self._programs = [*([str(extra_programs)] if extra_programs else []), str(bin_folder), str(self.folder / "bin")]
        network = f"127.{secrets.randbelow(200) + 20}.{secrets.randbelow(250) + 1}"
        self._hosts = {name: f"{network}.{index}" for index, name in enumerate(everything, start=2)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        try:
            (self.folder / "bin").mkdir()
            shutil.copy(DOCKER / "lab.sh", self.folder / "bin" / "looseleaf-lab")
            self._let_root_run_jupyter()
            healthy: set[str] = set()
            while waiting := [name for name in self.services if name not in healthy]:
                # As compose does: at once, whatever needs nothing that is not healthy yet.
                ready = [name for name in waiting if self._needs(name) <= healthy]
                assert ready, f"these wait for each other or for services that do not run: {waiting}"
                for name in ready:
                    self._start(name)
                for name in ready:
                    self._wait_healthy(name)
                healthy.update(ready)
            return self
        except BaseException:
            self.close()
            raise

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Stops all, last first, each within its stop_grace_period; raises AssertionError if one needed a kill."""
        killed = [name for name in reversed(self._processes.copy()) if not self._ended_in_time(name)]
        shutil.rmtree(self.folder, ignore_errors=True)
        assert not killed, f"these services did not end within their stop_grace_period: {killed}"

    def stop(self, *names: str) -> None:
        """As `docker compose stop NAMES`."""
        for name in names:
            assert self._ended_in_time(name), f"{name} did not end within its stop_grace_period"

    def start(self, *names: str) -> None:
        """As `docker compose start NAMES`, until they are healthy."""
        for name in names:
            self._start(name)
        for name in names:
            self._wait_healthy(name)

    def address(self, name: str) -> str:
        """The gRPC address of the service."""
        return self.mapped(name, self.services[name].config.listen)

    def mapped(self, name: str, text: str) -> str:
        """A setting or argument of the service `name` as its process here needs it."""
        text = _ADDRESS.sub(lambda match: self._mapped_address(name, match), text)
        if text == "0.0.0.0":
            return self._hosts[name]
        return str(self.path(name, text)) if text.startswith("/") else text

    def unmapped(self, text: str) -> str:
        """Loopback addresses of the rig as the names they stand for."""
        for name, host in self._hosts.items():
            text = re.sub(rf"(?<![\d.]){re.escape(host)}(?![\d.])", name, text)
        return text

    def path(self, name: str, container_path: str) -> Path:
        """Where a path of the container `name` is here."""
        for folder, source in sorted(self.services[name].mounts.items(), key=lambda item: -len(item[0])):
            if container_path == folder or container_path.startswith(folder + "/"):
                place = f"tmpfs/{name}{folder}" if source.startswith("tmpfs:") else f"volumes/{source}"
                found = self.folder / place
                found.mkdir(mode=0o700, parents=True, exist_ok=True)
                return Path(str(found) + container_path[len(folder) :])
        return self.folder / "rootfs" / container_path.lstrip("/")

    def run(self, name: str, command: Sequence[str], timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """As `docker compose exec NAME COMMAND`; paths in the command are the container's."""
        return subprocess.run(
            [self.mapped(name, word) for word in command], env=self.environment(name), cwd=self._home(name),
            capture_output=True, text=True, timeout=timeout_s, check=False,
        )  # fmt: skip

    def environment(self, name: str) -> dict[str, str]:
        """The variables of the container `name`, mapped."""
        service: ComposeService = self.services[name]
        passed = {variable: os.environ[variable] for variable in PASSED_VARIABLES if variable in os.environ}
        inside = {**IMAGE_ENVIRONMENT, **service.environment}
        return {
            **passed, **THREADS_ENVIRONMENT,
            "PATH": os.pathsep.join([*self._programs, "/usr/local/bin", "/usr/bin", "/bin"]),
            "TMPDIR": self.mapped(name, "/tmp"),
            **{variable: self.mapped(name, value) for variable, value in inside.items()},
        }  # fmt: skip

    def log(self, name: str) -> str:
        """What the container has printed."""
        return (self.folder / f"{name}.log").read_text(encoding="utf-8", errors="replace")

    def _zygote_log(self, name: str) -> str:
        folder = self.path(name, "/tmp") / "looseleaf-daemon" / "logs"
        return "".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("zygote-*.log"))

    def _let_root_run_jupyter(self) -> None:
        """The image's user is nobody special; this machine's may be root, for whom JupyterLab does not start."""
        for name in self.services:
            if os.geteuid() == 0 and name == "lab":
                folder = self._home(name) / ".jupyter"
                folder.mkdir(exist_ok=True)
                (folder / "jupyter_server_config.json").write_text('{"ServerApp": {"allow_root": true}}')

    def _home(self, name: str) -> Path:
        home = self.path(name, IMAGE_ENVIRONMENT["HOME"])
        home.mkdir(parents=True, exist_ok=True)
        return home

    def _mapped_address(self, name: str, match: re.Match[str]) -> str:
        host, port = match[1], match[2]
        if host in ("0.0.0.0", "127.0.0.1"):
            return f"{self._hosts[name]}:{port}"
        return f"{self._hosts[host]}:{port}" if host in self._hosts else match[0]

    def _start(self, name: str) -> None:
        command = [self.mapped(name, word) for word in self.services[name].command]
        with open(self.folder / f"{name}.log", "ab") as log:
            self._processes[name] = subprocess.Popen(
                command, env=self.environment(name), cwd=self._home(name), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip

    def _ended_in_time(self, name: str) -> bool:
        process = self._processes.pop(name)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(duration_s(self.services[name].raw["stop_grace_period"]))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return False
        return True

    def _needs(self, name: str) -> set[str]:
        return set(self.services[name].raw.get("depends_on", {}))

    def _wait_healthy(self, name: str) -> None:
        check = self.services[name].raw["healthcheck"]["test"]
        assert check[0] == "CMD"
        limit_s = time.monotonic() + START_TIMEOUT_S
        while self.run(name, check[1:]).returncode != 0 or self._processes[name].poll() is not None:
            ended = self._processes[name].poll()
            assert ended is None, f"{name} ended with {ended}:\n{self.log(name)[-4000:]}{self._zygote_log(name)}"
            assert time.monotonic() < limit_s, f"{name} is not healthy:\n{self.log(name)[-4000:]}"
