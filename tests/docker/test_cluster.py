"""The compose files' commands as processes on loopback addresses of their own: TCP between containers."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import nbformat
import pytest
from compose_model import BASE_FILE, GPU_FILE, load
from compose_rig import ComposeRig

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(400)]

NOTEBOOKS = 3
NOTEBOOK_LIMIT_S = 240.0


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ComposeRig]:
    """All services, both profiles. A program that waits stands for JupyterLab, which a developer need not have."""
    programs = tmp_path_factory.mktemp("programs")
    stand_in = programs / "jupyter"
    stand_in.write_text('#!/bin/sh\necho "$@"\nexec tail -f /dev/null\n')
    stand_in.chmod(0o755)
    with ComposeRig(list(load()), extra_programs=programs) as found:
        yield found


def notebook_of(*cells: str) -> nbformat.NotebookNode:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])  # type: ignore[no-untyped-call]


def calls(rig: ComposeRig, name: str, method: str) -> float:
    """How often the service answered the method, from its Prometheus port."""
    config = load()[name].config
    address = rig.mapped(name, f"{config.metrics_host}:{config.metrics_port}")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    found = [line for line in lines if line.startswith("looseleaf_rpc_requests_total{") and f'/{method}"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def test_every_container_is_healthy_and_known_at_the_address_it_advertises(rig: ComposeRig) -> None:
    call = ["looseleaf", "rpc", "call", rig.address("scheduler"), "looseleaf.v1.SchedulerService/GetPool"]
    answer = rig.run("scheduler", call)
    assert answer.returncode == 0, answer.stderr
    hosts = {host["host"]["host_id"]: host for host in json.loads(answer.stdout)["hosts"]}
    assert {name: rig.unmapped(host["host"]["address"]) for name, host in hosts.items()} == {
        "h0": "worker-daemon:7404", "h1": "worker-daemon-2:7404", "lab": "lab:7404",
    }  # fmt: skip
    assert all(host["liveness"] == "alive" for host in hosts.values())
    addresses = {host["host"]["address"].partition(":")[0] for host in hosts.values()}
    assert len(addresses) == len(hosts), "each on an address of its own"


def test_commands_of_people_find_the_services_from_inside_a_host(rig: ComposeRig) -> None:
    hosts = rig.run("worker-daemon", ["looseleaf", "hosts", "--json"])
    assert hosts.returncode == 0, hosts.stderr
    assert {host["host"]["host_id"] for host in json.loads(hosts.stdout)} == {"h0", "h1", "lab"}
    sessions = rig.run("lab", ["looseleaf", "session", "list", "--json"])
    assert sessions.returncode == 0, sessions.stderr


def test_notebook_with_a_gpu_cell_runs_through_the_daemon_container(rig: ComposeRig) -> None:
    home = rig.path("worker-daemon", "/home/looseleaf")
    on_gpu = "%%gpu\nx = torch.arange(10, device='cuda')\nprint(x.sum().item(), x.device)"
    cells = ("import torch", on_gpu, "print(x.shape)")
    nbformat.write(notebook_of(*cells), home / "one.ipynb")  # type: ignore[no-untyped-call]
    done = rig.run("worker-daemon", [
        "looseleaf", "run", "one.ipynb", "-o", "one.out.ipynb", "--endpoint", "/run/looseleaf/kernel-h0.sock"])
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = [cell.outputs for cell in nbformat.read(home / "one.out.ipynb", as_version=4).cells]  # type: ignore[no-untyped-call]
    assert [out[0].text for out in outputs[1:]] == ["45 cuda:0\n", "torch.Size([10])\n"]


def test_cells_of_a_host_without_gpus_run_on_two_others_and_their_regions_cross_by_tcp(rig: ComposeRig) -> None:
    """More notebooks than one host has GPUs, each of which holds its GPU until all hold one."""
    home = rig.path("lab", "/home/looseleaf")
    hold = (
        "%%gpu\nimport glob, os, time, torch\n"
        "x = torch.from_numpy(data).cuda()\ny = x * 2\n"
        "open(f'here-{number}', 'w').write(os.environ['LOOSELEAF_HOST_ID'])\n"
        f"limit = time.monotonic() + {NOTEBOOK_LIMIT_S / 2}\n"
        f"while len(glob.glob('here-*')) < {NOTEBOOKS} and time.monotonic() < limit: time.sleep(0.02)\n"
    )
    running = []
    for number in range(NOTEBOOKS):
        cells = (
            f"import numpy as np\nnumber = {number}\ndata = np.arange(number, number + 1_500_000, dtype=np.float32)",
            hold, "print(float(y.cpu()[-1]))", "%%gpu\nprint((y - x)[0].item())",
        )  # fmt: skip
        nbformat.write(notebook_of(*cells), home / f"many-{number}.ipynb")  # type: ignore[no-untyped-call]
        command = ["looseleaf", "run", f"many-{number}.ipynb", "-o", f"many-{number}.out.ipynb", "--endpoint",
                   "/run/looseleaf/kernel-lab.sock"]
        running.append(subprocess.Popen(
            [rig.mapped("lab", word) for word in command], env=rig.environment("lab"), cwd=home,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    said = [process.communicate(timeout=NOTEBOOK_LIMIT_S)[0] for process in running]
    assert [process.returncode for process in running] == [0] * NOTEBOOKS, said
    for number in range(NOTEBOOKS):
        outputs = [cell.outputs for cell in nbformat.read(home / f"many-{number}.out.ipynb", as_version=4).cells]  # type: ignore[no-untyped-call]
        assert outputs[2][0].text == f"{(number + 1_499_999) * 2.0}\n"
        assert outputs[3][0].text == f"{float(number)}\n"
    assert {(home / f"here-{number}").read_text() for number in range(NOTEBOOKS)} == {"h0", "h1"}
    # What the kernel made was fetched from its host, and what the cells made from theirs.
    for name in ("lab", "worker-daemon", "worker-daemon-2"):
        assert calls(rig, name, "FetchRegions") > 0, name
    assert calls(rig, "worker-daemon-2", "Execute") > 0 and calls(rig, "lab", "Execute") == 0


@pytest.mark.leaks_ok("the services that it starts again are the rig's, which ends them")
def test_store_comes_back_from_a_backup_and_hosts_find_it_again(rig: ComposeRig) -> None:
    """The commands of docs/operate.md, on the volume's folder."""
    asked = ["looseleaf", "session", "list", "--json"]
    before = {head["session_id"]: head for head in json.loads(rig.run("worker-daemon", asked).stdout)}
    assert before, "the notebooks of this file's other tests"
    archive = rig.folder / "store.tar"
    rig.stop("checkpoint-store", "scheduler")
    pack = [rig.mapped("checkpoint-store", word) for word in ("tar", "-cf", "-", "-C", "/var/lib/looseleaf", ".")]
    with open(archive, "wb") as out:
        subprocess.run(pack, stdout=out, check=True, timeout=60)
    volume = rig.path("checkpoint-store", "/var/lib/looseleaf")
    shutil.rmtree(volume)
    unpack = [rig.mapped("checkpoint-store", word) for word in ("tar", "-xf", "-", "-C", "/var/lib/looseleaf")]
    with open(archive, "rb") as packed:
        subprocess.run(unpack, stdin=packed, check=True, timeout=60)
    rig.start("checkpoint-store", "scheduler")
    after = {head["session_id"]: head for head in json.loads(rig.run("worker-daemon", asked).stdout)}
    assert after == before
    home = rig.path("lab", "/home/looseleaf")
    nbformat.write(notebook_of("%%gpu\nimport torch\nprint(torch.ones(3).cuda().sum().item())"), home / "after.ipynb")  # type: ignore[no-untyped-call]
    done = rig.run("lab", [
        "looseleaf", "run", "after.ipynb", "-o", "after.out.ipynb", "--endpoint", "/run/looseleaf/kernel-lab.sock"])
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.soak
def test_host_without_gpus_of_a_pool_with_real_ones_needs_no_driver() -> None:
    names = ["checkpoint-store", "scheduler", "frontend", "worker-daemon-2"]
    with ComposeRig(names, files=(BASE_FILE, GPU_FILE)) as rig:
        home = rig.path("worker-daemon-2", "/home/looseleaf")
        asks = "import torch\nprint(torch.cuda.is_available(), torch.cuda.device_count(), torch.ones(2).device)"
        nbformat.write(notebook_of(asks), home / "asks.ipynb")  # type: ignore[no-untyped-call]
        done = rig.run("worker-daemon-2", [
            "looseleaf", "run", "asks.ipynb", "-o", "out.ipynb", "--endpoint", "/run/looseleaf/kernel-h1.sock"])
        assert done.returncode == 0, done.stdout + done.stderr
        (cell,) = nbformat.read(home / "out.ipynb", as_version=4).cells  # type: ignore[no-untyped-call]
        assert cell.outputs[0].text == "True 1 cpu\n"


def test_lab_starts_jupyterlab_beside_its_daemon_with_the_files_arguments(rig: ComposeRig) -> None:
    arguments = load()["lab"].command[1:]
    mapped = " ".join(rig.mapped("lab", argument) for argument in arguments)
    expected = f"lab --no-browser --MultiKernelManager.default_kernel_name=looseleaf {mapped}"
    assert expected in rig.log("lab").splitlines()


@pytest.mark.parametrize("ends", ["jupyter", "looseleaf-worker-daemon"])
def test_lab_ends_as_a_whole_when_one_of_its_two_programs_does(tmp_path: Path, ends: str) -> None:
    """Stand-ins: the one that ends fails with 7, the other waits until it is told to end and says so."""
    for name in ("jupyter", "looseleaf-worker-daemon"):
        waits = (
            f"trap 'touch {tmp_path}/told-{name}; exit 0' TERM\necho > {tmp_path}/waits\n"
            f"while true; do read -t 60 <> {tmp_path}/never; done"
        )
        (tmp_path / name).write_text(
            f"#!/bin/bash\n{f'read < {tmp_path}/waits; exit 7' if name == ends else waits}\n")
        (tmp_path / name).chmod(0o755)
    for pipe in ("waits", "never"):
        os.mkfifo(tmp_path / pipe)
    script = Path(__file__).resolve().parents[2] / "docker" / "lab.sh"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    ended = subprocess.run([str(script)], env=env, timeout=60, check=False)
    assert ended.returncode == 7
    other = ({"jupyter", "looseleaf-worker-daemon"} - {ends}).pop()
    assert (tmp_path / f"told-{other}").exists()
