"""The Dockerfile installs what pyproject.toml and constraints.txt say, into images that run as nobody special."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable

import pytest
from compose_model import DOCKER, ROOT
from dockerfile_model import Dockerfile, context_files, ignore_patterns, is_in_context, mounts_of, read, without_mounts


@pytest.fixture(scope="module")
def file() -> Dockerfile:
    return read()


def test_stages_stand_in_order_and_name_what_exists(file: Dockerfile) -> None:
    seen: set[str] = set()
    for name, stage in file.stages.items():
        assert stage.base in seen or stage.base == "${BASE}", name
        for text in stage.texts("RUN"):
            assert all(mount["from"] in seen for mount in mounts_of(text)), name
        seen.add(name)
    assert {"run", "jupyter"} <= seen


def test_base_image_has_a_python_that_the_package_supports(file: Dockerfile) -> None:
    match = re.fullmatch(r"python:(\d+)\.(\d+)-slim-\w+", file.args["BASE"])
    assert match
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    low, high = re.findall(r"3\.(\d+)", requires)
    assert match[1] == "3" and int(low) <= int(match[2]) < int(high)


@pytest.mark.parametrize("target", ["run", "jupyter"])
def test_images_that_run_have_no_compiler_and_a_fixed_user_without_rights(file: Dockerfile, target: str) -> None:
    lineage = file.lineage(target)
    assert "build" not in [stage.name for stage in lineage]
    lines = [text for stage in lineage for text in stage.texts("RUN")]
    assert not any("apt-get" in line for line in lines)
    uid, _, gid = lineage[-1].user.partition(":")
    assert uid.isdigit() and uid == gid and int(uid) >= 1000
    assert any(f"useradd --uid {uid} " in line for line in lines)
    assert all(mount.get("type") == "bind" for line in lines for mount in mounts_of(line)), "a cache would stay"


def test_every_install_is_bound_by_the_constraints_and_torch_comes_first(file: Dockerfile) -> None:
    installs = [
        (stage.name, part) for stage in file.stages.values() for text in stage.texts("RUN")
        for part in without_mounts(text).split("&&") if "pip install" in part
    ]  # fmt: skip
    for stage_name, command in installs:
        assert "-c " in command or "$CUDA_COMPILER" in command, (stage_name, command)
    assert installs[0][0] == "base" and installs[0][1].split()[-1] == "torch"
    pins = (ROOT / "constraints.txt").read_text()
    for package in ("torch", "setuptools", "wheel", "pybind11", "grpcio-tools", "jupyterlab"):
        assert re.search(rf"^{package}==", pins, re.MULTILINE), package


def test_no_pip_cache_stays_in_a_layer(file: Dockerfile) -> None:
    for name in ("base", "build"):
        assert file.stages[name].env["PIP_NO_CACHE_DIR"] == "1"


def test_extras_and_packages_whose_tests_are_dropped_exist(file: Dockerfile) -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert file.stages["run"].args["EXTRAS"] in extras
    (install,) = file.stages["jupyter"].texts("RUN")
    assert re.findall(r"looseleaf\[(\w+)\]", install) == ["lab"] and "lab" in extras


def test_copied_files_are_sent_to_the_build(file: Dockerfile) -> None:
    for stage in file.stages.values():
        for text in stage.texts("COPY"):
            *sources, _target = [word for word in text.split() if not word.startswith("--")]
            for source in sources:
                assert source == "." or ((ROOT / source).is_file() and is_in_context(source)), source


def test_build_gets_the_sources_and_nothing_that_only_people_need() -> None:
    files = set(context_files())
    assert {
        "setup.py", "pyproject.toml", "constraints.txt", "README.md", "LICENSE", "services/scheduler/server.py",
        "proto/looseleaf/v1/types.proto", "csrc/third_party/xxhash/LICENSE", "looseleaf/services",
        "share/jupyter/kernels/looseleaf/kernel.json", "docker/lab.sh",
    } <= files  # fmt: skip
    assert not [name for name in files if name.startswith(("tests/", "docs/", "bench/", "examples/", ".", "docker/D"))]
    kept = [pattern[1:] for pattern in ignore_patterns() if pattern.startswith("!")]
    assert all((ROOT / pattern).exists() for pattern in kept)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        ("looseleaf/cli/main.py", True), ("looseleaf/v1/__init__.py", True), ("looseleaf/v1/types_pb2.py", False),
        ("looseleaf/dirty_tracker/_core.cpython-311.so", False), ("services/__pycache__/x.pyc", False),
        ("docker/compose.yaml", False), ("tests/conftest.py", False), (".git/HEAD", False),
    ],
)  # fmt: skip
def test_ignore_file_is_read_as_the_builder_reads_it(name: str, sent: bool) -> None:
    assert is_in_context(name) is sent


def test_arguments_are_explained_and_no_line_names_a_secret(file: Dockerfile) -> None:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    comments = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    for name in {*file.args, *(name for stage in file.stages.values() for name in stage.args)}:
        assert name in comments, name


@pytest.mark.parametrize("change", [lambda text: text.replace("RUN", "ONBUILD", 1), lambda text: text + "RUN x \\\n"])
def test_line_that_nobody_has_looked_at_is_noticed(tmp_path: object, change: Callable[[str], str]) -> None:
    from pathlib import Path

    path = Path(str(tmp_path)) / "Dockerfile"
    path.write_text(change((DOCKER / "Dockerfile").read_text(encoding="utf-8")))
    with pytest.raises(AssertionError):
        read(path)
