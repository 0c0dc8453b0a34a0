"""Widgets in another process: the same comm, their traits, their callbacks, and nothing said to the page meanwhile."""

# Cells stay in the form in which a person would write them.
# ruff: noqa: E501, ISC004

from __future__ import annotations

import pytest

# What a process says to the page, as (message type, comm id), and what the page says; no variables of the session.
RECORD = """
import builtins, comm
from comm.base_comm import BaseComm
sent = []
class Recorded(BaseComm):
    def publish_msg(self, msg_type, data=None, metadata=None, buffers=None, **keys):
        sent.append((msg_type, self.comm_id, data))
comm.create_comm = Recorded
def tell(comm_id, **state):
    comm.get_comm_manager().comm_msg(None, None, {"content": {"comm_id": comm_id, "data": {"method": "update", "state": state}}, "buffers": []})
builtins.sent, builtins.tell = sent, tell
# These are the test's own, not something that a cell set in a library.
from looseleaf.checkpoint.module_code import BASELINE
del BASELINE._known["builtins"]
BASELINE._met.discard("builtins")
BASELINE.begin()
# Without a notebook widgets show themselves as text.
import IPython.display
IPython.display.display = lambda *_args, **_kwargs: None
import contextlib, io, sys
sys.stdout = io.StringIO()
"""

WIDGETS = {
    "a slider with a callback": (
        "import ipywidgets as w\nseen = []\nslider = w.IntSlider(3, description='n')\nslider.observe(lambda c: seen.append(c['new']), 'value')\nid_ = slider.comm.comm_id",
        "slider.comm.comm_id == id_ and slider.value == 3 and (tell(id_, value=9), slider.value == 9 and seen == [9])[1]",
    ),
    "a callback for every trait": (
        "import ipywidgets as w\nseen = []\nt = w.Text('a')\nt.observe(lambda c: seen.append(c['name']))\nid_ = t.comm.comm_id",
        "(tell(id_, value='b'), 'value' in seen and 'comm' not in seen)[1]",
    ),
    "a button": (
        "import ipywidgets as w\nclicks = []\nb = w.Button()\nb.on_click(lambda b: clicks.append(b))\nid_ = b.comm.comm_id",
        "(b.click(), clicks == [b])[1]",
    ),
    "a box and its children": (
        "import ipywidgets as w\na = w.Checkbox(True); box = w.VBox([a, w.HTML('<b>x</b>')]); layout = a.layout",
        "box.children[0] is a and a.layout is layout and box.children[1].value == '<b>x</b>'",
    ),
    "two linked widgets": (
        "import ipywidgets as w, traitlets\na = w.IntText(1); b = w.IntText(2); link = traitlets.link((a, 'value'), (b, 'value')); id_ = a.comm.comm_id",
        "(tell(id_, value=7), b.value == 7)[1]",
    ),
    "a callback that refers to its widget": (
        "import ipywidgets as w\na = w.IntText(1)\ndef double(change):\n    a.description = str(2 * a.value)\na.observe(double, 'value'); id_ = a.comm.comm_id",
        "(tell(id_, value=7), a.description == '14')[1]",
    ),
    "interact": (
        "import ipywidgets as w\ncalls = []\n@w.interact(x=(0, 10))\ndef f(x=2): calls.append(x)\ncalls.clear(); id_ = f.widget.children[0].comm.comm_id",
        "(tell(id_, value=5), calls == [5])[1]",
    ),
    "a class of the session": (
        "import ipywidgets as w, traitlets\nclass Mine(w.IntSlider):\n    doubled = traitlets.Int()\n    @traitlets.observe('value')\n    def _double(self, change): self.doubled = 2 * self.value\n"
        "m = Mine(4); id_ = m.comm.comm_id",
        "m.doubled == 8 and (tell(id_, value=5), m.doubled == 10)[1]",
    ),
    "binary parts": ("import ipywidgets as w\nimage = w.Image(value=b'\\x89PNG')", "image.value == b'\\x89PNG'"),
    "a closed widget": ("import ipywidgets as w\na = w.IntText(1); a.close()", "a.comm is None and a.value == 1"),
}  # fmt: skip


@pytest.mark.parametrize("kind", WIDGETS)
def test_widget_in_another_process_is_the_same_one_for_the_page(process, kind):
    cells, expression = WIDGETS[kind]
    unsaved = process(f"{RECORD}\ncell({cells!r}); result = [[u.name, u.reason, u.path] for u in save().unsaved]")
    assert unsaved == []
    result = process(f"""
{RECORD}
restore_all()
said = list(sent)
result = [said, bool(check({expression!r})), sorted({{m for m, _, _ in sent}} - {{"comm_msg"}})]
""")
    # Nothing was opened or closed: the page has the widget already.
    assert result == [[], True, []]


def test_widget_that_a_newer_copy_replaces_says_nothing_at_its_end(process):
    result = process(f"""
{RECORD}
import gc, weakref
import ipywidgets
from looseleaf.checkpoint.widgets import reduce_widget
slider = ipywidgets.IntSlider(3)
id_, gone = slider.comm.comm_id, weakref.ref(slider)
make, arguments, state, _, _, fill = reduce_widget(slider)
newer = make(*arguments)
fill(newer, state)
sent.clear()
slider = None
gc.collect()
tell(id_, value=8)
result = [gone() is None, newer.value, [message for message, _, _ in sent]]
""")
    assert result == [True, 8, ["comm_msg"]]
