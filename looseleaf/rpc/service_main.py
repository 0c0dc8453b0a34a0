"""The command line of a service process: every field of its config is a flag (`lease_ttl_ms` is `--lease-ttl-ms`).

Exit codes: 0 stopped as told; 1 fault; 2 bad flag, variable or file; 3 could not start (the log says why).
A supervisor passes `--lifeline-fd N`, the reading end of a pipe that it never writes: when the pipe closes, the
supervisor is gone and the service stops, so that nothing outlives it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, get_origin

from looseleaf.config import ServiceConfig
from looseleaf.config_files import ConfigError, wrong_value
from looseleaf.config_load import flag_of, load
from looseleaf.errors import LooseLeafError
from looseleaf.logs import configure_logs, get_logger
from looseleaf.rpc.server import Registration
from looseleaf.rpc.service import Service, install_signals

C = TypeVar("C", bound=ServiceConfig)

EXIT_FAULT: Final = 1
EXIT_CONFIG: Final = 2
EXIT_REFUSED: Final = 3
# After the supervisor's death: what an orderly stop may take beyond the grace period before the process is ended.
LIFELINE_EXTRA_S: Final = 15.0

log = get_logger()


@dataclass(frozen=True)
class Lifeline:
    """The pipe whose end means that the supervisor is gone, if there is one."""

    fd: int | None
    extra_s: float


def service_main(
    name: str,
    config_type: type[C],
    build: Callable[[Service[C]], Awaitable[Sequence[Registration]]],
    argv: Sequence[str] | None = None,
) -> int:
    """Parses flags, configures logs, runs the service until it is told to stop; returns the exit code."""
    os.umask(0o077)
    parser = flag_parser(name, config_type)
    flags = vars(parser.parse_args(argv))
    lifeline = Lifeline(flags.pop("lifeline_fd"), flags.pop("lifeline_extra_s"))
    try:
        config = load(config_type, _given(config_type, flags))
    except ConfigError as error:
        print(f"looseleaf {name}: {error.message}", file=sys.stderr)
        return EXIT_CONFIG
    configure_logs(name, config.log_level, host=getattr(config, "host_id", ""))
    try:
        return asyncio.run(_run(name, config, build, lifeline))
    except LooseLeafError as error:
        log.error("service_refused_to_start", reason=error.reason, message=error.message)
        return EXIT_REFUSED
    except Exception:
        log.exception("service_failed")
        return EXIT_FAULT


def flag_parser(name: str, config_type: type[ServiceConfig]) -> argparse.ArgumentParser:
    """One optional flag per field; values are checked by the model, so that variables and files get the same checks."""
    parser = argparse.ArgumentParser(prog=f"looseleaf-{name}", description=config_type.__doc__, allow_abbrev=False)
    for field_name, field in config_type.model_fields.items():
        text = (field.description or "").replace("%", "%%")
        parser.add_argument(flag_of(field_name), dest=field_name, default=None, help=text)
    parser.add_argument("--lifeline-fd", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--lifeline-extra-s", type=float, default=LIFELINE_EXTRA_S, help=argparse.SUPPRESS)
    return parser


def _given(config_type: type[ServiceConfig], flags: dict[str, str | None]) -> dict[str, Any]:
    """The flags that were given; those of lists are JSON, as their variables are."""
    given: dict[str, Any] = {}
    for name, text in flags.items():
        if text is None:
            continue
        is_list = get_origin(config_type.model_fields[name].annotation) in (tuple, list, dict)
        try:
            given[name] = json.loads(text) if is_list else text
        except ValueError as error:
            raise wrong_value(f"{config_type.section}.{name}", text, flag_of(name), "must be JSON") from error
    return given


async def _run(
    name: str, config: C, build: Callable[[Service[C]], Awaitable[Sequence[Registration]]], lifeline: Lifeline,
) -> int:
    service = Service(name, config)
    install_signals(service)
    if lifeline.fd is not None:
        _watch_lifeline(lifeline.fd, lifeline.extra_s, service)
    return await service.run(build)


def _watch_lifeline(fd: int, extra_s: float, service: Service[Any]) -> None:
    """A thread, so that it works even when the event loop is stuck."""
    os.set_inheritable(fd, False)

    def watch() -> None:
        os.read(fd, 1)
        service.request_stop_threadsafe("supervisor_gone")
        # The process ends while this sleeps, if its stop works.
        time.sleep(service.config.shutdown_grace_s + extra_s)
        service.stop_now(EXIT_FAULT)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()
