"""Commands in documents and workflows: found, split into words, and checked against the code."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Sequence
from typing import Any, Final

from command_lines import parse_looseleaf
from compose_model import BASE_FILE, GPU_FILE, ROOT, load, scripts, variables_of
from google.protobuf import descriptor_pool, json_format, message_factory
from grpc_health.v1 import health_pb2

from looseleaf.rpc.service_main import flag_parser
from looseleaf.v1 import checkpoint_store_pb2, frontend_pb2, scheduler_pb2, worker_daemon_pb2

# Imported so that the default pool knows their services.
PROTOS: Final = (checkpoint_store_pb2, frontend_pb2, scheduler_pb2, worker_daemon_pb2, health_pb2)
# docker compose's own words: option -> whether a value follows it.
COMPOSE_OPTIONS: Final = {
    "-f": True, "--profile": True, "--build": False, "--wait": False, "--wait-timeout": True, "--volumes": False,
    "--timeout": True, "-T": False, "--rm": False, "--no-deps": False, "--no-color": False, "--timestamps": False,
}  # fmt: skip
COMPOSE_VERBS: Final = {"up", "down", "build", "logs", "exec", "run", "stop", "start"}
# Programs of the system that documents and workflows may name.
OTHER_PROGRAMS: Final = {
    "bash", "cat", "command", "curl", "docker", "echo", "go", "grep", "grpcurl", "id", "pip", "pytest", "sh", "tar",
    "test",
}  # fmt: skip
_VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*=")


def commands_of(script: str) -> Iterator[list[str]]:
    """The simple commands of a shell script, without redirections; quoted text stays one word."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        skip = False
        for word in lexer:
            if skip:
                skip = False
            elif word in ("<", ">", ">>"):
                skip = True
            elif word in ("|", "&&", ";", "||"):
                yield words
                words = []
            else:
                words.append(word)
        yield words


def check(words: Sequence[str], variables: dict[str, str] | None = None) -> str:
    """Raises if the command names something that does not exist; returns the program, empty for an empty line."""
    rest = list(words)
    assigned = dict(variables or {})
    while rest and (rest[0] == "!" or _VARIABLE.match(rest[0])):
        word = rest.pop(0)
        if word != "!":
            name, _, value = word.partition("=")
            known = variables_of(BASE_FILE) | variables_of(GPU_FILE)
            assert name in known, f"{name} is no variable of the compose files"
            assigned[name] = value
    if not rest:
        return ""
    if rest[:2] == ["docker", "compose"]:
        _check_compose(rest[2:], assigned)
    elif rest[0] == "grpcurl":
        check_grpcurl(rest[1:])
    elif rest[0] == "looseleaf":
        parse_looseleaf(rest[1:])
    elif rest[0] in scripts():
        from compose_model import CONFIGS

        flag_parser(rest[0], CONFIGS[rest[0]]).parse_args(rest[1:])
    elif rest[0] == "bash":
        assert (ROOT / rest[1]).is_file(), rest
    else:
        assert rest[0] in OTHER_PROGRAMS, f"{rest[0]}: nobody has looked at this program"
    return rest[0]


def _check_compose(words: list[str], variables: dict[str, str]) -> None:
    files, profiles = [], set(filter(None, variables.get("COMPOSE_PROFILES", "").split(",")))
    if "COMPOSE_FILE" in variables:
        files = variables["COMPOSE_FILE"].split(":")
    rest = list(words)
    verb = ""
    while rest:
        word = rest.pop(0)
        if word.startswith("-"):
            assert word in COMPOSE_OPTIONS, word
            value = rest.pop(0) if COMPOSE_OPTIONS[word] else ""
            files += [value] if word == "-f" else []
            profiles |= {value} if word == "--profile" else set()
        elif not verb:
            verb = word
            assert verb in COMPOSE_VERBS, verb
        else:
            rest.insert(0, word)
            break
    assert files and all((ROOT / name).is_file() for name in files), "which compose files?"
    services = load(*(name.removeprefix("docker/") for name in files))
    assert profiles <= {name for service in services.values() for name in service.profiles}, profiles
    if verb in ("exec", "run"):
        assert rest[0] in services, rest[0]
        check(rest[1:])
    else:
        assert set(rest) <= set(services), rest


def check_grpcurl(words: Sequence[str]) -> tuple[str, str, Any]:
    """Address, method and request of a grpcurl command that can be answered by the services of the compose file."""
    rest = list(words)
    assert rest.pop(0) == "-plaintext"
    request = {}
    if rest[0] == "-d":
        request = json.loads(rest[1])
        rest = rest[2:]
    address, method = rest
    host, _, port = address.partition(":")
    published = {port: service for service in load().values() for _host, port, inside in service.ports if inside < 9000}
    assert host == "127.0.0.1" and int(port) in published, address
    if method != "list":
        service_name, method_name = method.split("/")
        service = descriptor_pool.Default().FindServiceByName(service_name)
        message = message_factory.GetMessageClass(service.methods_by_name[method_name].input_type)()
        json_format.ParseDict(request, message)
        kind = published[int(port)].name.replace("-", "").removesuffix("2")
        own = service_name.removeprefix("looseleaf.v1.").removesuffix("Service").lower()
        assert service_name == "grpc.health.v1.Health" or own == kind, f"{address} does not serve {service_name}"
    return address, method, request
