"""What probes found, kept over the daemon's restarts: one small file for each set of imports (import-cache study §3.4).

`FOLDER/<environment id>/<hash of the key>.json`. A file that cannot be read counts as none, with a line in the log: the
set is then probed again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import OrderedDict
from pathlib import Path
from typing import Any, Final

import structlog

from looseleaf.errors import LooseLeafError
from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.core.zygote_facts import ProbeKey, ProbeResult, Verdict
from looseleaf.units import MIB

log = structlog.get_logger()

FORMAT_VERSION: Final = 2
# Sets of one environment that are remembered, and environments; the ones written longest ago go first.
ROWS_MAX: Final = 512
ENVIRONMENTS_MAX: Final = 4
FILE_BYTES_MAX: Final = 8 * MIB
_HASH_BYTES: Final = 16


class ProbeTable:
    """Results by key. Never raises: a disk that cannot be written costs probes after the next restart.

    Reads and writes files: not for the event loop. One call at a time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._known: OrderedDict[ProbeKey, ProbeResult] = OrderedDict()

    def get(self, key: ProbeKey) -> ProbeResult | None:
        """What is known of this set."""
        result = self._known.get(key) or self._read(key)
        if result is not None:
            self._keep(result)
        return result

    def add(self, result: ProbeResult, *, on_disk: bool = True) -> None:
        """Remembers it; `on_disk`, for the next daemon too."""
        self._keep(result)
        if not on_disk:
            return
        path = self._path(result.key)
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            unfinished = path.with_suffix(f".{os.getpid()}.tmp")
            unfinished.write_text(json.dumps(_row(result)))
            unfinished.replace(path)
            _drop_oldest(path.parent, ROWS_MAX)
            _drop_oldest(self._folder, ENVIRONMENTS_MAX)
        except OSError as error:
            log.warning("probe_not_kept", path=str(path), error=error.strerror)

    def _keep(self, result: ProbeResult) -> None:
        self._known[result.key] = result
        self._known.move_to_end(result.key)
        if len(self._known) > ROWS_MAX:
            self._known.popitem(last=False)

    def _path(self, key: ProbeKey) -> Path:
        text = json.dumps([key.environment_id, sorted(key.base), list(key.imports)])
        name = hashlib.blake2b(text.encode(), digest_size=_HASH_BYTES).hexdigest()
        environment = key.environment_id if key.environment_id.isalnum() else "unknown"
        return self._folder / environment / f"{name}.json"

    def _read(self, key: ProbeKey) -> ProbeResult | None:
        path = self._path(key)
        try:
            if path.stat().st_size > FILE_BYTES_MAX:
                raise ValueError("too long")
            return _result(key, json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LooseLeafError) as error:
            log.warning("probe_file_ignored", path=str(path), error=str(error))
            return None


def _drop_oldest(folder: Path, count_max: int) -> None:
    entries = list(folder.iterdir())
    if len(entries) <= count_max:
        return
    for entry in sorted(entries, key=lambda one: one.stat().st_mtime_ns)[: len(entries) - count_max]:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _row(result: ProbeResult) -> dict[str, Any]:
    return {
        "v": FORMAT_VERSION, "base": sorted(result.key.base), "imports": list(result.key.imports),
        "verdict": str(result.verdict), "seconds": result.seconds, "private_bytes": result.private_bytes,
        "modules": sorted(result.modules), "brought": {name: sorted(each) for name, each in result.brought.items()},
        "culprit": result.culprit, "detail": result.detail,
    }  # fmt: skip


def _result(key: ProbeKey, row: Any) -> ProbeResult:
    """Raises ValueError or InvalidArgument for what was not written by `_row` for this key."""
    if not isinstance(row, dict) or row.get("v") != FORMAT_VERSION:
        raise ValueError("another format")
    if frozenset(fields.texts(row, "base")) != key.base or tuple(fields.texts(row, "imports")) != key.imports:
        raise ValueError("another set of imports")
    seconds, brought = fields.mapping(row, "seconds"), fields.mapping(row, "brought")
    return result_of(
        key, row, {name: fields.number(seconds, name) for name in seconds},
        {name: frozenset(fields.texts(brought, name)) for name in brought},
    )  # fmt: skip


def result_of(
    key: ProbeKey, told: dict[str, Any], seconds: dict[str, float], brought: dict[str, frozenset[str]]
) -> ProbeResult:
    """From what a probe said of itself. Raises ValueError or InvalidArgument if it is not whole."""
    return ProbeResult(
        key, Verdict(fields.text(told, "verdict")), seconds, fields.integer(told, "private_bytes"),
        frozenset(fields.texts(told, "modules")), brought, fields.text(told, "culprit"), fields.text(told, "detail"),
    )  # fmt: skip
