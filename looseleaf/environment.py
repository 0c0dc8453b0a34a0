"""The Python environment that packages come from, and an id that changes with every install (design §4, §5).

Kernel, zygote and daemon tell by it whether what a process has imported is still what is installed.
"""

from __future__ import annotations

import hashlib
import os
import site
import sys
import sysconfig
from dataclasses import dataclass
from typing import Final

# What an installer writes for each distribution: its own folder or link, or a line that puts a folder on the path.
_MARKS: Final = (".dist-info", ".egg-info", ".egg-link", ".pth")
# Conda notes each of its packages here, also those that are no distribution of Python's.
_CONDA_FOLDER: Final = "conda-meta"
_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Environment:
    """`interpreter`: which Python, with its version. `site_dirs`: folders that distributions are installed to."""

    interpreter: str
    site_dirs: tuple[str, ...]

    @classmethod
    def here(cls) -> Environment:
        """That of this process: the folders of its path but for the standard library's and those of people's files."""
        paths = sysconfig.get_paths()
        folders = {paths["purelib"], paths["platlib"], *site.getsitepackages()}
        if site.ENABLE_USER_SITE:
            folders.add(site.getusersitepackages())
        own = {paths["stdlib"], paths["platstdlib"], _working_directory(), ""}
        # Folders that a `.pth` file put on the path hold distributions of their own.
        folders.update(entry for entry in sys.path if entry not in own and _has_marks(entry))
        conda = os.path.join(sys.prefix, _CONDA_FOLDER)
        if os.path.isdir(conda):
            folders.add(conda)
        return cls(f"{sys.prefix} {sys.version}", tuple(sorted(folders)))

    def identify(self) -> str:
        """The id as the folders are now, in hex: equal ids have the same distributions, installed at the same times.

        Looks at names and times only, about 1 ms for 300 distributions. Never raises: a folder that cannot be read
        counts as an empty one.
        """
        digest = hashlib.blake2b(self.interpreter.encode(), digest_size=_ID_BYTES)
        for folder in self.site_dirs:
            digest.update(f"\0{folder}".encode("utf-8", "surrogateescape"))
            for name, time_ns in _marks(folder):
                digest.update(f"\0{name}\0{time_ns}".encode("utf-8", "surrogateescape"))
        return digest.hexdigest()


def _working_directory() -> str:
    try:
        return os.getcwd()
    except OSError:
        return ""  # it was deleted


def _marks(folder: str) -> list[tuple[str, int]]:
    """(name, time of its last change in ns) of what installers left there, sorted."""
    is_conda = os.path.basename(folder) == _CONDA_FOLDER
    endings = (*_MARKS, ".json") if is_conda else _MARKS
    try:
        with os.scandir(folder) as entries:
            return sorted((entry.name, _changed_ns(entry)) for entry in entries if entry.name.endswith(endings))
    except OSError:
        return []


def _changed_ns(entry: os.DirEntry[str]) -> int:
    try:
        return entry.stat().st_mtime_ns
    except OSError:
        # It went between the listing and the look, as while an installer works.
        return 0


def _has_marks(folder: str) -> bool:
    return bool(_marks(folder))
