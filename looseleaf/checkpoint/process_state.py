"""What a process carries besides objects, as an implicit root: random generators, environment, flags (design §3).

A record is a dict of sections of plain values. A section that cannot be seen here, such as torch's before torch is
imported, keeps what the last version said. Libraries are asked only if the session imported them.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import random
import re
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, Final

from looseleaf.checkpoint import import_filters, library_state
from looseleaf.checkpoint.manifest import Unsaved
from looseleaf.checkpoint.module_code import BASELINE
from looseleaf.checkpoint.warning_filters import WarningFilters
from looseleaf.devices.hook import PostImportHook
from looseleaf.kernel_config import SECRET_NAMES, ConfigError, KernelConfig

log = logging.getLogger("looseleaf.checkpoint")

Record = dict[str, Any]
# Variables that we, the scheduler or the numeric libraries set for this very process.
_OURS: Final = re.compile(r"CUDA_VISIBLE_DEVICES$|OMP_|MKL_|OPENBLAS_|KMP_|NUMEXPR_|LOOSELEAF_|JPY_|PYDEVD_")
_SHELL_KEEPS: Final = frozenset({"PWD", "OLDPWD", "SHLVL", "_"})


def _secret_names() -> frozenset[str]:
    try:
        return frozenset(KernelConfig.load_one("secret_names"))
    except ConfigError:
        # Whoever reads the rest of it tells.
        return frozenset(SECRET_NAMES)


class ProcessState:
    """Reads and sets the state of this process.

    `secret_names`: patterns of environment variables that stay here; those of the session's other processes hold, too.
    """

    def __init__(self, secret_names: Collection[str] | None = None) -> None:
        self._secret_names = _secret_names() if secret_names is None else frozenset(secret_names)
        BASELINE.begin()
        self._environment: dict[str, str] = dict(os.environ)
        # What variables were before the session changed them, and which ones it did change here.
        self._original: dict[str, str] = dict(os.environ)
        self._changed: set[str] = set()
        self._warnings = WarningFilters()
        # Sections that wait for their library or could not be set, and what watches for imports.
        self._pending: set[str] = set()
        self._hooks: list[PostImportHook] = []

    def read(self, last: Mapping[str, Any], patches: Callable[[], Any]) -> tuple[Record, list[Unsaved]]:
        """The record now, and what was kept out of it on purpose. `last`: the record of the newest version."""
        self._secret_names |= frozenset(last.get("secret_names", ()))
        environment, unsaved = self._read_environment(last.get("environment", {}))
        record: Record = {
            "environment": environment,
            "secret_names": sorted(self._secret_names),
            "cwd": _cwd(),
            "sys.path": [entry for entry in sys.path if type(entry) is str],
            "recursion_limit": sys.getrecursionlimit(),
            "warnings": self._warnings.read(),
            "packages": sorted({*last.get("packages", ()), *import_filters.packages_here()}),
            "patches": patches(),
            "random": random.getstate(),
        }
        for name, section in library_state.SECTIONS.items():
            if name in last:
                record[name] = last[name]
            if name not in self._pending and section.is_visible():
                try:
                    record[name] = section.read(last.get(name, {}))
                except Exception as error:
                    # A library of another version, or what a person put in its place: the variables move all the same.
                    path = f"the settings of {name}"
                    unsaved.append(Unsaved(path, "NOT_SERIALIZABLE", path, f"{type(error).__name__} as they were read"))
        return record, unsaved

    def _read_environment(self, last: Mapping[str, str | None]) -> tuple[dict[str, str | None], list[Unsaved]]:
        """The variables that the session changed, None for a deleted one."""
        changed: dict[str, str | None] = dict(last)
        for name in {*os.environ, *self._environment}:
            now = os.environ.get(name)
            if now != self._environment.get(name) and not _OURS.match(name) and name not in _SHELL_KEEPS:
                changed[name] = now
        kept: dict[str, str | None] = {}
        unsaved = []
        for name in sorted(changed):
            if self._is_secret(name) and changed[name] is not None:
                path = f"os.environ[{name!r}]"
                text = "`secret_names` keeps it out: it stays in this process, set it again where it is needed"
                unsaved.append(Unsaved(path, "SECRET_ENVIRONMENT", path, text))
            else:
                kept[name] = changed[name]
        self._changed.update(kept)
        return kept, unsaved

    def _is_secret(self, name: str) -> bool:
        return any(fnmatch.fnmatchcase(name.upper(), pattern.upper()) for pattern in self._secret_names)

    def apply(self, record: Mapping[str, Any], *, before_objects: bool) -> list[str]:
        """Sets what belongs before the session's objects, or after them; returns what this host could not follow."""
        problems: list[str] = []
        self._secret_names |= frozenset(record.get("secret_names", ()))
        if before_objects:
            self._apply_environment(record.get("environment", {}))
            _apply_directory(record, problems)
            sys.setrecursionlimit(max(int(record.get("recursion_limit", 0)), sys.getrecursionlimit()))
        else:
            if "warnings" in record:
                packages = record.get("packages", ())
                self._warnings.apply(import_filters.completed(record["warnings"], packages))
            self._forget_hooks()
            for name, section in library_state.SECTIONS.items():
                if name in record:
                    self._apply_section(name, section, record[name], problems)
            if "random" in record:
                random.setstate(record["random"])
        return problems

    def _apply_section(self, name: str, section: library_state.Section, values: Any, problems: list[str]) -> None:
        """Now, or when the person imports the library: its first draw must come from the session's stream."""
        if section.is_visible():
            try:
                section.apply(values)
            except Exception as error:
                # Such as an extension of the shell that cannot be loaded here: no variable must be lost for it. What
                # is set here instead is not the session's: `read` keeps what the version said.
                self._pending.add(name)
                problems.append(f"{name} settings could not be followed ({type(error).__name__})")
            return
        if section.library is None:
            return
        self._pending.add(name)

        def when_imported() -> None:
            self._pending.discard(name)
            try:
                section.apply(values)
            except Exception as error:
                # It would come out of the person's import statement.
                self._pending.add(name)
                log.warning("settings_not_followed section=%s error=%s", name, type(error).__name__)

        hook = PostImportHook(section.library, when_imported)
        self._hooks.append(hook)
        hook.start()

    def wait_no_longer(self) -> None:
        """Nothing more is set when a library is imported. For a state that is given up."""
        self._forget_hooks()
        self._warnings.wait_no_longer()

    def _forget_hooks(self) -> None:
        for hook in self._hooks:
            hook.stop()
        self._hooks.clear()
        self._pending.clear()

    def _apply_environment(self, environment: Mapping[str, str | None]) -> None:
        # A version may be older than what is set here.
        undone = {name: self._original.get(name) for name in self._changed - environment.keys()}
        self._changed = set(environment)
        for name, value in {**undone, **environment}.items():
            if _OURS.match(name):
                continue
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._environment = dict(os.environ)


def _cwd() -> str:
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        return ""


def _apply_directory(record: Mapping[str, Any], problems: list[str]) -> None:
    cwd = record.get("cwd", "")
    if cwd and cwd != _cwd():
        try:
            os.chdir(cwd)
        except OSError as error:
            problems.append(f"the working directory {cwd} is not on this host: {error.strerror}")
    if "sys.path" in record:
        sys.path[:] = record["sys.path"]
