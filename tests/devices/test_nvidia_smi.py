"""`nvidia-smi` where there is none, its pure part and its place on the search path."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from looseleaf.devices.description import VIRTUAL, GpuDescription
from looseleaf.devices.nvidia_smi import answer, main
from looseleaf.devices.smi_shim import offer_smi, withdraw_smi

T4 = GpuDescription("Tesla T4", 15 << 30, 7, 5, 40, "12.4", "550.54.15")
POOL = {"count": 2, **T4.message()}


def test_table_of_no_arguments_has_lines_of_one_width_and_every_gpu() -> None:
    text, status = answer(POOL, [])
    assert status == 0
    lines = [line for line in text.splitlines()[1:] if line]
    assert {len(line) for line in lines} == {91}
    assert text.count("Tesla T4") == 2 and "0MiB /  15360MiB" in text
    assert "Driver Version: 550.54.15" in text and "CUDA Version: 12.4" in text
    # As notebooks look for a kind of GPU in the output of `!nvidia-smi`.
    assert re.search(r"Tesla (\w+)", text) and "failed" not in text


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        (["-L", "-i", "1"], "GPU 1: Tesla T4 (UUID: GPU-00000000-0000-4c4c-0000-000000000001)"),
        (["--query-gpu=name,memory.total", "--format=csv,noheader"], "Tesla T4, 15360 MiB\nTesla T4, 15360 MiB"),
        (["--query-gpu=memory.used,memory.free", "--format=csv,nounits,noheader", "-i", "1"], "0, 15360"),
        (["--query-gpu", "index,utilization.gpu", "--format", "csv", "--id=0"],
         "index, utilization.gpu [%]\n0, 0 %"),
        (["--query-gpu=gpu_name,compute_cap,temperature.gpu", "--format=csv,noheader", "-i", "0"],
         "Tesla T4, 7.5, [N/A]"),
        (["--query-gpu=count,driver_version,pci.bus_id", "--format=csv,noheader", "-i", "1"],
         "2, 550.54.15, 00000000:02:00.0"),
        (["--query-compute-apps=pid,used_memory", "--format=csv"], "pid, used_memory"),
        (["--query-compute-apps=pid", "--format=csv,noheader"], ""),
    ],
)  # fmt: skip
def test_question_in_a_common_form_is_answered_as_the_driver_s_program_does(arguments: list[str], wanted: str) -> None:
    assert answer(POOL, arguments) == (wanted, 0)


@pytest.mark.parametrize(
    ("arguments", "part", "status"),
    [
        (["--query-gpu=name,nonsense", "--format=csv"], 'Field "nonsense" is not a valid field to query', 2),
        (["--query-gpu=name"], "csv", 2),
        (["-i", "2"], "No devices were found", 6),
        (["-pm", "1"], "%%gpu", 2),
        (["dmon"], "%%gpu", 2),
    ],
)
def test_question_that_cannot_be_answered_is_refused_with_a_status(
    arguments: list[str], part: str, status: int
) -> None:
    text, found = answer(POOL, arguments)
    assert part in text and found == status


@pytest.mark.parametrize("arguments", [["-q"], ["-q", "-d", "MEMORY"], ["--version"], ["-h"], ["-l", "1"]])
def test_other_forms_name_the_driver_or_the_gpu(arguments: list[str]) -> None:
    text, status = answer(POOL, arguments)
    assert status == 0 and ("550.54.15" in text or "--query-gpu" in text)


def test_program_on_the_search_path_tells_of_the_pool(tmp_path: Path) -> None:
    environ = {"PATH": "/usr/bin:/bin"}
    folder = tmp_path / "a folder" / "bin"
    offer_smi(environ, folder, "emulated", 1, VIRTUAL)
    offer_smi(environ, folder, "emulated", 1, VIRTUAL)
    assert environ["PATH"] == f"{folder}:/usr/bin:/bin"
    told = subprocess.run(["nvidia-smi", "-L"], env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert told.stdout.startswith("GPU 0: LooseLeaf Virtual GPU")
    # Another session's shell, which has the path and no description.
    lost = subprocess.run(
        ["nvidia-smi"], env={"PATH": environ["PATH"]}, capture_output=True, text=True, timeout=60, check=False
    )
    assert (lost.returncode, lost.stderr) == (127, "nvidia-smi: command not found\n")


def test_program_without_a_pool_runs_the_machine_s_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "nvidia-smi"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    ran: list[list[str]] = []
    monkeypatch.setattr(os, "execv", lambda path, arguments: ran.append([path, *arguments[1:]]))
    monkeypatch.delenv("LOOSELEAF_POOL_GPUS", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    main(["-L"])
    assert ran == [[str(own), "-L"]]


@pytest.mark.parametrize(("kind", "count"), [("none", 1), ("emulated", 0), ("cuda", 1)])
def test_program_is_not_offered_where_there_is_nothing_to_tell_or_a_better_one(
    tmp_path: Path, kind: str, count: int
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "nvidia-smi").write_text("#!/bin/sh\n")
    (own / "nvidia-smi").chmod(0o755)
    environ = {"PATH": str(own), "LOOSELEAF_POOL_GPUS": "{}"}
    offer_smi(environ, tmp_path / "bin", kind, count, T4)
    assert environ == {"PATH": str(own)}


def test_program_is_offered_for_real_gpus_of_other_hosts(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path)}
    offer_smi(environ, tmp_path / "bin", "cuda", 1, T4)
    assert environ["PATH"].startswith(str(tmp_path / "bin")) and "Tesla T4" in environ["LOOSELEAF_POOL_GPUS"]


def test_folder_that_others_can_write_is_kept_off_the_search_path(tmp_path: Path) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    folder.chmod(0o777)
    environ = {"PATH": "/bin"}
    offer_smi(environ, folder, "emulated", 1, VIRTUAL)
    assert environ == {"PATH": "/bin"} and not list(folder.iterdir())


def test_folder_that_cannot_be_written_leaves_the_environment_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environ = {"PATH": "/bin"}
    offer_smi(environ, tmp_path / "file" / "bin", "emulated", 1, VIRTUAL)
    assert environ == {"PATH": "/bin"}


def test_withdrawn_program_leaves_what_others_put_beside_it(tmp_path: Path) -> None:
    for folder, others in ((tmp_path / "alone", []), (tmp_path / "shared", ["mine"])):
        offer_smi({}, folder, "emulated", 1, VIRTUAL)
        for name in others:
            (folder / name).touch()
        assert (folder / "nvidia-smi").is_file()
        withdraw_smi(folder)
        withdraw_smi(folder)
        assert folder.is_dir() == bool(others)
        assert [path.name for path in tmp_path.glob(f"{folder.name}/*")] == others
