"""A person goes back to older versions of a notebook between GPU cells, and from the command line."""

from __future__ import annotations

import json
import re
from typing import Any

import psutil
import pytest

from looseleaf.cli.main import main

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(240)]


@pytest.fixture(scope="module")
def cluster_env() -> dict[str, str]:
    """A tenant of its own, within which saves, restores, checkouts and copies must find all they need."""
    return {"LOOSELEAF_DAEMON_TENANT": "team"}


def undo_of(text: str) -> str:
    found = re.search(r"`(%looseleaf [^`]+)` undoes it", text)
    assert found is not None, text
    return found[1]


def test_gpu_cells_follow_a_checkout_and_its_undo(notebook: Any) -> None:
    notebook.ok("import torch\nsteps = []")
    notebook.ok("w = torch.zeros(1 << 20, device='cuda'); view = w[:4]; steps.append('made')")
    notebook.ok("%%gpu\nw += 1; steps.append('first')\ndef f(): return float(w.sum()) * scale\nscale = 1")
    first = notebook.ok("%looseleaf log").text
    notebook.ok("%%gpu\nw += 1; later = w * 2; scale = 10; steps.append('second')\ndef f(): return later / 0")
    assert "w += 1; steps" in first and "w += 1; later" in notebook.ok("%looseleaf log -n 1").text
    version = re.findall(r"^ *(\d+) .*w \+= 1; steps", first, re.MULTILINE)[0]
    assert "later" in notebook.ok(f"%looseleaf diff {version}").text
    shown = notebook.ok(f"%looseleaf checkout {version}\nprint(steps, 'later' in globals())").text
    assert "['made', 'first'] False" in shown
    # The worker that ran the second step is warm; it goes back with the kernel.
    assert notebook.ok("%%gpu\n(f() / (1 << 20), view.sum().item(), steps)").value == "(1.0, 4.0, ['made', 'first'])"
    notebook.ok("%%gpu\nw += 5; steps.append('another way')")
    assert notebook.ok("%%gpu\nview.tolist()").value == "[6.0, 6.0, 6.0, 6.0]"
    notebook.ok(undo_of(shown))
    assert notebook.ok("steps").value == "['made', 'first', 'second']"
    assert notebook.ok("%%gpu\n(w[0].item(), later[0].item(), scale, view[0].item())").value == "(2.0, 4.0, 10, 2.0)"


def test_gpu_values_of_an_older_version_come_back_by_name(notebook: Any) -> None:
    notebook.ok("import torch\nclass Net(torch.nn.Linear):\n    pass")
    notebook.ok("net = Net(2048, 2049).cuda(); loss = torch.ones(1).cuda()")
    notebook.ok("opt = torch.optim.SGD(net.parameters(), lr=0.1)")
    notebook.ok("%%gpu\nwith torch.no_grad():\n    net.weight.fill_(7)\nloss.fill_(3); other = 'stays'")
    shown = notebook.ok("%looseleaf restore net opt").text
    check = "%%gpu\nheld = opt.param_groups[0]['params'][0]\n(net.weight.eq(7).all().item(), held is net.weight"
    check = f"{check}, loss.item(), other, type(net) is Net)"
    assert notebook.ok(check).value == "(False, True, 3.0, 'stays', True)"
    notebook.ok("%%gpu\nopt.zero_grad(); net(torch.ones(1, 2048, device='cuda')).sum().backward(); opt.step()")
    notebook.ok(undo_of(shown))
    assert notebook.ok(check).value == "(True, True, 3.0, 'stays', True)"
    # A small one may be read without a GPU, before and after.
    assert notebook.ok("%looseleaf restore loss --as was\nprint(was.item(), loss.item())").text.endswith("1.0 3.0\n")
    refused = notebook.run("%%gpu\n%looseleaf restore net\nnet.weight.sum()")
    assert refused.ename == "MAGIC_IN_GPU_CELL" and "nothing was run" in refused.error


def test_magic_beside_a_running_gpu_cell_changes_nothing(notebook: Any) -> None:
    notebook.ok("import torch, threading\nx = [1]\nerrors = []")
    notebook.ok("%%gpu\ny = torch.ones(3, device='cuda')")
    notebook.ok(
        "def meddle(gate):\n"
        "    gate.wait()\n"
        "    try:\n"
        "        get_ipython().run_line_magic('looseleaf', 'checkout -1')\n"
        "    except Exception as error:\n"
        "        errors.append(error.reason)\n"
        "thread = threading.Thread(target=meddle, args=(gate := threading.Event(),)); thread.start(); gate.set()\n"
        "thread.join()"
    )
    assert notebook.ok("errors").value == "['STATE_IS_ELSEWHERE']"
    assert notebook.ok("%%gpu\ny.sum().item()").value == "3.0"


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str], cluster: Any) -> Any:
    """`ask(command, ...)`: what the command prints as JSON, or its error's text."""

    def run(*arguments: Any) -> Any:
        code = main([*map(str, arguments), "--data", str(cluster.record.data), "--json"])
        shown = capsys.readouterr()
        return json.loads(shown.out) if code == 0 else shown.err

    return run


def test_session_is_checked_out_from_outside_once_its_notebook_is_closed(new_notebook: Any, ask: Any) -> None:
    notebook = new_notebook()
    notebook.ok("import torch\nx = torch.zeros(1 << 20, device='cuda'); said = 'first'")
    session_id, before = re.findall(r"session +(\S+)\nversion +(\d+)", notebook.ok("%looseleaf status").text)[0]
    notebook.ok("%%gpu\nx += 1; said = 'second'")
    newest, before = int(ask("session", "log", session_id)[0]["version"]), int(before)
    assert "SESSION_IN_USE" in ask("session", "checkout", session_id, before)
    assert notebook.ok("(said, x.sum().item())").value == f"('second', {float(1 << 20)})"
    copy = ask("session", "checkout", session_id, before, "--new")
    assert copy["session_id"] != session_id and copy["source"] == before
    kernel = psutil.Process(notebook.pid)
    notebook.run("exit")
    kernel.wait(20)
    other = new_notebook(env={"LOOSELEAF_SESSION": copy["session_id"]})
    assert other.ok("(said, x.sum().item())").value == "('first', 0.0)"
    done = ask("session", "checkout", session_id, before)
    assert (done["session_id"], done["source"]) == (session_id, before) and done["version"] > newest
    again = new_notebook(env={"LOOSELEAF_SESSION": session_id})
    assert again.ok("(said, x.sum().item())").value == "('first', 0.0)"
    again.ok(f"%looseleaf checkout {newest}")
    assert again.ok("%%gpu\n(said, x.sum().item())").value == f"('second', {float(1 << 20)})"
    assert [tenant["tenant"] for tenant in ask("store", "stats")["tenants"]] == ["team"]
    other.ok("%%gpu\nx += 3")
    assert other.ok("(said, x[0].item())").value == "('first', 3.0)"


def test_bad_versions_and_sessions_are_refused_from_outside(ask: Any) -> None:
    for arguments, reason in (
        (("s-nobody", 1), "SESSION_UNKNOWN"), (("s-nobody", 1, "--new"), "SESSION_UNKNOWN"),
        (("s-nobody", 0), "VERSION_MALFORMED"), (("../x", 1), "ID_MALFORMED"),
    ):  # fmt: skip
        assert reason in ask("session", "checkout", *arguments)
