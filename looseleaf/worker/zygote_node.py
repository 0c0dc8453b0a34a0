"""A zygote that was forked from another one: it imports more and then serves as that one does (paper §3.3)."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NoReturn

from looseleaf.environment import Environment
from looseleaf.errors import LooseLeafError, PreconditionFailed, Unavailable
from looseleaf.protocol.control import ControlSocket
from looseleaf.protocol.frames import PROTOCOL_VERSION, Message
from looseleaf.worker.fork_readiness import become_ready_to_fork, become_ready_to_import
from looseleaf.worker.isolation import IMPORT_LIMIT_S, end_after, set_title
from looseleaf.worker.probe_checks import thread_count
from looseleaf.worker.thread_counts import loaded_thread_libraries
from looseleaf.worker.zygote_forks import stand_alone
from looseleaf.worker.zygote_imports import (
    check_clean,
    check_rehearsed,
    import_head,
    known_modules,
    load_later,
    memory_bytes,
    refusal,
)

if TYPE_CHECKING:
    from looseleaf.worker.child import Birth, Inheritance


def become_node(
    birth: Birth, inherited: Inheritance, environment: Environment, imports: Sequence[str]
) -> NoReturn:
    """Turns the forked process into a zygote on the control channel that came with it. Never returns, never raises.

    `environment`: the folders that the base imported from.
    """
    from looseleaf.worker.zygote import EXIT_UNCLEAN

    status = EXIT_UNCLEAN
    try:
        stand_alone(birth)
        set_title(birth.title)
        status = _serve(ControlSocket(socket.socket(fileno=birth.channel_fd)), inherited, environment, imports)
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(status)


def _serve(
    control: ControlSocket, inherited: Inheritance, environment: Environment, imports: Sequence[str]
) -> int:
    """Imports, says so, serves until the daemon's end closes. The exit status: 3 if it may not serve.

    It is ended after `IMPORT_LIMIT_S` of imports, if the daemon that should do so earlier is gone.
    """
    from looseleaf.worker.zygote import EXIT_UNCLEAN, Zygote

    end_after(IMPORT_LIMIT_S)
    try:
        ready, grown = _grow(control, inherited, environment, imports)
        end_after(0)
        control.send(ready)
    except Unavailable:
        return 0  # the daemon has given it up
    except LooseLeafError as error:
        control.send(refusal(error))
        sys.stderr.write(f"{error}\n")
        return EXIT_UNCLEAN
    Zygote(control, grown, environment).serve()
    return 0


def _grow(
    control: ControlSocket, inherited: Inheritance, environment: Environment, imports: Sequence[str]
) -> tuple[Message, Inheritance]:
    _check_environment(environment, inherited.environment_id)
    own_fds = {control.fileno()}
    become_ready_to_import()
    with inherited.shell.builtin_trap:
        imported, failed = import_head(
            imports, own_fds, lambda name: control.send({"t": "IMPORTING", "name": name})
        )  # fmt: skip
        if failed:
            name, error = failed[0]["name"], failed[0]["error"]
            text = f"{name} cannot be imported: {error}"
            raise PreconditionFailed("ZYGOTE_IMPORT_FAILED", text, name=name, verdict=failed[0]["verdict"])
        load_later(own_fds)
    check_clean(imports[-1] if imports else "nothing", own_fds)
    # What was installed while these were imported is not what its parent has.
    _check_environment(environment, inherited.environment_id)
    become_ready_to_fork()
    check_rehearsed(imports, own_fds)
    grown = replace(
        inherited, imports=[*inherited.imports, *(item["name"] for item in imported)],
        thread_libraries=loaded_thread_libraries(),
    )  # fmt: skip
    ready = {
        "t": "READY", "v": PROTOCOL_VERSION, "imports": imported, "failed": failed, "threads": thread_count(),
        "pid": os.getpid(), "environment_id": inherited.environment_id, "modules": known_modules(),
        "private_bytes": memory_bytes()["private_bytes"],
    }
    return ready, grown


def _check_environment(environment: Environment, environment_id: str) -> None:
    """Raises PreconditionFailed `ENVIRONMENT_CHANGED` if something was installed since the base began to import.

    In the base's folders: imports may put more on the path, as setuptools does with what it brings along.
    """
    if environment_id and environment.identify() != environment_id:
        text = "what is installed has changed since the first imports of this process"
        raise PreconditionFailed("ENVIRONMENT_CHANGED", text)
