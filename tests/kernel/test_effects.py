"""What counts as an effect of a cell outside the notebook."""

from __future__ import annotations

import contextlib
import http.client
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from looseleaf.devices.hook import WATCHER
from looseleaf.devices.touch import GpuTouch, TouchWatch, touch_in, watched
from looseleaf.devices.touch import tell as tell_touch
from looseleaf.kernel import effects
from looseleaf.kernel.effects import EFFECTS_MAX, TEMPORARY_MAX, Effects, effect_of
from looseleaf.kernel.journal import OutputJournal


def seen_of(act: Callable[[], object]) -> list[str]:
    found = Effects(TouchWatch(raises=True))
    with effects.watched(found):
        act()
    return found.seen


def test_effects_outside_are_seen_and_nothing_after_the_cell(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"

    def thread() -> None:
        one = threading.Thread(target=int)
        one.start()
        one.join()

    def connect() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.connect(("127.0.0.1", 9))

    for act, word in (
        (lambda: path.write_text("x"), "a.txt"), (lambda: os.close(os.open(path, os.O_RDWR)), "a.txt"),
        (lambda: path.rename(tmp_path / "b"), "renamed"), ((tmp_path / "b").unlink, "removed"),
        ((tmp_path / "d").mkdir, "made"), (thread, "thread"), (connect, "network"),
        (lambda: sqlite3.connect(tmp_path / "s").close(), "database"),
        (lambda: subprocess.run(["true"], check=True), "process"), (lambda: os.system("true"), "process"),
    ):  # fmt: skip
        assert any(word in what for what in seen_of(act)), word
    path.write_text("not watched")
    assert seen_of(lambda: None) == []


def test_what_the_kernel_writes_for_itself_is_no_effect(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    journal = OutputJournal(tmp_path / "run" / "outputs", lambda: "a.ipynb", 1 << 20)

    def show() -> None:
        journal.begin("s-1", "r-1", count=1, cell_id="c", source="print(1)")
        journal.take("r-1", "stream", {"name": "stdout", "text": "1"})
        journal.end("r-1", "ok")

    assert seen_of(show) == []
    assert list((tmp_path / "run" / "outputs").rglob("*.0"))
    # Only what it does there: the cell's own files are seen as ever.
    assert seen_of(lambda: [show(), (tmp_path / "own").touch()]) != []


def test_reading_probing_and_temporary_files_are_no_effects(tmp_path: Path) -> None:
    (tmp_path / "probing_module.py").write_text("open(__file__ + '.x', 'w').close()\nimport os; os.system('true')\n")

    def act() -> None:
        Path(__file__).read_text()
        with open(os.devnull, "w") as nowhere, tempfile.TemporaryFile() as temporary:
            nowhere.write("x")
            temporary.write(b"x")
        sqlite3.connect(":memory:").close()
        os.environ["EFFECT"] = "1"
        sys.path.insert(0, str(tmp_path))
        __import__("probing_module")

    assert seen_of(act) == []
    sys.path.remove(str(tmp_path))
    assert effect_of("open", (3, "w", os.O_WRONLY)) == "" == effect_of("import", ("os",))


def test_temporary_is_only_what_tempfile_made_for_the_cell(tmp_path: Path) -> None:
    def own() -> None:
        with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
            Path(folder, "a.txt").write_text("x")
            file.write("x")

    assert seen_of(own) == []
    for path in (Path(tempfile.gettempdir(), "tmp_results.csv"), tmp_path / "tmpabcd1234"):
        assert any(path.name in what for what in seen_of(lambda path=path: path.write_text("x"))), path  # type: ignore[misc]
        path.unlink()
    found = Effects(TouchWatch(raises=True))
    for number in range(TEMPORARY_MAX + 1):
        found.made_temporary(f"/tmp/tmp{number}")
    assert found.is_temporary("/tmp/tmp0/a") and not found.is_temporary(f"/tmp/tmp{TEMPORARY_MAX}")


def test_request_on_an_open_connection_is_seen() -> None:
    ours, theirs = socket.socketpair()
    connection = http.client.HTTPConnection("localhost")
    connection.sock = ours
    with ours, theirs:
        assert seen_of(lambda: connection.request("POST", "/", b"x")) == ["used the network"]


def test_writer_is_watched_when_the_cell_imports_it_and_what_the_cell_puts_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_writer.py").write_text("def write(path): pass\n")
    monkeypatch.setattr(effects, "_WRITERS", (("own_writer", "write"),))
    monkeypatch.syspath_prepend(str(tmp_path))
    WATCHER.enter()
    finders = list(sys.meta_path)
    assert seen_of(lambda: __import__("own_writer").write("a.bin")) == ["wrote to 'a.bin'"]
    module = sys.modules["own_writer"]
    assert not hasattr(module.write, "__wrapped__") and sys.meta_path == finders
    mine = types.SimpleNamespace()
    seen_of(lambda: setattr(module, "write", mine))
    assert module.write is mine
    del sys.modules["own_writer"]


def test_effects_that_are_told_are_bounded() -> None:
    found = Effects(TouchWatch(raises=True))
    for number in range(2 * EFFECTS_MAX):
        found.note(f"wrote {number}")
        found.note("wrote 0")
    assert found.seen == [f"wrote {number}" for number in range(EFFECTS_MAX)]


def test_touch_is_raised_in_the_cells_thread_only_and_outlives_a_bare_except() -> None:
    watch = TouchWatch(raises=True)
    with watched(watch):
        with pytest.raises(GpuTouch), contextlib.suppress(Exception):
            tell_touch("Tensor.cuda")
        one = threading.Thread(target=lambda: tell_touch("elsewhere"))
        one.start()
        one.join()
    assert watch.used == "Tensor.cuda"
    tell_touch("after the cell")


def test_effect_after_a_touch_is_stopped_before_it_happens(tmp_path: Path) -> None:
    watch = TouchWatch(raises=True)
    found = Effects(watch)
    with watched(watch), effects.watched(found):
        try:
            tell_touch("Tensor.cuda")
        except BaseException:
            with pytest.raises(GpuTouch):
                (tmp_path / "late.txt").write_text("x")
    assert found.seen == [] and not (tmp_path / "late.txt").exists()


def test_watch_that_does_not_raise_only_notes() -> None:
    watch = TouchWatch(raises=False)
    with watched(watch):
        tell_touch("first")
        tell_touch("second")
    assert watch.used == "first"


def test_errors_of_torch_without_cuda_are_touches() -> None:
    torch = pytest.importorskip("torch")
    if torch.version.cuda is not None and torch.cuda.is_available():
        pytest.skip("this machine has a GPU: torch raises none of these here")
    uses: list[Callable[[], object]] = [
        torch.ones(1).cuda, torch.ones(1).pin_memory, torch.cuda.FloatTensor, lambda: torch.zeros(1, device="cuda"),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(Exception) as caught:  # noqa: PT011
            use()
        assert touch_in(type(caught.value).__name__, str(caught.value)), caught.value
    for ename, evalue in (("ValueError", "Torch not compiled with CUDA enabled"), ("RuntimeError", "shapes differ")):
        assert touch_in(ename, evalue) == ""
