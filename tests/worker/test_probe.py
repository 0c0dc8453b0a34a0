"""A probe's verdicts on fixture packages: one process imports the probe and forks for each, as a zygote does."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from import_cases import CASES, write_packages
from probe_rig import Outcome, run_probes

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
REPOSITORY = FIXTURES.parents[1]
# A fork that never answers is given up so soon.
SMOKE_LIMITS_S = {"hangs_after_fork": 0.05}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """Of each fixture package, and of sets of them: the probe's result with what it said before."""
    folder = tmp_path_factory.mktemp("packages")
    write_packages(folder)
    # As installers leave it; a notebook's own folder has no such mark, and one of an editable install another.
    (folder / "fixtures-1.0.dist-info").mkdir()
    own = tmp_path_factory.mktemp("own")
    (own / "beside_the_notebook.py").write_text("")
    (own / "editable.egg-info").mkdir()
    (folder / "uses_own.py").write_text("import beside_the_notebook")
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here to make the driver's stub")
    stub = folder / "libcuda.so.1"
    source = FIXTURES / "stub_driver.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", stub, source], check=True)
    sets = {name: [name] for name in CASES} | {
        "set": ["quiet_one", "json", "exits", "circular_a"], "missing": ["no_such_package"],
        "own": ["beside_the_notebook"], "uses_own": ["uses_own"],
        "many": ["quiet_one", *(f"many_{number}" for number in range(200))],
    }  # fmt: skip
    for number in range(200):
        (folder / f"many_{number}.py").write_text("")
    env = {
        "LD_LIBRARY_PATH": str(folder), "STUB_DRIVER_LOG": str(folder / "driver.log"),
        "PYTHONPATH": os.pathsep.join([str(folder), str(own), str(REPOSITORY)]),
    }  # fmt: skip
    found = run_probes(sets, env, SMOKE_LIMITS_S)
    calls = [line.split() for line in (folder / "driver.log").read_text().splitlines()]
    for outcome in found.values():
        outcome["driver"] = {call for pid, call in calls if pid == str(outcome["pid"])}
    return found


@pytest.mark.parametrize("name", CASES)
def test_probe_of_a_package_gives_its_verdict(outcomes: dict[str, Outcome], name: str) -> None:
    outcome = outcomes[name]
    assert (outcome["verdict"], outcome["culprit"]) == (CASES[name][1], "" if CASES[name][1] == "clean" else name)
    assert bool(outcome["detail"]) == (outcome["verdict"] != "clean")


def test_probe_leaves_no_process(outcomes: dict[str, Outcome]) -> None:
    assert {name: outcome["left"] for name, outcome in outcomes.items() if outcome["left"]} == {}


def test_probe_says_cuda_where_the_drivers_own_log_does(outcomes: dict[str, Outcome]) -> None:
    called = {name for name, outcome in outcomes.items() if "cuInit" in outcome["driver"]}
    assert called == {"cuda_at_import", "cuda_by_another"}
    assert "LOAD" in outcomes["loads_driver"]["driver"]
    assert not outcomes["quiet_one"]["driver"]


def test_probe_names_the_import_it_stopped_at_and_tries_no_more(outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes["set"]
    assert (outcome["verdict"], outcome["culprit"], outcome["detail"]) == ("error", "exits", "SystemExit: no license")
    begun = [line["begin"] for line in outcome["said"] if "begin" in line]
    assert begun == ["quiet_one", "json", "exits"]
    assert [line["took"][0] for line in outcome["said"] if "took" in line] == begun


def test_probe_tells_of_each_import_what_came_by_it(outcomes: dict[str, Outcome]) -> None:
    said = outcomes["set"]["said"]
    brought = {line["took"][0]: line["modules"] for line in said if "took" in line}
    assert "quiet_one" in brought["quiet_one"] and "quiet_one" not in brought["json"] + brought["exits"]


def test_probe_of_a_package_that_is_not_installed_says_so(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["missing"]["verdict"] == "error"
    assert "No module named 'no_such_package'" in outcomes["missing"]["detail"]


def test_probe_tells_modules_that_came_and_their_memory(outcomes: dict[str, Outcome]) -> None:
    assert outcomes["circular_a"]["modules"] == ["circular_a", "circular_b"]
    assert len([name for name in outcomes["many"]["modules"] if name.startswith("many_")]) == 200
    assert outcomes["many"]["private_bytes"] > outcomes["quiet_one"]["private_bytes"] >= 0


def test_probe_of_what_is_not_installed_but_lies_there_keeps_it_out_of_zygotes(outcomes: dict[str, Outcome]) -> None:
    for name in ("own", "uses_own"):
        assert outcomes[name]["verdict"] == "foreign"
        assert "beside_the_notebook" in outcomes[name]["detail"]


def test_probe_forked_from_a_zygote_answers_on_its_channel_and_ends(bare_zygote: Any) -> None:
    ours, theirs = socket.socketpair()
    null = os.open(os.devnull, os.O_RDWR)
    try:
        imports = ["xml.dom.minidom", "no_such"]
        message = {"t": "FORK", "v": 1, "id": 9, "title": "", "kind": "probe", "imports": imports}
        bare_zygote.control.send(message, [theirs.fileno(), null, null, 2])
        reply = bare_zygote.control.recv(60)[0]
    finally:
        os.close(null)
        theirs.close()
    assert reply["t"] == "FORKED", reply
    with ours, ours.makefile() as stream:
        said = [json.loads(line) for line in stream]
    assert [line["begin"] for line in said if "begin" in line] == ["xml.dom.minidom", "no_such"]
    assert (said[-1]["result"]["verdict"], said[-1]["result"]["culprit"]) == ("error", "no_such")
    assert "xml.dom.minidom" in said[-1]["result"]["modules"]
    assert os.waitstatus_to_exitcode(os.waitpid(reply["pid"], 0)[1]) == 0
