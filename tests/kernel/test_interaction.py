"""Questions, interrupts, edit signals and commits of a real kernel process."""

from __future__ import annotations

import json
import os
import queue
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from looseleaf.checkpoint.manifest import decode_manifest
from looseleaf.errors import Conflict
from looseleaf.kernel.preparations import PREPARE_REQUEST, SUPERSEDED


async def ask_name(run: Any) -> Any:
    answer = await run.ask("name? ")
    if answer["refused"]:
        await run.error("StdinNotImplementedError", "no input here")
    else:
        await run.stream(f"hello {answer['value']}\n")
        await run.ended()
    return run.saved(run.body["version"])


async def run_until_interrupted(run: Any) -> Any:
    await run.stream("running\n")
    await run.interrupts.get()
    await run.error("KeyboardInterrupt", "")
    return run.saved(run.body["version"])


def test_input_of_a_gpu_cell_is_asked_of_the_person(notebook: Any, daemon: Any) -> None:
    daemon.plays["ask"] = ask_name
    outcome = notebook.run("%%gpu\nask", answer="Ada")
    assert outcome.text == "hello Ada\n"
    assert outcome.asked == [{"prompt": "name? ", "password": False}]


def test_next_cell_of_the_saved_notebook_is_prepared_where_no_page_tells_of_edits(
    new_notebook: Any, new_daemon: Any, tmp_path: Path
) -> None:
    daemon = new_daemon()
    cells = [
        {"cell_type": "code", "id": name, "metadata": {}, "source": source}
        for name, source in (("a", "x = 1"), ("b", "y = x"), ("c", "%%gpu\nz = x"), ("d", "x"))
    ]
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps({"cells": cells, "metadata": {}}))
    kernel = new_notebook(daemon.path, JPY_SESSION_NAME=str(path))
    kernel.ok("x = 1", cellId="a")
    guessed = [daemon.wait_for("prepare", count) for count in (1, 2)]
    assert [(guess["source"], guess["predicted"]) for guess in guessed] == [("y = x", True), ("%%gpu\nz = x", True)]


def test_late_answer_to_an_interrupted_question_does_not_answer_the_next(notebook: Any, daemon: Any) -> None:
    async def play(run: Any) -> Any:
        await run.event("input_request", prompt="first? ", password=False, question=1)
        return await run_until_interrupted(run)

    daemon.plays["begin"], daemon.plays["ask"] = play, ask_name
    client, msg_id = notebook.client, notebook.send("%%gpu\nbegin")
    first = client.get_stdin_msg(timeout=20)
    notebook.control("interrupt_request", {})()
    notebook.finish(msg_id)
    msg_id = notebook.send("%%gpu\nask")
    second = client.get_stdin_msg(timeout=20)
    # As JupyterLab answers: under the question's own header.
    for question, value in ((first, "late"), (second, "Bob")):
        client.session.send(client.stdin_channel.socket, "input_reply", {"value": value}, parent=question)
    assert notebook.finish(msg_id).text == "hello Bob\n"


def test_password_is_asked_as_one(notebook: Any, daemon: Any) -> None:
    async def play(run: Any) -> Any:
        answer = await run.ask("key: ", password=True)
        await run.stream(str(len(answer["value"])))
        await run.ended()
        return run.saved(run.body["version"])

    daemon.plays["secret"] = play
    outcome = notebook.run("%%gpu\nsecret", answer="four")
    assert outcome.text == "4" and outcome.asked == [{"prompt": "key: ", "password": True}]


def test_input_without_a_front_end_that_answers_is_refused(notebook: Any, daemon: Any) -> None:
    daemon.plays["ask"] = ask_name
    outcome = notebook.run("%%gpu\nask", allow_stdin=False)
    assert outcome.error == ("StdinNotImplementedError", "no input here") and outcome.asked == []


def test_interrupt_while_asked_ends_the_question(notebook: Any, daemon: Any) -> None:
    async def play(run: Any) -> Any:
        await run.event("input_request", prompt="never? ", password=False)
        return await run_until_interrupted(run)

    daemon.plays["ask"] = play
    msg_id = notebook.send("%%gpu\nask")
    assert notebook.client.get_stdin_msg(timeout=20)["content"]["prompt"] == "never? "
    notebook.control("interrupt_request", {})()
    assert notebook.finish(msg_id).error[0] == "KeyboardInterrupt"
    # The next question is a new one; the old one takes no answer away from it.
    daemon.plays["ask"] = ask_name
    assert notebook.run("%%gpu\nask", answer="Bob").text == "hello Bob\n"


@pytest.mark.parametrize("way", ["message", "signal"])
def test_interrupt_reaches_the_running_cell(notebook: Any, daemon: Any, way: str) -> None:
    daemon.plays["long"] = run_until_interrupted
    msg_id = notebook.send("%%gpu\nlong")
    daemon.wait_for("submit")
    if way == "message":
        assert notebook.control("interrupt_request", {})() == {"status": "ok"}
    else:
        os.kill(notebook.pid, signal.SIGINT)
    outcome = notebook.finish(msg_id)
    assert outcome.error[0] == "KeyboardInterrupt" and outcome.text == "running\n"
    assert daemon.wait_for("interrupt")["kill"] is False
    assert notebook.ok("'alive'").result == "'alive'"


@pytest.mark.parametrize("way", ["message", "signal"])
def test_interrupt_while_state_is_saved_for_a_gpu_cell_ends_the_wait(
    notebook: Any, daemon: Any, tmp_path: Any, way: str
) -> None:
    begun = tmp_path / "begun"
    notebook.ok(
        "import pathlib, time\nstuck = [1]\nclass Slow:\n    def __getstate__(self):\n"
        f"        if get_ipython().kernel._busy: pathlib.Path({str(begun)!r}).touch()\n"
        "        while stuck: time.sleep(0.005)\n        return {}\nslow = Slow()"
    )
    msg_id = notebook.send("%%gpu\nslow")
    limit_s = time.monotonic() + 20
    while not begun.exists():
        assert time.monotonic() < limit_s, notebook.log()
        time.sleep(0.01)
    if way == "message":
        notebook.control("interrupt_request", {})()
    else:
        os.kill(notebook.pid, signal.SIGINT)
    assert notebook.finish(msg_id).error == ("KeyboardInterrupt", "nothing was run")
    assert daemon.count("submit") == 0
    notebook.ok("stuck.clear(); del slow, Slow, stuck")


def test_interrupt_while_queued_ends_the_wait(notebook: Any, daemon: Any) -> None:
    async def play(run: Any) -> Any:
        await run.event("queue", position=2, reason="all GPUs are busy")
        await run.interrupts.get()
        raise Conflict("INTERRUPTED", "the cell was interrupted while it waited for a GPU; nothing was run")

    daemon.plays["wait"] = play
    msg_id = notebook.send("%%gpu\nwait")
    daemon.wait_for("submit")
    notebook.control("interrupt_request", {})()
    outcome = notebook.finish(msg_id)
    assert outcome.error[0] == "KeyboardInterrupt" and "nothing was run" in outcome.error[1]
    assert "wait" not in [run["source"].strip("%gpu\n") for run in daemon.log]


def test_third_interrupt_kills_the_worker(notebook: Any, daemon: Any) -> None:
    async def play(run: Any) -> Any:
        while not (await run.interrupts.get())["kill"]:
            continue
        text = "the worker was killed by signal 9 while the cell ran"
        await run.error("WORKER_LOST", text)
        return run.saved(run.body["version"], error_reason="WORKER_LOST", error_message=text)

    daemon.plays["deaf"] = play
    msg_id = notebook.send("%%gpu\ndeaf")
    daemon.wait_for("submit")
    for _ in range(3):
        notebook.control("interrupt_request", {})()
    outcome = notebook.finish(msg_id)
    assert outcome.error[0] == "WORKER_LOST" and outcome.kinds == ["error"]


def test_interrupt_of_a_cpu_cell_works_as_usual(notebook: Any) -> None:
    msg_id = notebook.send("print('go')\nimport time\nwhile True: time.sleep(0.01)")
    while notebook.client.get_iopub_msg(timeout=20)["msg_type"] != "stream":
        continue
    notebook.control("interrupt_request", {})()
    assert notebook.finish(msg_id).error[0] == "KeyboardInterrupt"


def test_subshell_runs_here_beside_a_gpu_cell_and_its_changes_are_kept(notebook: Any, daemon: Any) -> None:
    daemon.plays["long"] = run_until_interrupted
    msg_id = notebook.send("%%gpu\nlong")
    daemon.wait_for("submit")
    subshell_id = notebook.control("create_subshell_request", {})()["subshell_id"]
    client = notebook.client
    message = client.session.msg("execute_request", {"code": "%%gpu\nbeside = 8\nprint('sub')", "silent": False})
    message["header"]["subshell_id"] = subshell_id
    client.shell_channel.send(message)
    outcome = notebook.finish(message["header"]["msg_id"])
    assert outcome.text == "sub\n" and outcome.report == {}
    notebook.control("interrupt_request", {})()
    assert notebook.finish(msg_id).error[0] == "KeyboardInterrupt"
    assert notebook.control("delete_subshell_request", {"subshell_id": subshell_id})()["status"] == "ok"
    daemon.plays.clear()
    assert notebook.ok("%%gpu\nbeside").result == "8"


def test_interrupt_of_a_cpu_input_works_as_usual(notebook: Any) -> None:
    assert notebook.run("input('cpu? ')", answer="yes").result == "'yes'"
    assert notebook.run("input('cpu? ')", allow_stdin=False).error[0] == "StdinNotImplementedError"


def test_prepare_request_is_answered_and_publishes_no_status(notebook: Any, daemon: Any) -> None:
    notebook.ok("known = 1")
    wait = notebook.control(PREPARE_REQUEST, {"cell_id": "c", "source": "%%gpu\nknown", "edit_sequence": 3})
    content = wait()
    assert content["status"] == "ok" and content["recipe"]["label"] == "gpu" and content["worker_id"] == "w-1"
    asked = daemon.wait_for("prepare")
    assert asked["edit_sequence"] == 3 and asked["log_length"] == len(daemon.log) > 0
    assert (asked["kind"], asked["predicted"]) == ("edit", False)
    with pytest.raises(queue.Empty):
        notebook.client.get_iopub_msg(timeout=0.2)


def test_page_gets_the_state_of_the_gpu_while_a_cell_runs(notebook: Any, daemon: Any) -> None:
    notebook.control(PREPARE_REQUEST, {"cell_id": "c", "source": "%%gpu\n1", "page": "page-1"})()
    sent = notebook.send("%%gpu\n1")
    shown, idle = [], False
    while not idle:
        message = notebook.client.get_iopub_msg(timeout=20)
        kind, content = message["msg_type"], message["content"]
        if kind == "comm_msg" and content["comm_id"] == "page-1":
            shown.append(content["data"]["state"])
        idle = message["parent_header"].get("msg_id") == sent and content.get("execution_state") == "idle"
    assert shown[0] == "preparing" and shown[-1] == "released" and "released" not in shown[:-1]
    assert notebook.control(PREPARE_REQUEST, {"kind": "idle"})()["state"]["state"] == "released"
    notebook.client.get_shell_msg(timeout=20)


def test_prepare_newest_text_wins_and_interrupts_do_not_wait(notebook: Any, daemon: Any) -> None:
    daemon.prepare_gate.clear()
    try:
        notebook.control(PREPARE_REQUEST, {"source": "a"})
        daemon.wait_for("prepare")
        daemon.plays["long"] = run_until_interrupted
        msg_id = notebook.send("%%gpu\nlong")
        daemon.wait_for("submit")
        notebook.control("interrupt_request", {})()
        assert notebook.finish(msg_id).error[0] == "KeyboardInterrupt"
        client = notebook.client
        for text in ("b", "c"):
            client.control_channel.send(client.session.msg(PREPARE_REQUEST, {"source": text}))
        # The control thread has seen both when it answers this.
        notebook.control("kernel_info_request", {})()
        daemon.prepare_gate.set()
        answers = [client.get_control_msg(timeout=20)["content"] for _ in range(3)]
    finally:
        daemon.prepare_gate.set()
    assert [answer.get("skipped_reason") for answer in answers] == ["", SUPERSEDED, ""]
    assert [body["source"] for kind, body in daemon.requests if kind == "prepare"] == ["a", "c"]


def test_prepare_with_a_malformed_body_is_refused(notebook: Any) -> None:
    content = notebook.control(PREPARE_REQUEST, {"source": 5})()
    assert (content["status"], content["ename"]) == ("error", "FIELD_MALFORMED")


def test_cpu_cells_are_committed_together_when_the_kernel_is_idle(notebook: Any, daemon: Any) -> None:
    before = daemon.store.version
    sent = [notebook.send(f"idle_{number} = {number}") for number in range(5)]
    for msg_id in sent:
        notebook.finish(msg_id)
    daemon.store.wait_for_version(before + 1)
    notebook.ok("%%gpu\nassert [idle_0, idle_1, idle_2, idle_3, idle_4] == [0, 1, 2, 3, 4]")
    # One commit for the CPU cells, perhaps one for an earlier test; the GPU cell changed nothing.
    assert daemon.store.version <= before + 2


def test_idle_commit_gives_way_to_the_next_cell(notebook: Any, daemon: Any, tmp_path: Any) -> None:
    begun = tmp_path / "begun"
    before = daemon.store.version
    notebook.ok(
        "import pathlib, time\nstuck = [1]\nclass Slow:\n    def __getstate__(self):\n"
        f"        pathlib.Path({str(begun)!r}).touch()\n        while stuck: time.sleep(0.005)\n        return {{}}\n"
        "slow = Slow()"
    )
    limit_s = time.monotonic() + 20
    while not begun.exists():
        assert time.monotonic() < limit_s, notebook.log()
        time.sleep(0.01)
    # The commit would never end; the cell that ends it runs all the same.
    notebook.ok("stuck.clear()")
    daemon.store.wait_for_version(before + 1)
    assert "commit_gave_way" in notebook.log()
    notebook.ok("del slow, Slow, stuck")


def test_prepare_commits_what_waits_for_an_idle_moment(notebook: Any, daemon: Any) -> None:
    notebook.ok("prepared_for = [1]")
    before = daemon.store.version
    notebook.control(PREPARE_REQUEST, {"source": "%%gpu\nprepared_for"})()
    kinds = [kind for kind, _ in daemon.requests]
    assert daemon.store.version == before or kinds.index("commit") < kinds.index("prepare")
    assert "prepared_for" in decode_manifest(daemon.store.manifests[daemon.store.version]).roots


def test_widget_callback_in_the_kernel_is_committed(notebook: Any, daemon: Any) -> None:
    notebook.ok(
        "import comm\ntold = []\n"
        "channel = comm.create_comm(target_name='test')\nchannel.on_msg(lambda m: told.append(m['content']['data']))\n"
        "channel_id = channel.comm_id"
    )
    comm_id = notebook.ok("channel_id").result.strip("'")
    daemon.store.wait_for_version(1)
    client = notebook.client
    client.shell_channel.send(client.session.msg("comm_msg", {"comm_id": comm_id, "data": {"n": 5}}))
    assert notebook.ok("%%gpu\nprint(told)").text == "[{'n': 5}]\n"


def test_thread_left_by_a_cell_is_no_reason_to_miss_its_changes(notebook: Any) -> None:
    notebook.ok(
        "import threading\nseen, go, done = [], threading.Event(), threading.Event()\n"
        "def work():\n    go.wait(20)\n    seen.append('late')\n    done.set()\n    go2.wait(20)\n"
        "go2 = threading.Event()\nworker = threading.Thread(target=work)\nworker.start()"
    )
    notebook.ok("%%gpu\nassert seen == []")
    # Changed by the thread while no cell runs here: this request is no cell.
    reply = notebook.client.execute("go.set(); done.wait(20)", silent=True, reply=True, timeout=30)
    assert reply["content"]["status"] == "ok"
    assert notebook.ok("%%gpu\nprint(seen)").text == "['late']\n"
    notebook.ok("go2.set(); worker.join(); del worker, go, done, go2")


INTERRUPT_AT = """
import os, signal
kernel, stock = get_ipython().kernel, get_ipython().kernel.{method}
def interrupting(*args, **kwargs):
    result = stock(*args, **kwargs)
    if armed.pop():
        del kernel.{method}
        os.kill(os.getpid(), signal.SIGINT)
    return result
armed = {armed}
kernel.{method} = interrupting
"""


@pytest.mark.parametrize("code", ["1 + 1", "%%gpu\nlong"])
@pytest.mark.parametrize(
    ("method", "armed"), [("_publish_execute_input", [True]), ("finish_metadata", [True, False])],
    ids=["before", "after"],
)
def test_interrupt_at_the_edge_of_a_cell_leaves_no_request_unanswered(
    notebook: Any, daemon: Any, method: str, armed: list[bool], code: str
) -> None:
    async def play(run: Any) -> Any:
        await run.ended()
        return run.saved(run.body["version"])

    daemon.plays["long"] = play
    notebook.ok(INTERRUPT_AT.format(method=method, armed=armed))
    outcome = notebook.run(code)
    if method == "finish_metadata":
        assert outcome.reply["status"] == "ok"
    else:
        assert outcome.error[0] == "KeyboardInterrupt"
    assert notebook.ok("'alive'").result == "'alive'"
