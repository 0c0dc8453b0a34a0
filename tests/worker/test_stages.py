"""A session's state on its way through several workers."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from looseleaf.errors import Unavailable, Unsupported

Worker = Any
MakeWorker = Callable[..., Any]
EMULATED = {"LOOSELEAF_DEVICE": "emulated", "LOOSELEAF_GPUS": "1"}


def shown(worker: Worker, expression: str, count: int = 1) -> str:
    reply = worker.run(f"print({expression}, end='')", count)
    assert reply["status"] == "ok", reply
    return worker.text()


def test_prepare_loads_what_an_earlier_worker_saved(make_worker: MakeWorker) -> None:
    first = make_worker()
    first.run("""
import numpy as np
data = np.arange(1_000_000)
view = data[10:]
def total(offset=0): return int(data.sum()) + offset
class Thing:
    size = 3
thing = Thing()
""")
    assert (first.saved["version"], first.saved["unsaved"], first.saved["durable"]) == (1, [], False)
    assert first.saved["total_regions"] >= first.saved["dirty_regions"] > 0
    second = make_worker(first.store, prepare=False)
    report = second.prepare(["total", "thing", "Thing", "view"])
    assert (report["missing"], report["failed_imports"], report["waiting"]) == ([], [], [])
    assert report["mapped_bytes"] >= 8_000_000
    assert report["pid"] == second.pid
    assert shown(second, "total(1), thing.size, type(thing) is Thing, view.base is data") == "499999500001 3 True True"
    second.run("view[0] = -5", 2)
    assert second.saved["version"] == 2
    assert second.saved["dirty_regions"] == 1
    third = make_worker(first.store, prepare=False)
    third.prepare(["data"])
    assert shown(third, "data[9:12]") == "[ 9 -5 11]"


def test_prepare_again_with_a_newer_version_refreshes_a_warm_worker(make_worker: MakeWorker) -> None:
    warm = make_worker()
    warm.run("x = [1]\ny = 'kept'")
    other = make_worker(warm.store, prepare=False)
    other.prepare(["x"])
    other.run("x.append(2)")
    report = warm.prepare(["x", "y"])
    assert report["missing"] == []
    assert shown(warm, "x, y", 3) == "[1, 2] kept"


def test_edits_of_a_cell_fetch_each_variable_once_and_change_nothing_outside(
    make_worker: MakeWorker, tmp_path: Path
) -> None:
    first = make_worker()
    first.run(f"import os, random\nos.chdir({str(tmp_path)!r})\na, b, c, d = [1], [2], [3], [4]")
    first.run("random.seed(3)", 2)
    worker = make_worker(first.store, prepare=False)
    # As recipes grow while a person types, and shrink again.
    asked = [["a"], ["a", "b"], ["b"], ["a", "b", "c"], ["a", "b", "c"], ["a", "d"]]
    fetched = []
    for names in asked:
        worker.prepare(names, imports=["wave"], ahead=True)
        fetched.append(len(first.store.fetched))
    assert len(set(first.store.fetched)) == len(first.store.fetched)
    grew = [after > before for before, after in itertools.pairwise([0, *fetched])]
    assert grew == [True, True, False, True, False, True]
    told = {worker.events.get()["t"] for _ in range(worker.events.qsize())}
    assert told <= {"importing"}, "to the daemon alone"
    assert (len(first.store.manifests), list(tmp_path.iterdir())) == (2, [])
    seeded = "(random := __import__('random')).getstate() == random.Random(3).getstate()"
    assert shown(worker, f"a, b, c, d, {seeded}", 3) == "[1] [2] [3] [4] True"


def test_own_modules_run_at_run_and_never_before(make_worker: MakeWorker, tmp_path: Path) -> None:
    (tmp_path / "ll_own.py").write_text("print('run', file=open('runs', 'a'))\nclass Thing:\n  size = 3\n")
    first = make_worker()
    first.run(f"import os\nos.chdir({str(tmp_path)!r})\nimport ll_own\nthing = ll_own.Thing()\nother = [1]")
    runs = tmp_path / "runs"
    runs.unlink()
    worker = make_worker(first.store, prepare=False)
    told = worker.prepare(["thing", "other", "ll_own"], ahead=True)
    assert (told["waiting"], told["missing"], runs.exists()) == (["ll_own", "thing"], [], False)
    assert worker.prepare(["thing", "other", "ll_own"])["waiting"] == []
    assert runs.read_text() == "run\n"
    assert shown(worker, "thing.size, type(thing) is ll_own.Thing, other", 2) == "3 True [1]"
    (tmp_path / "ll_own.py").write_text("class Thing:\n  size = 44\n")
    with pytest.raises(Unavailable, match="OWN_FILES_CHANGED.*ll_own"):
        worker.prepare(["thing"])
    # What no version has lives here only: it goes on as a process does.
    worker.prepare(["thing"], keep_modules=True)
    assert shown(worker, "thing.size", 3) == "3"
    fresh = make_worker(first.store, prepare=False)
    fresh.prepare(["thing"])
    assert shown(fresh, "thing.size", 4) == "44"


def test_prepare_of_a_name_that_does_not_exist_reports_it(make_worker: MakeWorker) -> None:
    worker = make_worker()
    worker.run("x = 1")
    assert make_worker(worker.store, prepare=False).prepare(["x", "nowhere"])["missing"] == ["nowhere"]


def test_prepare_imports_modules_and_reports_those_that_fail(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "leaves_at_import.py").write_text("import sys; sys.exit('no license')")
    many = [f"one_of_many_{number}" for number in range(200)]
    for name in many:
        (tmp_path / f"{name}.py").write_text("")
    names = ["xml.dom.minidom", "no_such_module", "leaves_at_import", "os", *many]
    report = worker.prepare(imports=names, cwd=str(tmp_path))
    assert [item["name"] for item in report["imported"]] == ["xml.dom.minidom", *many]
    # Each is told before, so that one that hangs is named; what is there already is not.
    told = [worker.event("importing")["name"] for _ in range(len(many) + 4)]
    assert told == ["xml.dom.minidom", "no_such_module", "leaves_at_import", *many, ""]
    assert all(0 <= item["seconds"] < report["stage_ms"]["import"] for item in report["imported"])
    assert [(item["name"], item["error"]) for item in report["failed_imports"]] == [
        ("no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("leaves_at_import", "SystemExit: no license"),
    ]
    assert shown(worker, "'xml.dom.minidom' in __import__('sys').modules") == "True"
    assert set(report["stage_ms"]) == {"import", "restore"}


def test_prepare_imports_with_the_sessions_environment_and_path(make_worker: MakeWorker, tmp_path: Path) -> None:
    (tmp_path / "reads_home.py").write_text("import os\nhome = os.environ.get('MODEL_HOME')")
    first = make_worker()
    first.run(f"import os, sys\nos.environ['MODEL_HOME'] = 'there'\nsys.path.insert(0, {str(tmp_path)!r})")
    second = make_worker(first.store, prepare=False)
    assert second.prepare(["os"], imports=["reads_home"])["failed_imports"] == []
    assert shown(second, "__import__('sys').modules['reads_home'].home") == "there"


def test_prepare_moves_to_the_working_directory(worker: Worker, tmp_path: Path) -> None:
    (tmp_path / "beside_the_notebook.py").write_text("value = 12")
    worker.prepare(cwd=str(tmp_path))
    assert shown(worker, "__import__('os').getcwd()") == str(tmp_path)
    assert shown(worker, "__import__('beside_the_notebook').value") == "12"


def test_prepare_working_directory_that_is_gone_is_refused(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="CWD_UNUSABLE"):
        worker.prepare(cwd=str(tmp_path / "gone"))


def test_prepare_for_another_session_is_refused(worker: Worker) -> None:
    with pytest.raises(Exception, match="OTHER_SESSION"):
        worker.prepare(session_id="s-other")


@pytest.mark.parametrize("field", ["names", "version", "session_id", "epoch"])
def test_prepare_malformed_is_refused_and_the_worker_lives(worker: Worker, field: str) -> None:
    with pytest.raises(Exception, match="FIELD_MALFORMED"):
        worker.prepare(**{field: 1.5})
    assert shown(worker, "'alive'") == "alive"


def test_random_numbers_go_on_where_the_session_was(make_worker: MakeWorker) -> None:
    setup = "import random, numpy, torch\nrandom.seed(1); numpy.random.seed(1); torch.manual_seed(1)"
    draw = "random.random(), numpy.random.rand(), torch.rand(1).item()"
    first = make_worker()
    first.run(setup)
    second = make_worker(first.store, prepare=False)
    second.prepare(["random", "numpy", "torch"])
    all_in_one = make_worker()
    all_in_one.run(f"{setup}\nprint({draw}, end='')")
    assert shown(second, draw) == all_in_one.text()


def test_attach_loads_what_lives_on_the_device(make_worker: MakeWorker) -> None:
    first = make_worker(**EMULATED)
    first.link.request("attach", {"gpus": [0], "device": "emulated", "delays": False}, timeout_s=60)
    ended = first.finish(first.begin("import torch\nw = torch.arange(100_000., device='cuda')\nhost = torch.ones(3)"))
    assert ended["reply"]["status"] == "ok", ended
    assert 0 <= ended["first_touch_s"] <= ended["run_s"]
    second = make_worker(first.store, prepare=False, **EMULATED)
    assert second.prepare(["w", "host", "torch"], ahead=True)["waiting"] == ["w"]
    asked = [len(first.store.fetched), *first.store.mapped]
    assert asked[1:] == [1], "the one region of `w`"
    reply, _ = second.link.request("attach", {"gpus": [3], "device": "emulated", "delays": False}, timeout_s=60)
    assert reply["missing"] == []
    assert [len(first.store.fetched), *first.store.mapped] == asked, "all was there before Run"
    assert shown(second, "w.device, w[-1].item(), host.device") == "cuda:0 99999.0 cpu"


def test_device_that_is_opened_before_run_shows_nothing_and_changes_nothing(make_worker: MakeWorker) -> None:
    def attach(worker: Worker, gpu: int = 0, **more: bool) -> dict[str, Any]:
        body = {"gpus": [gpu], "device": "emulated", "delays": False, **more}
        return dict(worker.link.request("attach", body, timeout_s=60)[0])

    first = make_worker(**EMULATED)
    attach(first)
    made = first.finish(first.begin("""
import torch
torch.cuda.manual_seed(5)
w, drawn = torch.arange(100_000., device='cuda'), torch.rand(3, device='cuda').tolist()
torch.cuda.manual_seed(5)
"""))
    assert made["reply"]["status"] == "ok", made
    second = make_worker(first.store, prepare=False, **EMULATED)
    second.prepare(["w", "torch", "drawn"], ahead=True)
    assert attach(second, gpu=2, ahead=True, load=False)["opened"] is True
    assert second.prepare(["w", "torch"], ahead=True)["waiting"] == ["w"]
    with pytest.raises(Unsupported, match="DEVICE_FIXED"):
        attach(second, gpu=1)
    attach(second, gpu=2, ahead=True, load=True)
    assert second.prepare(["w", "torch"])["waiting"] == []
    attach(second, gpu=2)
    assert shown(second, "torch.rand(3, device='cuda').tolist() == drawn, w[-1].item()", 2) == "True 99999.0"
    third = make_worker(first.store, prepare=False, **EMULATED)
    third.prepare(["torch"], ahead=True)
    attach(third, ahead=True, load=False)
    second.run("import os; os.environ['CUBLAS_WORKSPACE_CONFIG'] = ':4096:8'", 3)
    with pytest.raises(Unavailable, match="DEVICE_NOT_FRESH"):
        third.prepare(["torch"])


def test_cell_that_uses_no_device_has_no_first_touch(make_worker: MakeWorker) -> None:
    worker = make_worker(**EMULATED)
    worker.link.request("attach", {"gpus": [0], "device": "emulated", "delays": False}, timeout_s=60)
    assert worker.finish(worker.begin("import torch\ntorch.ones(3).sum();"))["first_touch_s"] is None


@pytest.mark.slow
def test_gpus_are_attached_where_torch_is_not_imported_yet(
    make_worker: MakeWorker, start_zygote: Callable[..., Any]
) -> None:
    bare = start_zygote("json", **EMULATED)
    worker = make_worker(zygote=bare, **EMULATED)
    worker.link.request("attach", {"gpus": [0, 1], "device": "emulated", "delays": False}, timeout_s=60)
    ended = worker.finish(worker.begin("import json, sys\nmade = 'torch' in sys.modules, json.dumps([2])"))
    assert (ended["reply"]["status"], ended["first_touch_s"]) == ("ok", None), ended
    ended = worker.finish(worker.begin("import torch\nw = torch.arange(100_000., device='cuda:1')", 2))
    assert ended["reply"]["status"] == "ok" and ended["first_touch_s"] is not None, ended
    expression = "made, w.device, torch.cuda.device_count(), w[-1].item()"
    assert shown(worker, expression, 3) == "(False, '[2]') cuda:1 2 99999.0"
    # What lives on a device comes back too where nobody has imported torch before.
    second = make_worker(worker.store, prepare=False, zygote=bare, **EMULATED)
    assert second.prepare(["w"])["waiting"] == ["w"]
    second.link.request("attach", {"gpus": [0, 1], "device": "emulated", "delays": False}, timeout_s=60)
    assert shown(second, "w.device, w[-1].item()", 4) == "cuda:1 99999.0"


def test_attach_of_gpus_to_a_worker_without_devices_is_refused(worker: Worker) -> None:
    with pytest.raises(Exception, match="NO_DEVICE"):
        worker.link.request("attach", {"gpus": [0], "device": "none", "delays": False}, timeout_s=60)


def test_results_of_earlier_cells_are_state_and_the_shells_own_names_are_not(make_worker: MakeWorker) -> None:
    first = make_worker()
    first.run("[1, 2]", 5)
    second = make_worker(first.store, prepare=False)
    assert second.prepare(["_5", "_", "In", "get_ipython"])["missing"] == ["In", "get_ipython"]
    assert shown(second, "_5") == shown(second, "_") == "[1, 2]"


def test_save_reports_what_cannot_be_moved_by_name(worker: Worker) -> None:
    worker.run("good = 1\nbad = (n for n in range(3))")
    assert [item["name"] for item in worker.saved["unsaved"]] == ["bad"]
    assert worker.saved["version"] == 1
    assert worker.saved["save_ms"] > 0
    assert worker.saved["resident_bytes"] >= 0


def test_large_array_does_not_count_as_resident_before_it_is_written(make_worker: MakeWorker) -> None:
    first = make_worker()
    first.run("import numpy as np\nbig = np.ones(16 << 20)")
    assert first.saved["resident_bytes"] > 100 << 20
    second = make_worker(first.store, prepare=False)
    second.prepare(["big"])
    second.run("print(big.sum())")
    assert second.saved["resident_bytes"] < 60 << 20
