"""The daemon's environment without what no zygote may see (import-cache study §4.4)."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from typing import Final

from looseleaf.kernel_config import SECRET_NAMES

# Settings of the services: what they may reach is nothing for code of people.
SERVICE_PREFIXES: Final = ("LOOSELEAF_DAEMON_", "LOOSELEAF_STORE_", "LOOSELEAF_SCHEDULER_", "LOOSELEAF_FRONTEND_")


def scrubbed(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """(what zygotes may have, what looks like a secret of the person who started the daemon).

    The settings of the services are in neither, nor are secrets of ours.
    """
    kept: dict[str, str] = {}
    withheld: dict[str, str] = {}
    for name, value in environ.items():
        if name.startswith(SERVICE_PREFIXES):
            continue
        if not any(fnmatch.fnmatchcase(name.upper(), pattern) for pattern in SECRET_NAMES):
            kept[name] = value
        elif not name.startswith("LOOSELEAF_"):
            withheld[name] = value
    return kept, withheld


def with_gpus_shown(environment: Mapping[str, str]) -> dict[str, str]:
    """Without a CUDA_VISIBLE_DEVICES that hides every GPU, on a host that lends real ones (import-cache study §3.2).

    A daemon that was started from a notebook has it. Modules that choose a back end when they are imported would choose
    none, for every worker; what a worker may use is said at its attach.
    """
    hidden = environment.get("LOOSELEAF_DEVICE") == "cuda" and environment.get("CUDA_VISIBLE_DEVICES") == ""
    return {name: value for name, value in environment.items() if not (hidden and name == "CUDA_VISIBLE_DEVICES")}
