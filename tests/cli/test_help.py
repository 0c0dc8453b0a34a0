"""What holds for every command: an example that parses, `--json` where it reads, codes that are documented."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from looseleaf.cli import exits, status
from looseleaf.cli.main import build_command, main, show_error
from looseleaf.cli.options import complete_notebooks
from looseleaf.config import ClusterConfig
from looseleaf.errors import ERRORS_BY_CODE, NotFound
from looseleaf.local import lab as lab_module

sys.path.insert(0, str(Path(__file__).parents[1] / "docker"))
from command_lines import parse_looseleaf

ROOT = Path(__file__).resolve().parents[2]
# Commands that change something or serve; all others read.
ACTING = {
    "up", "down", "lab", "run", "serve", "session checkout", "session rm", "kernel install", "kernel uninstall",
    "config set", "store gc", "store backup", "store restore", "rpc call",
}  # fmt: skip
# Commands that do without the settings of a cluster, or say what is wrong with them in their own way.
NEED_NO_CLUSTER = {
    "kernel install", "kernel uninstall", "kernel list", "config set", "config path", "explain", "serve", "simulate",
}  # fmt: skip


def commands(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that does something, with its words."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield " ".join(words), command
        return
    for name, below in inner.items():
        yield from commands(below, (*words, name))


ALL = dict(commands(build_command()))


def flags(name: str) -> set[str]:
    return {flag for parameter in ALL[name].params for flag in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("name", ALL)
def test_help_has_an_example_that_is_one_of_this_command(name: str) -> None:
    found = re.findall(r"Example: looseleaf (.+)", ALL[name].epilog or "")
    assert len(found) == 1
    assert parse_looseleaf(shlex.split(found[0]))[0] == name


def test_every_command_that_reads_speaks_json() -> None:
    assert ALL.keys() >= ACTING
    assert {name for name in ALL if "--json" in flags(name)} >= ALL.keys() - ACTING


def test_page_about_the_cli_names_every_command_and_exit_code() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    table = page.partition("## Exit codes")[0]
    for name in ALL:
        # Of a group's commands the first one has the group's name before it.
        group, _, last = f"looseleaf {name}".rpartition(" ")
        assert any(group in row and re.search(rf"[` ]{last}[` ]", row) for row in table.splitlines()), name
    rows = dict(re.findall(r"^\| (\d+) \| (.+?) \|", page, re.MULTILINE))
    assert {int(code): meaning for code, meaning in rows.items()} == exits.MEANINGS
    assert all(f"{code} " in exits.EPILOG for code in exits.MEANINGS)


def test_pages_show_commands_that_there_are() -> None:
    shown = 0
    for path in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for line in re.findall(r"^\$ (looseleaf .+)", path.read_text(encoding="utf-8"), re.MULTILINE):
            for command in line.partition(" #")[0].split(";"):
                words = shlex.split(command)
                assert words[0] == "looseleaf" and parse_looseleaf(words[1:]), f"{path.name}: {line}"
                shown += 1
    assert shown >= 15


@pytest.mark.parametrize("name", ["up", "lab"])
def test_commands_that_start_a_cluster_take_every_setting_of_it(name: str) -> None:
    wanted = {"--" + field.replace("_", "-") for field in ClusterConfig.model_fields}
    assert wanted | {"--no-tcp", "--no-emulated-delays"} <= flags(name)


def test_every_error_has_its_exit_code_and_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exits.OF_ERRORS.keys() == ERRORS_BY_CODE.keys()
    for code, cls in ERRORS_BY_CODE.items():
        assert show_error(cls("REASON", "what happened")) == exits.OF_ERRORS[code] != exits.FAILED
        assert capsys.readouterr().err.startswith("looseleaf: REASON: what happened\n")
    thrown: list[BaseException] = [NotFound("REASON", "what happened")]

    def fail(_run_dir: Path) -> None:
        raise thrown[-1]

    monkeypatch.setattr(status, "gather", fail)
    assert main(["status"]) == exits.ABSENT
    said = capsys.readouterr().err
    assert said.startswith("looseleaf: REASON: what happened\n") and "Traceback" not in said
    for other, wanted in ((KeyboardInterrupt(), exits.INTERRUPTED), (OSError(28, "full"), exits.LIMIT_MET)):
        thrown.append(other)
        assert main(["status"]) == wanted
        assert "Traceback" not in capsys.readouterr().err
    # A broken pipe of something else than stdout is no reader that went away.
    for bug in (ZeroDivisionError("ours"), BrokenPipeError(32, "to a service")):
        thrown.append(bug)
        assert main(["status"]) == exits.FAULT
        said = capsys.readouterr().err
        assert "Traceback" in said and "please report" in said
    # Neither is it where stdout is nowhere from the start.
    with open(os.devnull, "w") as nowhere:
        monkeypatch.setattr(sys, "__stdout__", nowhere)
        assert main(["status"]) == exits.FAULT
    assert "to a service" in capsys.readouterr().err


def test_short_output_on_a_full_disk_meets_a_limit_in_one_message() -> None:
    command = [sys.executable, "-c", "import sys; from looseleaf.cli.main import main; sys.exit(main(['--version']))"]
    with open("/dev/full", "wb", buffering=0) as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == exits.LIMIT_MET
    assert done.stderr.splitlines() == ["looseleaf: [Errno 28] No space left on device"]


@pytest.mark.parametrize("name", sorted(ALL.keys() - NEED_NO_CLUSTER))
def test_wrong_setting_is_told_with_its_place_by_every_command_that_reads_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for variable in [variable for variable in os.environ if variable.startswith("LOOSELEAF_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "NOTEBOOK.ipynb")
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "looseleaf.toml").write_text("[cluster]\nhosts = 'many'\n")
    monkeypatch.setattr(lab_module, "find_lab", lambda: ["jupyter-lab"])
    words = shlex.split(re.findall(r"Example: looseleaf (.+)", ALL[name].epilog)[0])
    assert main(words) == exits.USAGE
    said = capsys.readouterr().err
    assert "CONFIG_INVALID: cluster.hosts = 'many'" in said and f"{tmp_path}/looseleaf.toml:2" in said
    assert "Traceback" not in said


def completed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], line: str) -> list[str]:
    words = line.split(" ")
    with monkeypatch.context() as patch:
        patch.setenv("_LOOSELEAF_COMPLETE", "complete_bash")
        patch.setenv("COMP_WORDS", line.replace(" ", "\n"))
        patch.setenv("COMP_CWORD", str(len(words) - 1))
        assert main([]) == 0
    return capsys.readouterr().out.split()


def test_shell_completes_commands_settings_sections_and_notebooks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOOSELEAF_RUN_DIR", str(tmp_path / "none"))
    monkeypatch.chdir(tmp_path)
    nbformat.write(nbformat.v4.new_notebook(), tmp_path / "day.ipynb")
    (tmp_path / "data.txt").touch()
    assert completed(monkeypatch, capsys, "looseleaf se") == ["serve", "session"]
    assert completed(monkeypatch, capsys, "looseleaf config set scheduler.lease") == ["scheduler.lease_ttl_ms"]
    assert completed(monkeypatch, capsys, "looseleaf serve s") == ["store", "scheduler"]
    assert completed(monkeypatch, capsys, "looseleaf run da") == ["day.ipynb"]
    # No cluster runs: nothing, and no complaint.
    assert completed(monkeypatch, capsys, "looseleaf session show s-") == []


def test_notebooks_are_completed_within_folders_and_hidden_ones_on_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a/one.ipynb", "a/two.py", "a/.hid.ipynb", "b.ipynb"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).touch()
    assert complete_notebooks("") == ["a/", "b.ipynb"]
    assert complete_notebooks("a/") == ["a/one.ipynb"]
    assert complete_notebooks("a/.h") == ["a/.hid.ipynb"]
    assert complete_notebooks(f"{tmp_path}/a/o") == [f"{tmp_path}/a/one.ipynb"]
    assert complete_notebooks("none/x") == []
    assert os.listdir("a")
