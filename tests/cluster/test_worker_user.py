"""A whole cluster of root whose workers are another user's."""

from __future__ import annotations

import ast
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import looseleaf
from looseleaf.local.cluster import LocalCluster

pytestmark = [
    pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(300),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may run workers as another user"),
]  # fmt: skip

REPOSITORY = Path(looseleaf.__file__).parents[1]


def closed_folders() -> dict[Path, list[Path]]:
    """Folders that only their owner may enter → what workers import from below them."""
    needed = {sys.prefix, sys.base_prefix, str(REPOSITORY), sysconfig.get_path("purelib")}
    found: dict[Path, list[Path]] = {}
    for path in sorted({Path(os.path.realpath(one)) for one in needed}):
        closed = next((above for above in reversed(path.parents) if not above.stat().st_mode & 0o001), None)
        if closed is not None:
            found.setdefault(closed, []).append(path)
    return found


def opened(closed: dict[Path, list[Path]], stash: Path) -> list[str]:
    """The start of a command that sees these folders as everybody's, with nothing in them but what is needed.

    In a mount namespace of its own: for the system they stay closed.
    """
    lines = ["set -e; kept=$(umask); umask 022"]
    for number, (folder, paths) in enumerate(closed.items()):
        kept = [(path, stash / f"{number}-{place}") for place, path in enumerate(paths)]
        lines += [f"mkdir '{place}'; mount --bind '{path}' '{place}'" for path, place in kept]
        lines.append(f"mount -t tmpfs -o mode=755 none '{folder}'")
        lines += [f"mkdir -p '{path}'; mount --bind '{place}' '{path}'" for path, place in kept]
    return ["unshare", "--mount", "sh", "-c", "\n".join([*lines, 'umask "$kept"; exec "$@"']), "sh"] if closed else []


@pytest.fixture(scope="module")
def user() -> pwd.struct_passwd:
    found = [row for row in pwd.getpwall() if row.pw_uid != 0]
    if not found:
        pytest.skip("this host has no other user")
    return next((row for row in found if row.pw_name == "nobody"), found[0])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, user: pwd.struct_passwd) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("cluster")
    closed = closed_folders()
    if closed:
        (folder / "tried").mkdir()
        try:
            done = subprocess.run([*opened(closed, folder / "tried"), "true"], capture_output=True, check=False)
        except FileNotFoundError:
            pytest.skip("the interpreter lies in a folder closed to others, and there is no unshare(1)")
        if done.returncode:
            pytest.skip(f"the interpreter lies in a folder closed to others: {done.stderr.decode().strip()}")
    (folder / "stash").mkdir()
    daemon = [*opened(closed, folder / "stash"), sys.executable, "-m", "looseleaf.services.worker_daemon"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOSELEAF_DAEMON_WORKER_USER", user.pw_name)
        with LocalCluster.start(
            data=folder / "d", device="emulated", emulated_delays=False, gpus=1, keep_warm_s=0.0,
            commands={"daemon": daemon},
        ) as found:  # fmt: skip
            yield found


@pytest.fixture
def tmp_path(user: pwd.struct_passwd) -> Iterator[Path]:
    """Where the notebook is: its user's own, below folders that everybody may enter."""
    folder = Path(tempfile.mkdtemp(prefix="looseleaf-user-"))
    os.chown(folder, user.pw_uid, user.pw_gid)
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_gpu_cells_run_as_the_user_and_their_variables_move_between_workers(
    new_notebook: Callable[..., Any], user: pwd.struct_passwd, tmp_path: Path
) -> None:
    notebook = new_notebook()
    notebook.ok("import torch\nheld = torch.arange(8.0)")
    # What the zygote lacks is imported as the user; what the cell starts and writes is the user's too.
    first = notebook.ok(
        "%%gpu\nimport colorsys, os, subprocess\nw = torch.ones(1 << 20, device='cuda')\n"
        "open('made.txt', 'w').write(colorsys.__name__)\n"
        "shown = int(subprocess.run(['id', '-u'], capture_output=True, check=True).stdout)\n"
        "os.getresuid(), os.getresgid(), os.environ['HOME'], shown, os.getpid()"
    )
    *who, pid = ast.literal_eval(first.value)
    assert who == [(user.pw_uid,) * 3, (user.pw_gid,) * 3, user.pw_dir, user.pw_uid]
    made = (tmp_path / "made.txt").stat()
    assert (made.st_uid, made.st_gid) == (user.pw_uid, user.pw_gid)
    # Another worker has what the first one saved, changes it, and saves it again.
    second = notebook.ok(f"%%gpu\nw += held.sum().cuda()\nos.getuid(), os.getpid() != {pid}, float(w[0])")
    assert ast.literal_eval(second.value) == (user.pw_uid, True, 29.0)
    assert second.report["version"] > first.report["version"] > 0
    assert notebook.ok("float(w.sum()) == 29.0 * (1 << 20)").value == "True"
    assert notebook.run("%%gpu\nopen('/etc/shadow').read()").ename == "PermissionError"
