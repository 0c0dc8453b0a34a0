"""The Dockerfile's steps, run in an empty virtual environment, install what the compose files run."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from compose_model import DOCKER, ROOT, load, scripts
from compose_rig import PASSED_VARIABLES, ComposeRig
from image_steps import NOT_HERE, ImageSteps, table, tree_bytes

pytestmark = [pytest.mark.slow, pytest.mark.soak, pytest.mark.timeout(3000)]

# What a person waits for at the first start, with a margin for what the packages grow.
RUN_IMAGE_BYTES_MAX = 1800 << 20


@pytest.fixture(scope="module")
def image() -> Iterator[ImageSteps]:
    with tempfile.TemporaryDirectory(prefix="ll-image-") as folder:
        steps = ImageSteps(Path(folder))
        began_s = time.monotonic()
        steps.build()
        print(f"\n{table(steps.steps)}\nall steps: {time.monotonic() - began_s:.0f} s")
        for stage in ("run", "jupyter"):
            print(f"{stage}: {tree_bytes(steps.environment(stage)) / (1 << 20):.0f} MiB")
        yield steps


def test_only_listed_steps_were_left_out(image: ImageSteps) -> None:
    left_out = [step for step in image.steps if step.left_out]
    assert len(left_out) == 2 and all(step.command.startswith(tuple(NOT_HERE)) for step in left_out)
    assert len(image.steps) > len(left_out)


@pytest.fixture
def plain(tmp_path: Path) -> dict[str, str]:
    """Variables as in a container: no programs, settings or kernels of whoever runs the tests."""
    passed = {name: os.environ[name] for name in PASSED_VARIABLES if name in os.environ}
    return {**passed, "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}


def test_every_program_starts_and_tells_its_options(image: ImageSteps, plain: dict[str, str]) -> None:
    for stage in ("run", "jupyter"):
        for program in scripts():
            command = [str(image.environment(stage) / "bin" / program), "--help"]
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=120, check=False, cwd="/", env=plain)
            assert done.returncode == 0 and "--" in done.stdout, (program, done.stderr)


def test_image_has_what_it_runs_and_nothing_to_build_or_test_with(image: ImageSteps, plain: dict[str, str]) -> None:
    listed = subprocess.run(
        [str(image.environment("run") / "bin" / "pip"), "list", "--format", "json"], env=plain, capture_output=True,
        text=True, check=True,
    )  # fmt: skip
    packages = {item["name"].lower() for item in json.loads(listed.stdout)}
    assert {"looseleaf", "torch", "pandas", "matplotlib"} <= packages
    assert not packages & {"pytest", "mypy", "ruff", "pybind11", "grpcio-tools", "jupyterlab", "hypothesis"}
    assert not any(name.startswith("nvidia-") for name in packages), "this install was to take torch's CPU build"
    size_bytes = tree_bytes(image.environment("run"))
    assert size_bytes < RUN_IMAGE_BYTES_MAX, f"{size_bytes >> 20} MiB"


def test_installed_native_part_and_kernelspec_are_there(image: ImageSteps, plain: dict[str, str]) -> None:
    programs = image.environment("jupyter") / "bin"
    said = subprocess.run(
        [str(programs / "python"), "-I", "-c", "from looseleaf.dirty_tracker import build_info; print(build_info())"],
        cwd="/", env=plain, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.strip()
    # Not by `jupyter`, which takes the first `jupyter-kernelspec` of PATH, such as that of an active environment.
    specs = subprocess.run(
        [str(programs / "jupyter-kernelspec"), "list", "--json"], cwd="/", env=plain, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert json.loads(specs.stdout)["kernelspecs"]["looseleaf"]["spec"]["display_name"] == "Python 3 (LooseLeaf)"


def test_cuda_part_compiles_with_the_compiler_that_the_dockerfile_names() -> None:
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    (compiler,) = re.findall(r'^# +"(nvidia-cuda-nvcc[^"]+)"$', text, re.MULTILINE)
    assert f'CUDA_COMPILER="{compiler}"' in (ROOT / "docs" / "operate.md").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory(prefix="ll-image-") as folder:
        steps = ImageSteps(Path(folder), {"CUDA_COMPILER": compiler})
        print(f"\n{table(steps.build(['build']))}")
        (wheel,) = Path(folder, "build", "dist").glob("looseleaf-*.whl")
        names = zipfile.ZipFile(wheel).namelist()
    for part in ("_core", "_cuda"):
        assert any(name.startswith(f"looseleaf/dirty_tracker/{part}.cpython") for name in names), part


def test_compose_services_run_from_the_image_with_jupyterlab(image: ImageSteps) -> None:
    names = [name for name in load() if name != "worker-daemon-2"]
    token = "a-token-of-the-test"
    folder = image.environment("jupyter") / "bin"
    with ComposeRig(names, bin_folder=folder, variables={"JUPYTER_TOKEN": token}) as rig:
        home = rig.path("lab", "/home/looseleaf")
        cells = ["import torch", "%%gpu\nprint(torch.ones(3).cuda().sum().item())"]
        nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])  # type: ignore[no-untyped-call]
        nbformat.write(nb, home / "one.ipynb")  # type: ignore[no-untyped-call]
        command = ["looseleaf", "run", "one.ipynb", "-o", "out.ipynb", "--endpoint", "/run/looseleaf/kernel-lab.sock"]
        done = rig.run("lab", command)
        assert done.returncode == 0, done.stdout + done.stderr
        assert nbformat.read(home / "out.ipynb", as_version=4).cells[1].outputs[0].text == "3.0\n"  # type: ignore[no-untyped-call]
        port = next(word for word in rig.services["lab"].command if word.startswith("--port=")).removeprefix("--port=")
        address = rig.mapped("lab", f"0.0.0.0:{port}")
        request = urllib.request.Request(
            f"http://{address}/api/kernelspecs", headers={"Authorization": f"token {token}"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            found = json.load(answer)
        assert found["default"] == "looseleaf" and "looseleaf" in found["kernelspecs"]
