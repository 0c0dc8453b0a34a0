"""Widgets of GPU cells when their worker is not asked any more: shown, found by a reloaded page, honest about it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

from looseleaf.batch.client import OneSpec
from looseleaf.kernel.install import kernel_spec
from looseleaf.local.cluster import LocalCluster

sys.path.insert(0, str(Path(__file__).parent))
from reverse_play import Play

# No variable holds the slider: only the page knows it.
UNHELD = "import ipywidgets as w\ndef show():\n    s = w.IntSlider(3, max=50)\n    display(s)\nshow(); del show"


@pytest.fixture
def play(cluster: LocalCluster, tmp_path: Path) -> Iterator[Play]:
    spec = kernel_spec(endpoint=str(cluster.kernel_socket("h0")), env={"OMP_NUM_THREADS": "1"})
    manager = KernelManager(
        kernel_name="k", kernel_spec_manager=OneSpec(spec), transport="ipc", connection_file=str(tmp_path / "k.json")
    )
    manager.start_kernel(cwd=str(tmp_path))
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=60)
    yield Play(client, tmp_path)
    client.stop_channels()
    manager.shutdown_kernel()
    manager.cleanup_resources()


def of(play: Play, parent: str, kind: str) -> list[Any]:
    return [content for heard, belongs, content in play.heard if (heard, belongs) == (kind, parent)]


@pytest.mark.slow
def test_widget_that_nobody_holds_takes_changes_back_and_says_so_once(play: Play) -> None:
    play.run("cell", UNHELD, gpu=True)
    for name in ("one", "two"):
        play.update(name, "IntSliderModel-2", value=40)
        play.until(lambda name=name: bool(of(play, name, "comm_msg")))
        assert of(play, name, "comm_msg")[0]["data"] == {
            "method": "update", "state": {"value": 3}, "buffer_paths": []
        }  # fmt: skip
    play.run("after", "1")
    said = [content["text"] for content in of(play, "cell", "stream")]
    assert len(said) == 1 and said[0].count("belongs to a cell that ran on a GPU worker") == 1
    assert "%%cpu" in said[0]


@pytest.mark.slow
def test_reloaded_page_finds_widgets_of_workers_and_of_the_kernel(play: Play) -> None:
    play.run("here", "import ipywidgets as w\nheld = w.Text('mine')")
    play.run("there", UNHELD, gpu=True)
    play.run("binary", "def image(): display(w.Image(value=b'\\x89PNG'))\nimage(); del image", gpu=True)
    play.open_comm("control", "control", "jupyter.widget.control", {})
    play.comm("ask", "control", {"method": "request_states"})
    play.until(lambda: bool(of(play, "ask", "comm_msg")))
    (answer,) = of(play, "ask", "comm_msg")
    models = {model["model_name"]: model for model in answer["data"]["states"].values()}
    assert answer["data"]["method"] == "update_states"
    assert models["TextModel"]["state"]["value"] == "mine" and models["IntSliderModel"]["state"]["value"] == 3
    assert models["IntSliderModel"]["model_module"] == "@jupyter-widgets/controls"
    (path,) = answer["data"]["buffer_paths"]
    assert path[1:] == ["state", "value"] and answer["buffers"] == [b"\x89PNG"]


@pytest.mark.slow
@pytest.mark.parametrize("first", ["button", "tensor"])
def test_callback_that_needs_a_gpu_is_refused_where_it_was_asked_for(play: Play, first: str) -> None:
    cells = {
        "button": ("import ipywidgets as w\nb = w.Button()\nb.on_click(lambda _: print(big.sum()))\nb", False),
        "tensor": ("import torch\nbig = torch.ones(2048, 4096, device='cuda')", True),
    }
    # After the tensor the button's cell runs on a worker too, as its function reaches it; the button comes back then.
    for name in sorted(cells, key=lambda name: name != first):
        source, gpu = cells[name]
        play.run(name, source, gpu=gpu)
    play.comm("click", "ButtonModel-2", {"method": "custom", "content": {"event": "click"}})
    play.until(lambda: bool(of(play, "click", "stream") + of(play, "click", "error")))
    refusals = [content.get("text") or content["evalue"] for kind in ("stream", "error")
                for content in of(play, "click", kind)]  # fmt: skip
    assert len(refusals) == 1 and "%%gpu" in refusals[0]
    play.run("after", "print('alive')")
    assert of(play, "after", "stream")[0]["text"] == "alive\n"
