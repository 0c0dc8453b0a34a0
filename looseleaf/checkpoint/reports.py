"""What save, restore and advance tell their callers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from looseleaf.checkpoint.manifest import Unsaved
from looseleaf.ids import Version


@dataclass(frozen=True, slots=True)
class SaveReport:
    """One save. `nothing_changed`: no version was made, `version` is the one before.

    `dirty_regions` of `total_regions` compared ones differ; `bytes_moved` left this process. `unsaved`: all variables
    (and secrets of the environment) whose value is not in this version. `notes`: what was kept in part, "REASON path".
    `lazy_bytes`: those that only this process has, until the next save of everything.
    """

    version: Version
    dirty_regions: int = 0
    total_regions: int = 0
    bytes_moved: int = 0
    units_written: int = 0
    unsaved: tuple[Unsaved, ...] = ()
    notes: tuple[str, ...] = ()
    elapsed_s: float = 0.0
    nothing_changed: bool = False
    lazy_bytes: int = 0


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """One restore. `restored`: variables that live now. `missing`: asked ones that this version does not know.

    `failed`: variables whose value could not be made again here, with the reason; they stay stubs. `problems`: what
    this host could not follow, such as a working directory that it lacks. `failed_imports`: (module, error), which the
    cell that imports it will report; `import_s`: what all imports took, `imports_s`: what each took that came.
    """

    restored: tuple[str, ...] = ()
    mapped_bytes: int = 0
    missing: tuple[str, ...] = ()
    failed: tuple[Unsaved, ...] = ()
    problems: tuple[str, ...] = ()
    failed_imports: tuple[tuple[str, str], ...] = ()
    import_s: float = 0.0
    imports_s: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class AdvanceReport:
    """What a newer version of another holder changed here. `dropped`: variables that became stubs.

    `added`, `deleted`: variables that appeared and went. `stale`: (variable, path) of values that the store does not
    know and that still hold an object of the older version.
    """

    dropped: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    stale: tuple[tuple[str, str], ...] = ()
    problems: tuple[str, ...] = ()
