"""Root's zygotes import only what the user of their workers cannot write: else that user would be root (design §10)."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from looseleaf.errors import PreconditionFailed
from looseleaf.services.worker_daemon.limits import WorkerUser

# Of one folder that packages lie in; beyond them the folder itself is judged alone.
ENTRIES_MAX: Final = 20_000
_PACKAGE_FOLDERS: Final = ("site-packages", "dist-packages")


def refuse_writable_folders(user: WorkerUser | None, python: str, environ: Mapping[str, str]) -> None:
    """Raises PreconditionFailed `WORKER_USER_REFUSED`, with the path, if `user` may change what zygotes of root import.

    Looks at the interpreter, its folders and what `.pth` files and `PYTHONPATH` add to them, with the folders above and
    with the entries of those that packages lie in, as the permission bits have it; at no access lists, and at no
    deeper files. Runs nothing of theirs. Milliseconds for a usual environment.
    """
    if user is None:
        return
    path = first_writable(user, import_paths(python, environ))
    if path is not None:
        raise PreconditionFailed(
            "WORKER_USER_REFUSED",
            f"{user.name} may write {path}, from where processes of root import: give workers an environment that only "
            "root may write, or run the daemon as that user",
            path=str(path),
        )


def import_paths(python: str, environ: Mapping[str, str]) -> list[Path]:
    """Files and folders that decide what `python` imports, as far as that can be told without running it."""
    called = Path(os.path.abspath(python))
    found = [called, called.resolve()]
    prefixes = [path.parent.parent for path in found]
    homes = [_home_of(prefix / "pyvenv.cfg") for prefix in prefixes]
    for prefix in dict.fromkeys([*prefixes, *(home.parent for home in homes if home is not None)]):
        for folder in sorted(prefix.glob("lib*/python3*")):
            found += [folder, *(folder / name for name in _PACKAGE_FOLDERS)]
    found += [Path(entry) for entry in environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if called == Path(os.path.abspath(sys.executable)):
        # What this process runs with, which may be more.
        found += [Path(entry) for entry in sys.path if os.path.isabs(entry)]
    found = [path for path in dict.fromkeys(found) if path.exists()]
    added = (entry for folder in found if folder.is_dir() for file in folder.glob("*.pth") for entry in _lines(file))
    return list(dict.fromkeys([*found, *added]))


def first_writable(user: WorkerUser, paths: Iterable[Path]) -> Path | None:
    """The first of these, of what lies directly in those with packages, or of the folders above, that `user` may
    change; None if there is none."""
    above: set[Path] = set()
    for path in paths:
        for shown in (path.resolve(), path):
            for one in reversed(shown.parents):
                if one not in above and _may_change(user, one, is_above=True):
                    return one
                above.add(one)
            inside: Iterable[Path] = islice(shown.iterdir(), ENTRIES_MAX) if _holds_packages(shown) else ()
            for one in (shown, *inside):
                if _may_change(user, one, is_above=False):
                    return one
    return None


def _may_change(user: WorkerUser, path: Path, *, is_above: bool) -> bool:
    """`is_above`: entries of others that lie in it are safe where its sticky bit is set, as in /tmp."""
    try:
        found = path.stat()
    except OSError:
        return False
    if found.st_uid == user.uid:
        # Its owner may give itself the right to write.
        return True
    if is_above and found.st_mode & stat.S_ISVTX:
        return False
    bit = stat.S_IWGRP if found.st_gid in (user.gid, *user.groups) else stat.S_IWOTH
    return bool(found.st_mode & bit)


def _holds_packages(path: Path) -> bool:
    return path.name in _PACKAGE_FOLDERS and path.is_dir()


def _home_of(config: Path) -> Path | None:
    """The folder of the interpreter that a virtual environment was made with."""
    for line in _text(config).splitlines():
        name, _equals, value = line.partition("=")
        if name.strip() == "home":
            return Path(value.strip())
    return None


def _lines(file: Path) -> list[Path]:
    """Folders that a `.pth` file puts on the path, and finders that it imports lie in its own folder."""
    entries = [line.strip() for line in _text(file).splitlines()]
    named = [file.parent / line for line in entries if line and not line.startswith(("#", "import ", "import\t"))]
    return [path for path in named if path.exists()]


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8", "replace")
    except OSError:
        return ""
