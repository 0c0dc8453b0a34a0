"""Runs the Dockerfile's install steps here: the stages' RUN lines, in order, in an empty virtual environment each.

What needs the image's own system is left out by a listed rule (`NOT_HERE`). Folders of the image become folders under
the one given; a stage starts with the files of the stage that it is built FROM.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from compose_model import ROOT
from dockerfile_model import Dockerfile, Stage, context_files, mounts_of, read, without_mounts

# Beginnings of commands that this machine cannot or must not run, with why.
NOT_HERE: Final = {
    "apt-get": "Debian's packages: the compiler is expected to be here",
    "useradd": "no user is added to this machine",
}
# Folders of the image that RUN lines name.
IMAGE_FOLDERS: Final = ("/etc/looseleaf", "/src", "/dist", "/opt", "/run/looseleaf", "/var/lib/looseleaf")
STEP_TIMEOUT_S: Final = 1500.0


@dataclass(frozen=True)
class Step:
    """One RUN line that was run, or left out: what it took and what it added to the environment's folder."""

    stage: str
    command: str
    seconds: float
    size_bytes: int
    left_out: str = ""


class ImageSteps:
    """Builds stage after stage under `folder`; `environment(stage)` is then what the image's Python would be."""

    def __init__(self, folder: Path, build_args: Mapping[str, str] | None = None) -> None:
        self.file: Dockerfile = read()
        self._build_args = dict(build_args or {})
        self.steps: list[Step] = []
        self._folder = folder

    def environment(self, stage: str) -> Path:
        """The stage's virtual environment."""
        return self._folder / stage / "venv"

    def build(self, names: Collection[str] = ()) -> list[Step]:
        """Runs all stages or those named; raises AssertionError with the output of a step that fails."""
        for stage in self.file.stages.values():
            if names and stage.name not in names:
                continue
            self._begin(stage)
            workdir = self._folder / stage.name
            for item in stage.instructions:
                if item.keyword == "WORKDIR":
                    workdir = Path(self._here(stage, item.text))
                    workdir.mkdir(parents=True, exist_ok=True)
                elif item.keyword == "COPY":
                    self._copy(stage, item.text, workdir)
                elif item.keyword == "RUN":
                    self.steps.append(self._run(stage, item.text, workdir))
        return self.steps

    def _begin(self, stage: Stage) -> None:
        venv = self.environment(stage.name)
        if stage.base in self.file.stages:
            # Links instead of copies: what a later stage writes or removes, it writes and removes by name.
            base = self._folder / stage.base
            shutil.copytree(base, self._folder / stage.name, symlinks=True, copy_function=os.link)
            for script in (venv / "bin").iterdir():
                if script.is_file() and not script.is_symlink():
                    # A script names the interpreter of the environment that it was installed into.
                    data, mode = script.read_bytes(), script.stat().st_mode
                    script.unlink()
                    script.write_bytes(data.replace(str(self.environment(stage.base)).encode(), str(venv).encode()))
                    script.chmod(mode)
            return
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
        (self._folder / stage.name / "opt").mkdir()

    def _run(self, stage: Stage, text: str, workdir: Path) -> Step:
        command, left_out = _runnable(without_mounts(text))
        if not command:
            return Step(stage.name, text, 0.0, 0, left_out)
        for mount in mounts_of(text):
            source = Path(self._here(self.file.stages[mount["from"]], mount["source"]))
            target = Path(self._here(stage, mount["target"]))
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(source)
        before_bytes = tree_bytes(self._folder / stage.name)
        began_s = time.monotonic()
        done = subprocess.run(
            ["sh", "-ec", self._here(stage, command)], cwd=workdir, env=self._environment(stage), capture_output=True,
            text=True, timeout=STEP_TIMEOUT_S, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - began_s
        assert done.returncode == 0, f"{stage.name}: {text}\n{done.stdout[-4000:]}{done.stderr[-4000:]}"
        for mount in mounts_of(text):
            Path(self._here(stage, mount["target"])).unlink()
        return Step(stage.name, text, seconds, tree_bytes(self._folder / stage.name) - before_bytes, left_out)

    def _environment(self, stage: Stage) -> dict[str, str]:
        lineage = self.file.lineage(stage.name)
        args = {name: self._build_args.get(name, value) for part in lineage for name, value in part.args.items()}
        inside = {**args, **{name: value for part in lineage for name, value in part.env.items()}}
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LOOSELEAF_", "PYTHON"))}
        venv = self.environment(stage.name)
        path = os.pathsep.join([str(venv / "bin"), os.environ.get("PATH", "")])
        return {**kept, **inside, "PATH": path, "VIRTUAL_ENV": str(venv)}

    def _here(self, stage: Stage, text: str) -> str:
        folders = "|".join(map(re.escape, IMAGE_FOLDERS))
        return re.sub(rf"(?<![\w/.])({folders})(?=[/\s\"]|$)", rf"{self._folder / stage.name}\1", text)

    def _copy(self, stage: Stage, text: str, workdir: Path) -> None:
        *sources, target = [word for word in text.split() if not word.startswith("--")]
        mode = re.search(r"--chmod=(\d+)", text)
        place = workdir if target == "./" else Path(self._here(stage, target))
        if target.startswith("/usr/local/bin/"):
            place = self.environment(stage.name) / "bin" / Path(target).name
        for source in sources:
            if source == ".":
                copy_context(workdir)
                continue
            to = place / Path(source).name if target.endswith("/") else place
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / source, to)
            if mode:
                to.chmod(int(mode[1], 8))


def _runnable(command: str) -> tuple[str, str]:
    """The parts of a RUN line that can run here, and why the others were left out."""
    parts = [part.strip() for part in command.split("&&")]
    for beginning, why in NOT_HERE.items():
        if parts[0].startswith(beginning):
            # The whole line belongs together: what follows works on what the first part made.
            return "", why
    return command, ""


def copy_context(folder: Path) -> None:
    """What `docker build` would send, links as links."""
    for name in context_files():
        to = folder / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, to, follow_symlinks=False)


def tree_bytes(folder: Path) -> int:
    """Bytes of all files below."""
    return sum(size for size in _sizes(folder))


def _sizes(folder: Path) -> Iterator[int]:
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _sizes(Path(entry.path))
        elif entry.is_file(follow_symlinks=False):
            yield entry.stat(follow_symlinks=False).st_size


def table(steps: list[Step]) -> str:
    """One line a step: stage, seconds, MiB added, the command's beginning."""
    lines = [
        f"{step.stage:8} {step.seconds:7.1f} s {step.size_bytes / (1 << 20):8.1f} MiB  "
        f"{'(left out) ' if step.left_out else ''}{without_mounts(step.command)[:90]}"
        for step in steps
    ]  # fmt: skip
    return "\n".join(lines)
