"""What a cell shows, in the order it was made."""

from __future__ import annotations

import base64
import os
import re
from pathlib import Path
from typing import Any

import pytest

from looseleaf.worker.streams import STREAM_CHARS_MAX

Worker = Any
pytestmark = pytest.mark.usefixtures("shared_worker")


def plain_traceback(message: dict[str, Any]) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(message["traceback"]))


def run(worker: Worker, source: str, count: int = 1, **options: Any) -> list[dict[str, Any]]:
    reply = worker.run(source, count, **options)
    assert reply["status"] == "ok", reply
    return worker.messages


def test_output_of_all_kinds_keeps_its_order(shared_worker: Worker) -> None:
    messages = run(shared_worker, """
import sys
from IPython.display import display, clear_output, HTML
print('one')
print('two', file=sys.stderr)
display(HTML('<b>three</b>'))
print('four')
clear_output(wait=True)
handle = display('five', display_id='id-5')
handle.update('six')
sys.stdout.write('seven')
7 + 1
""", 4)
    assert [m["type"] for m in messages] == [
        "stream", "stream", "display_data", "stream", "clear_output", "display_data", "update_display_data", "stream",
        "execute_result",
    ]
    assert messages[0] == {"type": "stream", "name": "stdout", "text": "one\n"}
    assert messages[1] == {"type": "stream", "name": "stderr", "text": "two\n"}
    assert messages[2]["data"]["text/html"] == "<b>three</b>"
    assert messages[4]["wait"] is True
    assert messages[5]["transient"] == messages[6]["transient"] == {"display_id": "id-5"}
    assert messages[7]["text"] == "seven"
    assert messages[8] == {"type": "execute_result", "data": {"text/plain": "8"}, "metadata": {}, "execution_count": 4}


def test_execute_result_has_the_kernels_count_and_underscore_names_it(shared_worker: Worker) -> None:
    run(shared_worker, "'first'", 41)
    assert run(shared_worker, "_ + str(_41) + Out[41]", 42)[0]["data"]["text/plain"] == "'firstfirstfirst'"
    assert shared_worker.messages[0]["execution_count"] == 42


def test_execute_result_with_semicolon_is_silent(shared_worker: Worker) -> None:
    assert run(shared_worker, "3 + 4;", 5) == []


def test_text_is_sent_while_the_cell_still_runs(shared_worker: Worker, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    outcome = shared_worker.begin(f"print('early')\nopen({str(gate)!r}).read();")
    assert shared_worker.output_until(lambda m: m["type"] == "stream")["text"] == "early\n"
    assert not outcome.done()
    gate.write_text("go on")
    shared_worker.finish(outcome)


def test_many_prints_arrive_whole_in_few_messages(shared_worker: Worker) -> None:
    messages = run(shared_worker, "for i in range(100_000): print(i)")
    assert shared_worker.text() == "".join(f"{i}\n" for i in range(100_000))
    assert len(messages) < 500


def test_very_long_text_is_cut_into_messages_that_fit(shared_worker: Worker) -> None:
    messages = run(shared_worker, f"print('\\N{{SNOWMAN}}' * {2 * STREAM_CHARS_MAX + 1}, end='')")
    assert len(messages) == 3
    assert shared_worker.text() == "\N{SNOWMAN}" * (2 * STREAM_CHARS_MAX + 1)


def test_text_that_is_no_unicode_is_shown_with_marks(shared_worker: Worker) -> None:
    run(shared_worker, "print('a\\ud800b')")
    assert shared_worker.text() == "a?b\n"


def test_print_of_something_else_than_text_is_the_cells_error(shared_worker: Worker) -> None:
    reply = shared_worker.run("import sys\nsys.stdout.write(3)")
    assert (reply["ename"], "must be str" in reply["evalue"]) == ("TypeError", True)


def test_streams_look_as_in_an_ordinary_kernel(shared_worker: Worker) -> None:
    source = "import sys\nprint(sys.stdout.isatty(), sys.stdout.encoding, sys.stdout.writable(), sys.stdout.name)"
    run(shared_worker, source)
    assert shared_worker.text() == "False UTF-8 True stdout\n"


def test_closing_stdout_does_not_silence_later_cells(shared_worker: Worker) -> None:
    run(shared_worker, "import sys\nsys.stdout.close()")
    run(shared_worker, "print('still here')")
    assert shared_worker.text() == "still here\n"


def test_output_beside_sys_stdout_is_shown(shared_worker: Worker) -> None:
    run(shared_worker, """
import ctypes, os, subprocess, sys
os.write(1, b'os\\n')
ctypes.CDLL(None).puts(b'c library')
subprocess.run([sys.executable, '-c', 'print("subprocess")'])
os.write(2, b'error stream\\n')
""")
    assert shared_worker.text() == "os\nc library\nsubprocess\n"
    assert shared_worker.text("stderr") == "error stream\n"


def test_output_beside_sys_stdout_comes_before_what_follows_it(shared_worker: Worker) -> None:
    source = "import os\nfrom IPython.display import display\nos.write(1, b'raw\\n')\ndisplay('shown')"
    messages = run(shared_worker, source)
    assert [m["type"] for m in messages] == ["stream", "display_data"]


def test_output_of_a_forked_child_is_shown_and_does_not_disturb_the_worker(shared_worker: Worker) -> None:
    run(shared_worker, """
import multiprocessing, warnings
warnings.simplefilter('ignore')
def child(n): print('child', n, flush=True)
processes = [multiprocessing.get_context('fork').Process(target=child, args=(n,)) for n in range(3)]
for p in processes: p.start()
for p in processes: p.join()
print([p.exitcode for p in processes])
""")
    lines = shared_worker.text().splitlines()
    assert sorted(lines) == ["[0, 0, 0]", "child 0", "child 1", "child 2"]


def test_display_and_input_in_a_forked_child_leave_the_parents_output_alone(shared_worker: Worker) -> None:
    run(shared_worker, """
import os
from IPython.display import display
os.write(1, b'raw\\n')
pid = os.fork()
if pid == 0:
    try:
        display('from the child')
        input()
    except Exception as error:
        print(type(error).__name__)
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
""", allow_stdin=True)
    assert sorted(shared_worker.text().splitlines()) == ["0", "StdinNotImplementedError", "raw"]
    assert "forked process" in shared_worker.text("stderr")


def test_shell_command_shows_its_output_and_keeps_its_status(shared_worker: Worker) -> None:
    run(shared_worker, "word = 'hello'\n!echo {word} $word; exit 3")
    assert shared_worker.text() == "hello hello\r\n"
    run(shared_worker, "print(_exit_code)\nlines = !printf 'a\\nb\\n'\nprint(lines)")
    assert shared_worker.text() == "3\n['a', 'b']\n"


def test_magics_of_cells_and_lines_work(shared_worker: Worker) -> None:
    run(shared_worker, "%%capture held\nprint('inside')")
    assert shared_worker.messages == []
    run(shared_worker, "print(held.stdout, end='')\n%timeit -n1 -r1 1+1")
    assert shared_worker.text().startswith("inside\n")
    run(shared_worker, "%%time\n3 + 4", 9)
    assert shared_worker.messages[-1]["data"]["text/plain"] == "7"
    run(shared_worker, "%%bash\necho from bash")
    assert shared_worker.text() == "from bash\n"


@pytest.mark.parametrize("mark", ["%%gpu", "%%cpu", "%%gpu --count 2", "\n\n%%gpu"])
def test_device_mark_runs_the_cell_below_it(shared_worker: Worker, mark: str) -> None:
    run(shared_worker, f"{mark}\nvalue = 5\nvalue + 1")
    assert shared_worker.messages[0]["data"]["text/plain"] == "6"


@pytest.mark.parametrize("source", ["%%gpu\n%%time\n6 * 7", "%%time\n%%gpu\n6 * 7", "%%gpu\n%%cpu\n6 * 7"])
def test_device_mark_composes_with_other_cell_magics(shared_worker: Worker, source: str) -> None:
    run(shared_worker, source)
    assert shared_worker.messages[-1]["data"]["text/plain"] == "42"


def test_device_magic_called_by_name_runs_its_body(shared_worker: Worker) -> None:
    run(shared_worker, "get_ipython().run_cell_magic('gpu', '', 'inner = 3\\ninner * 2')")
    assert shared_worker.messages[0]["data"]["text/plain"] == "6"


def test_device_mark_keeps_line_numbers(shared_worker: Worker) -> None:
    shared_worker.run("%%gpu\nx = 1\nraise ValueError('line three')", 12)
    assert "Cell In[12], line 3" in plain_traceback(shared_worker.messages[0])


def test_next_input_and_pager_are_payloads_of_the_reply(shared_worker: Worker) -> None:
    reply = shared_worker.run("get_ipython().set_next_input('next cell')")
    assert reply["payload"] == [{"source": "set_next_input", "text": "next cell", "replace": False}]
    reply = shared_worker.run("print?")
    assert reply["payload"][0]["source"] == "page"
    assert "text/plain" in reply["payload"][0]["data"]
    assert shared_worker.run("1")["payload"] == []


def test_figures_are_shown_at_the_end_of_the_cell(shared_worker: Worker) -> None:
    messages = run(shared_worker, "import matplotlib.pyplot as plt\nplt.plot([1, 2])\nprint('after')")
    assert [m["type"] for m in messages] == ["stream", "display_data"]
    assert base64.b64decode(messages[1]["data"]["image/png"]).startswith(b"\x89PNG")
    messages = run(shared_worker, "%matplotlib inline\nplt.plot([1, 2]);\nplt.show()\nprint('after')")
    assert [m["type"] for m in messages] == ["display_data", "stream"]


def test_window_event_loops_are_refused_with_the_way_out(shared_worker: Worker) -> None:
    shared_worker.run("%gui qt")
    assert "no screen" in shared_worker.text("stderr") + str(shared_worker.messages)


def test_rich_values_show_all_their_forms(shared_worker: Worker) -> None:
    run(shared_worker, "import pandas\npandas.DataFrame({'a': [1]})", 3)
    assert set(shared_worker.messages[0]["data"]) == {"text/plain", "text/html"}


def test_metadata_with_odd_keys_and_numbers_is_made_plain(shared_worker: Worker) -> None:
    run(shared_worker, "import numpy as np\nfrom IPython.display import display\n"
        "display({'application/x': {1: np.float32(0.5), False: (np.int64(3), {4})}}, raw=True, metadata={2: 1 << 80})")
    assert shared_worker.messages[0]["data"] == {"application/x": {"1": 0.5, "false": [3, [4]]}}
    assert shared_worker.messages[0]["metadata"] == {"2": float(1 << 80)}


def test_display_of_something_that_no_notebook_holds_is_the_cells_error(shared_worker: Worker) -> None:
    reply = shared_worker.run("from IPython.display import display\ndisplay({'a/b': object()}, raw=True)")
    assert (reply["ename"], "cannot be part" in reply["evalue"]) == ("ValueError", True)


def test_display_that_is_too_large_is_replaced_by_a_line_that_says_so(shared_worker: Worker) -> None:
    source = "from IPython.display import display\ndisplay({'text/plain': 'x' * (40 << 20)}, raw=True)\nprint('on')"
    run(shared_worker, source)
    assert [m["type"] for m in shared_worker.messages] == ["stream", "stream"]
    assert "too large" in shared_worker.text("stderr")


def test_comms_are_forwarded_with_their_buffers(shared_worker: Worker) -> None:
    messages = run(shared_worker, """
import comm
c = comm.create_comm(target_name='jupyter.widget', data={'state': 1}, metadata={'version': '2'})
c.send({'method': 'update'}, buffers=[memoryview(b'bytes')])
c.close()
""")
    assert [m["type"] for m in messages] == ["comm_open", "comm_msg", "comm_close"]
    assert (messages[0]["target_name"], messages[0]["data"], messages[0]["metadata"]) == (
        "jupyter.widget", {"state": 1}, {"version": "2"})
    assert messages[1]["buffers"] == [b"bytes"]
    assert len({m["comm_id"] for m in messages}) == 1


def test_notebook_libraries_see_a_notebook(shared_worker: Worker) -> None:
    run(shared_worker, "ip = get_ipython()\nprint(type(ip).__name__, 'IPKernelApp' in ip.config)")
    assert shared_worker.text() == "ZMQInteractiveShell True\n"


def test_columns_of_the_front_end_are_in_the_environment(shared_worker: Worker) -> None:
    run(shared_worker, "import shutil\nprint(shutil.get_terminal_size().columns)", columns=123)
    assert shared_worker.text() == "123\n"


def test_interactivity_of_the_kernel_is_used(shared_worker: Worker) -> None:
    run(shared_worker, "1\n2", ast_node_interactivity="all")
    assert [m["data"]["text/plain"] for m in shared_worker.messages] == ["1", "2"]
    run(shared_worker, "1\n2", ast_node_interactivity="last_expr")
    assert [m["data"]["text/plain"] for m in shared_worker.messages] == ["2"]


def test_empty_cell_is_fine(shared_worker: Worker) -> None:
    assert run(shared_worker, "   \n") == []
