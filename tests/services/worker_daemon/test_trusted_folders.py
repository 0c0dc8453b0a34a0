"""Which environments root's zygotes may import from on behalf of another user; by permission bits, as anybody."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from looseleaf.errors import PreconditionFailed
from looseleaf.services.worker_daemon.limits import WorkerUser
from looseleaf.services.worker_daemon.trusted_folders import first_writable, refuse_writable_folders

# Neither owns anything here nor is in a group of those who do.
ALICE = WorkerUser(4_000_001, 4_000_002, (4_000_002,), "/home/alice", "alice")
PACKAGES = Path("lib", "python3.11", "site-packages")


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """A virtual environment with a package and an editable install, which ALICE may read only."""
    base, venv, editable = tmp_path / "base", tmp_path / "venv", tmp_path / "editable"
    more = tmp_path / "more"
    for folder in (base / "bin", base / PACKAGES, venv / "bin", venv / PACKAGES / "pandas", editable, more):
        folder.mkdir(parents=True)
    (base / "bin" / "python3").touch()
    (venv / "bin" / "python").symlink_to(base / "bin" / "python3")
    (venv / "pyvenv.cfg").write_text(f"home = {base / 'bin'}\n")
    (venv / PACKAGES / "editable.pth").write_text(f"# ours\nimport os\n{editable}\n{tmp_path}/gone\n")
    for path in (tmp_path, *tmp_path.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755)
    return venv


def refuse(venv: Path) -> None:
    more = str(venv.parent / "more")
    refuse_writable_folders(ALICE, str(venv / "bin" / "python"), {"PYTHONPATH": f"{more}{os.pathsep}"})


def above(path: Path) -> bool:
    """Whether the folder that all tests of this run lie in is what ALICE may write."""
    return first_writable(ALICE, [path.parent]) is not None


def test_environment_that_the_user_can_only_read_is_taken(venv: Path) -> None:
    if above(venv.parent):
        pytest.skip("everybody may write the folder for temporary files of this machine")
    refuse(venv)
    (venv.parent / "elsewhere").mkdir(mode=0o777)
    (venv.parent / "elsewhere").chmod(0o777)
    refuse(venv)


@pytest.mark.parametrize(
    "place",
    [
        "venv/lib/python3.11/site-packages", "venv/lib/python3.11/site-packages/pandas", "venv/lib/python3.11",
        "venv/lib/python3.11/site-packages/editable.pth", "venv/lib", "venv", "venv/bin", "base/bin/python3",
        "base/lib/python3.11/site-packages", "base", "editable", "more",
    ],
)  # fmt: skip
def test_environment_of_which_the_user_may_write_a_part_is_refused(venv: Path, place: str) -> None:
    if above(venv.parent):
        pytest.skip("everybody may write the folder for temporary files of this machine")
    path = venv.parent / place
    path.chmod(0o777)
    with pytest.raises(PreconditionFailed, match=f"WORKER_USER_REFUSED: alice may write {path}, ") as refused:
        refuse(venv)
    assert refused.value.fields["path"] == str(path)


@pytest.mark.parametrize(
    ("mode", "uid", "gids", "expected"),
    [
        (0o755, 0, (), False), (0o700, 1, (), True), (0o500, 1, (), True), (0o775, 0, (1,), True),
        (0o775, 0, (), False), (0o757, 0, (1,), False), (0o1777, 0, (), True),
    ],
)  # fmt: skip
def test_who_may_change_a_folder_goes_by_owner_group_and_others(
    tmp_path: Path, mode: int, uid: int, gids: tuple[int, ...], expected: bool
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    folder.chmod(mode)
    own = folder.stat()
    user = WorkerUser(own.st_uid if uid else ALICE.uid, ALICE.gid, tuple(own.st_gid for _ in gids), "/", "alice")
    if first_writable(user, [tmp_path]) is not None and not uid:
        pytest.skip("everybody may write the folder for temporary files of this machine")
    found = first_writable(user, [folder])
    assert (found is not None) == expected


def test_folder_above_that_is_sticky_as_tmp_is_no_danger(tmp_path: Path) -> None:
    (tmp_path / "tmp" / "site-packages").mkdir(parents=True)
    if first_writable(ALICE, [tmp_path]) is not None:
        pytest.skip("everybody may write the folder for temporary files of this machine")
    (tmp_path / "tmp").chmod(0o1777)
    assert first_writable(ALICE, [tmp_path / "tmp" / "site-packages"]) is None
    (tmp_path / "tmp").chmod(0o777)
    assert first_writable(ALICE, [tmp_path / "tmp" / "site-packages"]) == tmp_path / "tmp"


def test_workers_of_the_daemons_own_user_may_come_from_anywhere(venv: Path) -> None:
    venv.chmod(0o777)
    refuse_writable_folders(None, str(venv / "bin" / "python"), {})
