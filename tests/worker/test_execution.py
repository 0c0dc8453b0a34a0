"""How a cell ends: errors, interrupts, input, what it leaves."""

from __future__ import annotations

import os
import re
import signal
from typing import Any

import pytest

Worker = Any


def plain_traceback(message: dict[str, Any]) -> str:
    return re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(message["traceback"]))


def test_exception_is_an_error_message_and_the_reply(worker: Worker) -> None:
    reply = worker.run("def f(x):\n    return 1 / x\n\nf(0)", 7)
    assert (reply["status"], reply["ename"], reply["evalue"]) == ("error", "ZeroDivisionError", "division by zero")
    assert reply["execution_count"] == 7
    error = worker.messages[-1]
    assert error["traceback"] == reply["traceback"]
    text = plain_traceback(error)
    assert "Cell In[7], line 4" in text
    assert "Cell In[7], line 2, in f(x)" in text
    assert "looseleaf" not in text


def test_exception_in_code_of_an_earlier_cell_shows_that_cell(worker: Worker) -> None:
    worker.run("def f(x):\n    return 1 / x", 3)
    worker.run("\n\nf(0)", 5)
    text = plain_traceback(worker.messages[-1])
    assert "Cell In[5], line 1" in text
    assert "Cell In[3], line 2, in f(x)" in text


def test_exception_in_code_of_a_cell_that_ran_elsewhere_shows_its_source(worker: Worker) -> None:
    name = "/tmp/ipykernel_1/123.py"
    source = "def g(x):\n    return [][x]"
    worker.run(f"exec(compile({source!r}, {name!r}, 'exec'), globals())", 8)
    worker.run("g(0)", 9, sources=[[name, 2, source]])
    text = plain_traceback(worker.messages[-1])
    assert "Cell In[2], line 2, in g(x)" in text
    assert "return [][x]" in text


def test_cell_is_compiled_under_the_kernels_file_name(worker: Worker) -> None:
    worker.run("def f(): pass\nprint(f.__code__.co_filename)", 2, cell_file="/tmp/ipykernel_9/5.py")
    assert worker.text() == "/tmp/ipykernel_9/5.py\n"
    worker.run("print(f.__code__.co_filename == (lambda: 0).__code__.co_filename)", 3)
    assert worker.text() == "False\n"
    # By its name IPython decides how it shows the lines of code that the cell has run.
    worker.run("%%capture\ndef g(): pass", 4, cell_file="/tmp/ipykernel_9/7.py")
    worker.run("import re\nprint(re.sub(r'\\d+', '0', g.__code__.co_filename))", 5, cell_file="/tmp/ipykernel_9/8.py")
    assert worker.text() == "/tmp/ipykernel_0/0.py\n"


def test_syntax_error_names_the_line(worker: Worker) -> None:
    reply = worker.run("x = 1\ny = = 2", 4)
    assert reply["ename"] == "SyntaxError"
    assert "Cell In[4], line 2" in plain_traceback(worker.messages[-1])


def test_error_while_displaying_a_value_fails_the_cell(worker: Worker) -> None:
    reply = worker.run("class Bad:\n    def __repr__(self): raise RuntimeError('no repr')\nBad()")
    assert reply["status"] == "error"
    assert worker.types() == ["error"]
    assert worker.run("'fine'")["status"] == "ok"


def test_exception_with_a_huge_text_is_cut_and_the_cell_is_saved(worker: Worker) -> None:
    reply = worker.run("kept = 1\nraise ValueError('x' * (40 << 20))")
    assert (reply["ename"], worker.types()) == ("ValueError", ["error"])
    assert reply["evalue"].endswith(" more characters)")
    assert worker.messages[-1]["evalue"] == reply["evalue"]
    assert len(reply["evalue"]) < 2 << 20
    assert worker.saved["version"] == 1


def test_exception_whose_text_cannot_be_made_fails_the_cell_only(worker: Worker) -> None:
    reply = worker.run("class Bad(Exception):\n    def __str__(self): raise RuntimeError('no text')\nraise Bad()")
    assert reply["status"] == "error"
    assert worker.run("'alive'")["status"] == "ok"


@pytest.mark.parametrize("text", ["'x' * (40 << 20)", "object()"])
def test_payload_that_no_message_holds_is_dropped_and_the_cell_is_saved(worker: Worker, text: str) -> None:
    reply = worker.run(f"kept = 1\nget_ipython().set_next_input({text})")
    assert (reply["status"], reply["payload"]) == ("ok", [])
    assert "cannot be sent" in worker.text("stderr")
    assert worker.saved["version"] == 1


def test_failing_cell_is_saved_too(worker: Worker) -> None:
    worker.run("kept = 1\nraise ValueError")
    assert worker.saved["version"] == 1


@pytest.mark.parametrize("source", ["import sys; sys.exit(3)", "raise SystemExit('bye')"])
def test_sys_exit_is_a_system_exit_error_and_the_worker_lives(worker: Worker, source: str) -> None:
    reply = worker.run(source)
    assert (reply["status"], reply["ename"]) == ("error", "SystemExit")
    assert worker.run("'alive'")["status"] == "ok"


def test_exit_and_quit_ask_the_kernel(worker: Worker) -> None:
    assert worker.run("exit()")["payload"] == [{"source": "ask_exit", "keepkernel": False}]
    assert worker.run("quit(keep_kernel=True)")["payload"] == [{"source": "ask_exit", "keepkernel": True}]


@pytest.mark.parametrize(
    "source", ["while True: pass", "import time\ntime.sleep(1000)", "import select\nselect.select([], [], [])"]
)
def test_interrupt_raises_keyboard_interrupt_in_the_cell(worker: Worker, source: str) -> None:
    outcome = worker.begin(f"print('go')\n{source}", 6)
    worker.text_until("go\n")
    worker.interrupt()
    reply = worker.finish(outcome)["reply"]
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    text = plain_traceback(worker.messages[-1])
    assert "Cell In[6]" in text
    assert "looseleaf" not in text
    assert worker.run("'alive'")["status"] == "ok"


def test_interrupt_of_a_cell_that_prints_without_end_keeps_the_connection(worker: Worker) -> None:
    for count in range(1, 6):
        outcome = worker.begin("while True: print('x' * 50, flush=True)", count)
        worker.output_until(lambda m: m["type"] == "stream")
        worker.interrupt()
        assert worker.finish(outcome)["reply"]["ename"] == "KeyboardInterrupt"


def test_interrupt_that_the_cell_handles_is_its_own_affair(worker: Worker) -> None:
    outcome = worker.begin(
        "import time\ntry:\n    print('go')\n    time.sleep(1000)\nexcept KeyboardInterrupt:\n    print('caught')"
    )
    worker.text_until("go\n")
    worker.interrupt()
    assert worker.finish(outcome)["reply"]["status"] == "ok"
    assert worker.text().endswith("caught\n")


def test_interrupt_of_a_worker_that_runs_nothing_is_ignored(worker: Worker) -> None:
    worker.interrupt()
    assert worker.run("'alive'")["status"] == "ok"


def test_interrupt_while_saving_is_ignored(worker: Worker) -> None:
    worker.store.before_commit = worker.interrupt
    assert worker.run("x = 1")["status"] == "ok"
    assert worker.saved["version"] == 1


def test_interrupt_just_before_the_first_statement_keeps_the_cell_from_running_later(worker: Worker) -> None:
    worker.run("""
import asyncio
loop = asyncio.get_running_loop()
run_until_complete = loop.run_until_complete
def interrupted(work):
    asyncio.ensure_future(work, loop=loop)
    loop.run_until_complete = run_until_complete
    raise KeyboardInterrupt
loop.run_until_complete = interrupted
""", 1)
    assert worker.run("began = True", 2)["ename"] == "KeyboardInterrupt"
    assert worker.run("print('began' in globals())", 3)["status"] == "ok"
    assert worker.text() == "False\n"


def test_interrupt_handler_of_the_person_lasts_for_its_cell_only(worker: Worker) -> None:
    worker.run(
        "import signal\nsignal.signal(signal.SIGINT, lambda *a: print('mine'))\nsignal.raise_signal(signal.SIGINT)"
    )
    assert worker.text() == "mine\n"
    outcome = worker.begin("print('go')\nwhile True: pass", 2)
    worker.text_until("go\n")
    worker.interrupt()
    assert worker.finish(outcome)["reply"]["ename"] == "KeyboardInterrupt"


def test_await_at_top_level_works_in_one_loop(worker: Worker) -> None:
    worker.run("import asyncio\nloop = asyncio.get_running_loop()\nawait asyncio.sleep(0)\n'awaited'")
    assert worker.messages[0]["data"]["text/plain"] == "'awaited'"
    worker.run("print(loop is asyncio.get_running_loop())")
    assert worker.text() == "True\n"


def test_interrupt_of_a_cell_that_awaits_cancels_it_and_leaves_nothing(worker: Worker) -> None:
    outcome = worker.begin("import asyncio\nprint('go')\nawait asyncio.sleep(1000)\nprint('never')")
    worker.text_until("go\n")
    worker.interrupt()
    ended = worker.finish(outcome)
    assert (ended["reply"]["ename"], ended["left"]) == ("CancelledError", [])
    assert worker.run("await asyncio.sleep(0)\n'alive'")["status"] == "ok"


def test_input_goes_to_the_person_and_back(worker: Worker) -> None:
    outcome = worker.begin("print('first')\nname = input('Name? ')\nprint('hello', name)", 3, allow_stdin=True)
    question = worker.event("input_request")
    assert (question["execution_id"], question["prompt"], question["password"]) == ("x-3", "Name? ", False)
    assert worker.text() == "first\n"
    worker.answer(question, "Ada")
    assert worker.finish(outcome)["reply"]["status"] == "ok"
    assert worker.text() == "first\nhello Ada\n"


def test_getpass_asks_as_a_password(worker: Worker) -> None:
    outcome = worker.begin("import getpass\nprint(getpass.getpass())", allow_stdin=True)
    question = worker.event("input_request")
    assert (question["prompt"], question["password"]) == ("", True)
    worker.answer(question, "secret")
    worker.finish(outcome)
    assert worker.text() == "secret\n"


@pytest.mark.parametrize(
    ("source", "name"), [("input()", "raw_input"), ("import getpass; getpass.getpass()", "getpass")]
)
def test_input_without_a_front_end_that_can_is_an_error_at_once(worker: Worker, source: str, name: str) -> None:
    reply = worker.run(source, allow_stdin=False)
    assert reply["ename"] == "StdinNotImplementedError"
    assert reply["evalue"] == f"{name} was called, but this frontend does not support input requests."


def test_input_that_is_refused_is_an_error(worker: Worker) -> None:
    outcome = worker.begin("input('?')", allow_stdin=True)
    worker.answer(worker.event("input_request"), "", refused=True)
    assert worker.finish(outcome)["reply"]["ename"] == "StdinNotImplementedError"


@pytest.mark.parametrize("comes", ["before the next question", "after the next question"])
def test_interrupt_of_an_input_ends_it_and_its_late_answer_is_dropped(worker: Worker, comes: str) -> None:
    outcome = worker.begin("input('?')", allow_stdin=True)
    given_up = worker.event("input_request")
    worker.interrupt()
    reply = worker.finish(outcome)["reply"]
    assert (reply["ename"], reply["evalue"]) == ("KeyboardInterrupt", "Interrupted by user")
    if comes.startswith("before"):
        worker.answer(given_up, "late")
    outcome = worker.begin("print(input('again?'))", allow_stdin=True)
    question = worker.event("input_request")
    if comes.startswith("after"):
        worker.answer(given_up, "late")
    worker.answer(question, "right")
    worker.finish(outcome)
    assert worker.text() == "right\n"


def test_breakpoint_is_answered_through_input(worker: Worker) -> None:
    outcome = worker.begin("def f():\n    inner = 42\n    breakpoint()\nf()\nprint('after')", allow_stdin=True)
    for command in ("p inner", "c"):
        question = worker.event("input_request")
        assert "db> " in question["prompt"].replace("(Pdb) ", "pdb> ")
        worker.answer(question, command)
    assert worker.finish(outcome)["reply"]["status"] == "ok"
    assert "42" in worker.text()
    assert worker.text().endswith("after\n")


def test_threads_processes_and_tasks_that_stay_are_named(worker: Worker) -> None:
    ended = worker.finish(worker.begin("""
import asyncio, subprocess, threading
gate = threading.Event()
threading.Thread(target=gate.wait, name='stays').start()
threading.Thread(target=gate.wait, name='daemon', daemon=True).start()
sleeper = subprocess.Popen(['sleep', '1000'])
async def background(): await asyncio.sleep(1000)
task = asyncio.get_running_loop().create_task(background())
"""))
    assert {(item["kind"], item["name"].split(" ")[0]) for item in ended["left"]} == {
        ("thread", "stays"), ("process", "sleep"), ("task", "background")}
    ended = worker.finish(
        worker.begin("gate.set(); sleeper.kill(); task.cancel()\nawait asyncio.sleep(0.01)\nsleeper.wait();")
    )
    assert [item for item in ended["left"] if item["kind"] != "thread"] == []


def test_output_of_a_thread_after_the_cell_is_sent(worker: Worker) -> None:
    worker.run("import threading\ngate = threading.Event()\n"
               "threading.Thread(target=lambda: (gate.wait(), print('late')), daemon=True).start()\n"
               "threading.Timer(0.2, gate.set).start()")
    assert worker.output_until(lambda m: m["type"] == "stream")["text"] == "late\n"


def test_ended_comes_before_the_save_and_tells_the_time(worker: Worker) -> None:
    ended_before_commit: list[bool] = []
    worker.store.before_commit = lambda: ended_before_commit.append(True)
    ended = worker.finish(worker.begin("import time\ntime.sleep(0.05)\nx = 1"))
    assert ended_before_commit == [True]
    assert 0.05 <= ended["run_s"] < 30
    assert ended["first_touch_s"] is None


def test_save_that_fails_is_the_requests_error_and_not_the_cells(worker: Worker) -> None:
    worker.store.manifests += [b"somebody", b"else"]
    outcome = worker.begin("x = 1")
    assert worker.event("ended")["reply"]["status"] == "ok"
    with pytest.raises(Exception, match="MANIFEST_MOVED"):
        outcome.result(60)


def test_run_without_prepare_is_refused(make_worker: Any) -> None:
    worker = make_worker(prepare=False)
    with pytest.raises(Exception, match="NOT_PREPARED"):
        worker.begin("x = 1").result(60)


def test_unknown_request_is_refused(worker: Worker) -> None:
    with pytest.raises(Exception, match="UNKNOWN_MESSAGE"):
        worker.link.request("dance", {}, timeout_s=60)


def test_terminate_ends_the_worker(worker: Worker) -> None:
    os.kill(worker.pid, signal.SIGTERM)
    assert worker.end() == -15


@pytest.mark.parametrize("end", ["raise SystemExit", "raise KeyboardInterrupt", "raise GeneratorExit"])
def test_callback_that_ends_the_process_costs_neither_the_save_nor_the_next_callback(worker: Worker, end: str) -> None:
    saving = worker.begin(f"""
import comm, time
seen = []
def listen(message):
    seen.append(message["content"]["data"])
    if len(seen) == 1:
        {end}
one = comm.create_comm(target_name="t")
one.on_msg(listen)
input()
""", allow_stdin=True)  # fmt: skip
    comm_id = worker.output_until(lambda m: m["type"] == "comm_open")["comm_id"]
    question = worker.event("input_request")
    for number in (1, 2):
        message = {"type": "comm_msg", "comm_id": comm_id, "data": {"n": number}, "metadata": {}, "buffers": []}
        worker.link.send_event("comm", {"origin": f"comm-{number}", "message": message})
    worker.answer(question, "")
    assert worker.finish(saving)["reply"]["status"] == "ok" and worker.saved["version"] == 1
    assert worker.run("print([data['n'] for data in seen])", 2)["status"] == "ok" and worker.text() == "[1, 2]\n"


def test_callback_that_exits_does_not_end_the_cell_that_awaits(worker: Worker) -> None:
    saving = worker.begin("""
import asyncio, comm
second = asyncio.Event()
def listen(message):
    if message["content"]["data"]["n"] == 1:
        raise SystemExit
    second.set()
one = comm.create_comm(target_name="t")
one.on_msg(listen)
await second.wait()
print("went on")
""")
    comm_id = worker.output_until(lambda m: m["type"] == "comm_open")["comm_id"]
    for number in (1, 2):
        message = {"type": "comm_msg", "comm_id": comm_id, "data": {"n": number}, "metadata": {}, "buffers": []}
        worker.link.send_event("comm", {"origin": f"comm-{number}", "message": message})
    assert worker.finish(saving)["reply"]["status"] == "ok" and worker.text() == "went on\n"
