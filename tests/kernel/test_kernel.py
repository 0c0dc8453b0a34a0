"""Cells of a real kernel process: routing, outputs, state, input, reports."""

from __future__ import annotations

import json
from typing import Any

import pytest

from looseleaf.errors import CapacityExceeded


def test_cpu_cell_runs_in_the_kernel_as_usual(notebook: Any) -> None:
    outcome = notebook.ok("import os\nprint('hi')\nos.getpid()")
    assert outcome.text == "hi\n" and outcome.result == str(notebook.pid)
    assert outcome.report["label"] == "cpu" and outcome.report["path"] == "cpu" and outcome.report["worker"] is None


def test_gpu_cell_runs_elsewhere_with_the_kernels_state(notebook: Any) -> None:
    notebook.ok("x = 20")
    outcome = notebook.ok("%%gpu\ny = x + 22\nprint('on the worker')\ny")
    assert outcome.text == "on the worker\n" and outcome.result == "42"
    assert notebook.ok("print(y, x)").text == "42 20\n"


def test_gpu_cell_names_that_changed_are_stand_ins_until_named(notebook: Any) -> None:
    notebook.ok("kept = [1]\nshared = [2]")
    notebook.ok("%%gpu\nshared.append(3)")
    kinds = notebook.ok("print({n: type(globals()[n]).__name__ for n in ['kept', 'sha' + 'red']})")
    assert kinds.reply["status"] == "ok"
    assert notebook.ok("print(shared, kept)").text == "[2, 3] [1]\n"


def test_gpu_cell_deleting_a_name_deletes_it_here(notebook: Any) -> None:
    notebook.ok("gone = 1")
    notebook.ok("%%gpu\ndel gone")
    assert notebook.run("gone").error[0] == "NameError"


def test_gpu_cell_outputs_of_all_kinds_keep_their_order(notebook: Any, daemon: Any) -> None:
    async def play(run: Any) -> Any:
        await run.stream("one\n")
        await run.output("display_data", data={"text/plain": "two"}, metadata={"m": 1}, transient={"display_id": "d"})
        await run.stream("three\n", name="stderr")
        await run.output("update_display_data", data={"text/plain": "2"}, metadata={}, transient={"display_id": "d"})
        await run.output("clear_output", wait=True)
        await run.output("execute_result", data={"text/plain": "four"}, metadata={}, execution_count=run.count)
        await run.ended()
        return run.saved(run.body["version"])

    daemon.plays["play"] = play
    outcome = notebook.ok("%%gpu\nplay")
    kinds = ["stream", "display_data", "stream", "update_display_data", "clear_output", "execute_result"]
    assert outcome.kinds == kinds
    shown = outcome.messages[1][1]
    assert shown == {"data": {"text/plain": "two"}, "metadata": {"m": 1}, "transient": {"display_id": "d"}}
    assert outcome.messages[2][1] == {"name": "stderr", "text": "three\n"}


def test_gpu_cell_many_outputs_none_is_lost(notebook: Any, daemon: Any) -> None:
    async def play(run: Any) -> Any:
        for number in range(3000):
            await run.stream(f"{number}\n")
        await run.ended()
        return run.saved(run.body["version"])

    daemon.plays["many"] = play
    assert notebook.ok("%%gpu\nmany").text == "".join(f"{number}\n" for number in range(3000))


def test_queued_cells_each_get_their_own_outputs(notebook: Any) -> None:
    sent = [notebook.send(f"{'%%gpu' if n % 2 else '#'}\nprint('cell {n}')") for n in range(4)]
    assert [notebook.finish(msg_id).text for msg_id in sent] == [f"cell {n}\n" for n in range(4)]


def test_gpu_cell_that_raises_shows_its_error_and_keeps_what_it_did(notebook: Any) -> None:
    outcome = notebook.run("%%gpu\nbefore = 7\nraise ValueError('mine')")
    assert outcome.error == ("ValueError", "mine") and outcome.kinds == ["error"]
    assert outcome.report["error"] == {"ename": "ValueError", "evalue": "mine"}
    assert notebook.ok("before").result == "7"


def test_cell_after_an_error_in_the_queue_is_aborted(notebook: Any) -> None:
    first = notebook.send("%%gpu\n1 / 0", stop_on_error=True)
    second = notebook.send("never = 1", stop_on_error=True)
    assert notebook.finish(first).error[0] == "ZeroDivisionError"
    aborted = notebook.finish(second)
    assert aborted.reply["status"] == "aborted" and aborted.report == {}


def test_refused_submission_says_why_and_nothing_ran(notebook: Any, daemon: Any) -> None:
    async def play(run: Any) -> Any:
        raise CapacityExceeded("NEVER_FITS", "this cell needs 80 GiB, no GPU has them; nothing was run")

    daemon.plays["huge"] = play
    outcome = notebook.run("%%gpu\nhuge")
    assert outcome.error == ("NEVER_FITS", "this cell needs 80 GiB, no GPU has them; nothing was run")
    assert notebook.ok("1 + 1").result == "2"
    assert "huge" not in [run["source"] for run in daemon.log]


def test_counts_and_history_go_on_over_both_kinds(notebook: Any) -> None:
    notebook.ok("%reset -f in\nfirst = 1")
    cpu = notebook.ok("'cpu result'")
    gpu = notebook.ok("%%gpu\n'gpu result'")
    assert gpu.reply["execution_count"] == cpu.reply["execution_count"] + 1
    after = notebook.ok(f"print(In[{gpu.reply['execution_count']}])\nprint(_, '|', __)")
    assert after.text == "#\n'gpu result'\ngpu result | cpu result\n"
    assert notebook.ok(f"Out[{gpu.reply['execution_count']}]").result == "'gpu result'"


def test_gpu_cell_reads_the_caches_as_a_cpu_cell_does(notebook: Any) -> None:
    notebook.ok("%reset -f\n5")
    last = notebook.ok("[6 * 7]").reply["execution_count"]
    assert notebook.ok("%%gpu\n_ + [__]").result == "[42, 5]"
    more = notebook.ok(f"%%gpu\nOut[{last}].append(1)\nsorted(Out) == list(Out), _ is Out[{last + 1}], _i{last}")
    assert more.result == "(True, True, '[6 * 7]')"
    assert notebook.ok(f"_{last}, Out[{last}], ___").result == "([42, 1], [42, 1], [42, 1])"


def test_results_of_both_kinds_follow_one_another(notebook: Any) -> None:
    notebook.ok("%reset -f\n'c1'")
    notebook.ok("%%gpu\n['g1']")
    notebook.ok("%%gpu\n['g2']")
    notebook.ok("'c2'")
    assert notebook.ok("_, __, ___").result == "('c2', ['g2'], ['g1'])"
    notebook.ok("%%gpu\n___.append(_[0])\n'g3'")
    assert notebook.ok("_, __, ___").result == "('g3', ('c2', ['g2', 'c2'], ['g1']), 'c2')"


def test_persons_own_underscore_stays_until_it_is_deleted(notebook: Any) -> None:
    notebook.ok("%reset -f\n1")
    notebook.ok("%%gpu\nfor _ in range(3): pass\n'not shown in _'")
    assert notebook.ok("_").result == "2"
    notebook.ok("_ = 'mine'")
    assert notebook.ok("%%gpu\n_").result == "'mine'"
    notebook.ok("%%gpu\ndel _\n7")
    assert notebook.ok("_, __").result == "(7, 'mine')"


def test_result_that_only_the_table_holds_is_refused_by_number(notebook: Any, daemon: Any) -> None:
    last = notebook.ok("%reset -f\n6 * 7").reply["execution_count"]
    notebook.ok(f"del _{last}")
    outcome = notebook.run("%%gpu\nOut")
    assert outcome.error[0] == "RESULT_CACHE_READ" and f"Out[{last}]" in outcome.error[1]
    assert daemon.count("submit") == 0
    notebook.ok("Out.clear()")
    assert notebook.ok("%%gpu\nlen(Out)").result == "0"


def test_entries_that_a_gpu_cell_removes_are_gone(notebook: Any) -> None:
    last = notebook.ok("%reset -f\n6 * 7").reply["execution_count"]
    notebook.ok("8")
    notebook.ok(f"%%gpu\ndel Out[{last}]")
    assert notebook.ok("sorted(Out)").result == f"[{last + 1}]"


def test_persons_variables_of_the_shells_names_move(notebook: Any) -> None:
    notebook.ok("In, open = [1], 'mine'")
    assert notebook.ok("%%gpu\nOut = In + [2]\nopen, Out").result == "('mine', [1, 2])"
    assert notebook.ok("Out, In, open").result == "([1, 2], [1], 'mine')"


def test_cell_metadata_chooses_the_device_unless_a_magic_does(notebook: Any, daemon: Any) -> None:
    assert notebook.ok("1", looseleaf={"device": "gpu"}).report["label"] == "gpu"
    assert notebook.ok("%%cpu\n1", looseleaf={"device": "gpu"}).report["label"] == "cpu"
    assert notebook.ok("1", looseleaf={"device": "tpu"}).report["label"] == "cpu"
    assert daemon.count("submit") == 1


def test_device_magic_keeps_lines_and_works_above_other_magics(notebook: Any) -> None:
    outcome = notebook.run("%%cpu\nx = 1\n\nraise RuntimeError('here')")
    assert "line 4" in "\n".join(outcome.reply["traceback"])
    assert "Wall time" in notebook.ok("%%cpu\n%%time\npass").text
    assert notebook.ok("%%cpu\n%%capture out\nprint('quiet')").text == ""
    assert notebook.ok("out.stdout").result == "'quiet\\n'"


def test_submitted_cell_carries_what_the_worker_needs(notebook: Any, daemon: Any) -> None:
    definition = notebook.ok("def helper():\n    return 1")
    outcome = notebook.run("%%gpu\nhelper()", cellId="cell-9")
    body = daemon.wait_for("submit")
    assert body["cell_id"] == "cell-9" and body["priority"] == "interactive" and body["allow_stdin"]
    assert body["execution_count"] == outcome.reply["execution_count"]
    context = body["context"]
    rows = {number: (name, text) for name, number, text in context["sources"]}
    assert rows[definition.reply["execution_count"]][1] == "def helper():\n    return 1\n"
    assert rows[outcome.reply["execution_count"]][0] == context["cell_file"]
    assert context["ast_node_interactivity"] == "last_expr" and context["columns"] > 0


def test_batch_priority_is_passed_on(notebook: Any, daemon: Any) -> None:
    notebook.ok("%%gpu\n1", looseleaf={"priority": "batch"})
    assert daemon.wait_for("submit")["priority"] == "batch"


def test_report_of_a_gpu_cell_has_the_hosts_figures(notebook: Any) -> None:
    notebook.ok("import numpy\nx = 1")
    report = notebook.ok("%%gpu\nx + 1").report
    assert (report["label"], report["path"], report["worker"], report["gpu"]) == ("gpu", "cold", 4242, 0)
    assert report["closure"] == ["x"] and report["packages"] == ["numpy"] and report["live_names"] == 3
    assert (report["prepare_ms"], report["start_ms"], report["save_ms"]) == (12.0, 34.0, 5.0)
    assert (report["dirty_regions"], report["total_regions"], report["bytes_moved"]) == (1, 4, 2 << 20)
    assert "%%gpu" in report["reason"] and report["error"] is None


def test_frontend_that_lost_the_log_gets_it_again(notebook: Any, daemon: Any) -> None:
    notebook.ok("before_loss = 1")
    notebook.ok("%%gpu\n1")
    known = len(daemon.log)
    daemon.forget_log = True
    assert notebook.ok("%%gpu\nbefore_loss + 1").result == "2"
    # The first GPU cell came with this one, which itself comes with the next request.
    assert len(daemon.log) == known + 1 and daemon.count("submit") == 3


def test_unsaved_value_is_refused_by_name_before_a_gpu_cell_runs(notebook: Any, daemon: Any) -> None:
    notebook.ok("lines = (n for n in range(3))")
    outcome = notebook.run("%%gpu\nnext(lines)")
    assert outcome.error[0] == "UNSAVED_VARIABLE" and "'lines'" in outcome.error[1]
    assert daemon.count("submit") == 0
    assert notebook.ok("next(lines)").result == "0"
    notebook.ok("del lines")


def test_error_in_a_cpu_cell_after_loading_behaves_as_usual(notebook: Any) -> None:
    notebook.ok("%%gpu\nmade = [1, 2]")
    outcome = notebook.run("made.append(3)\nmade.nothing")
    assert outcome.error[0] == "AttributeError"
    assert notebook.ok("made").result == "[1, 2, 3]"


def test_kernel_own_log_never_reaches_outputs(notebook: Any) -> None:
    outcome = notebook.ok("import logging\nlogging.getLogger('looseleaf.kernel').error('secret')\nprint('only this')")
    assert outcome.kinds == ["stream"] and outcome.text == "only this\n"
    assert "secret" in notebook.log()


def test_silent_request_runs_here_without_report(notebook: Any, daemon: Any) -> None:
    client = notebook.client
    reply = client.execute("%%gpu\nprobe = 5", silent=True, reply=True, timeout=20)
    assert reply["content"]["status"] == "ok" and "looseleaf" not in reply["metadata"]
    assert daemon.count("submit") == 0
    assert notebook.ok("probe").result == "5"


def test_silent_request_that_waits_is_not_committed_half_way(notebook: Any, daemon: Any) -> None:
    client = notebook.client
    notebook.ok("steps = []")
    pending = "get_ipython().kernel.looseleaf.commits.pending"
    code = f"import asyncio\nsteps.append(1)\nawait asyncio.sleep(0.6)\nsteps.append({pending})"
    client.execute(code, silent=True, reply=True, timeout=20)
    # Beyond the idle delay nothing was committed.
    assert notebook.ok("steps").result == "[1, True]"


def test_user_expressions_are_answered_after_a_gpu_cell(notebook: Any) -> None:
    content = {
        "code": "%%gpu\nasked = 6", "silent": False, "store_history": True, "user_expressions": {"a": "1 + 1"},
        "allow_stdin": False,
    }  # fmt: skip
    message = notebook.client.session.msg("execute_request", content)
    notebook.client.shell_channel.send(message)
    outcome = notebook.finish(message["header"]["msg_id"])
    assert outcome.reply["user_expressions"]["a"]["data"]["text/plain"] == "2"


def test_fault_of_ours_still_gives_the_cell_a_reply(notebook: Any) -> None:
    notebook.ok(
        "import looseleaf.kernel.kernel as k\nreal = k.ready_for_cpu\ndef broken(*a):\n    k.ready_for_cpu = real\n"
        "    raise TypeError('ours')\nk.ready_for_cpu = broken"
    )
    outcome = notebook.run("1")
    assert outcome.error[0] == "BUG" and "TypeError: ours" in outcome.error[1]
    assert "Traceback" in notebook.log()
    notebook.ok("del k, real, broken")


def test_syntax_error_needs_no_gpu(notebook: Any, daemon: Any) -> None:
    assert notebook.run("model = (").error[0] in ("SyntaxError", "_IncompleteInputError")
    assert daemon.count("submit") == 0


def test_progress_widget_of_a_worker_reaches_the_front_end(notebook: Any, daemon: Any) -> None:
    async def play(run: Any) -> Any:
        state = {"state": {"value": 0, "max": 3}, "buffer_paths": []}
        comm = {"comm_id": "bar-1", "target_name": "jupyter.widget"}
        await run.output("comm_open", comm_id="c-2", target_name="mine", data={"state": "no widget's"}, metadata={})
        await run.output("comm_open", data=state, metadata={"version": "2.1.0"}, buffers=[b"raw"], **comm)
        await run.output("comm_msg", comm_id="bar-1", data={"method": "update", "state": {"value": 3}}, metadata={})
        await run.ended()
        return run.saved(run.body["version"])

    daemon.plays["widget"] = play
    outcome = notebook.ok("%%gpu\nwidget")
    assert outcome.kinds == ["comm_open", "comm_open", "comm_msg"]
    assert outcome.messages[1][1]["target_name"] == "jupyter.widget"
    # A page that is reloaded asks for what it must show.
    client = notebook.client
    known = client.comm_info(reply=True, timeout=20)["content"]["comms"]
    assert known["bar-1"] == {"target_name": "jupyter.widget"}
    message = client.session.msg("comm_msg", {"comm_id": "bar-1", "data": {"method": "request_state"}})
    client.shell_channel.send(message)
    while True:
        answer = client.get_iopub_msg(timeout=20)
        if answer["msg_type"] == "comm_msg" and answer["content"]["data"].get("method") == "update":
            break
    assert answer["content"]["data"]["state"] == {"value": 3, "max": 3}


@pytest.mark.parametrize("where", ["cpu", "gpu"])
def test_asyncio_and_prints_of_a_cell_need_nothing_of_ours(notebook: Any, where: str) -> None:
    if where == "cpu":
        code = "import asyncio\nawait asyncio.sleep(0.01)\nprint('awaited')"
        assert notebook.ok(code).text == "awaited\n"
    outcome = notebook.ok(f"%%{where}\nprint('plain')")
    assert "looseleaf" not in json.dumps(outcome.messages).lower()


def test_cell_that_may_reach_any_name_is_not_refused_for_one_that_it_does_not_read(notebook: Any) -> None:
    notebook.ok("%reset -f\nkept = 5")
    notebook.ok("%%gpu\nlost = (n for n in range(3))\nmade = [1]")
    assert notebook.ok("eval('kept + len(made)')").result == "6"
    assert notebook.ok("%%gpu\neval('kept + 1')").result == "6"
    assert notebook.run("eval('kept'), lost").error[0] == "UNSAVED_VARIABLE"
    assert notebook.run("%%gpu\neval('kept'), lost").error[0] == "UNSAVED_VARIABLE"
    outcome = notebook.run("next(globals()['lo' + 'st'])")
    assert outcome.error[0] == "PreconditionFailed" and "`lost` is not here: it could not be saved" in outcome.error[1]


@pytest.mark.parametrize("made", ["[1, 2]", "(n for n in range(3))"])
def test_cell_whose_first_word_is_a_stand_in_runs_as_any_other(notebook: Any, made: str) -> None:
    # IPython looks at that variable before it runs the cell.
    notebook.ok(f"%%gpu\nfirst_word = {made}")
    notebook.ok("first_word = 5")
    assert notebook.ok("first_word").result == "5"


def test_outputs_of_both_kinds_of_cells_are_kept_and_shown_again(notebook) -> None:
    cells = ("import sys; print('here'); print('bad', file=sys.stderr); 1 / 0", "%%gpu\nprint('there'); 40 + 2")
    outcomes = [notebook.run(source) for source in cells]
    for outcome, texts in zip(outcomes, (("here", "bad", "ZeroDivisionError"), ("there", "42")), strict=True):
        count = outcome.reply["execution_count"]
        again = notebook.ok(f"%looseleaf outputs {count}")
        shown = again.text + "".join(
            content["data"]["text/plain"] for kind, content in again.messages if kind == "display_data"
        )
        assert all(text in shown for text in texts), (texts, again)
    rows = notebook.ok("%looseleaf outputs -n 4").text.splitlines()
    counts = [outcome.reply["execution_count"] for outcome in outcomes]
    assert [row.split()[0] for row in rows[2:]] == [f"[{n}]" for n in (counts[1] + 2, counts[1] + 1, counts[1])]
    assert "error" in notebook.ok("%looseleaf outputs").text
    # A front end's own requests are none of the notebook's.
    notebook.client.execute("print('unseen')", silent=True)
    assert "unseen" not in notebook.ok("%looseleaf outputs").text


def test_gpu_process_is_kept_as_asked(notebook, daemon) -> None:
    notebook.ok("%%gpu --keep 30s\n1")
    assert "for 120 s" in notebook.ok("%looseleaf pin 2m").text
    notebook.ok("%%gpu\n1")
    notebook.ok("%%gpu\n1", looseleaf={"keep": 7})
    notebook.ok("%looseleaf pin")
    notebook.ok("%%gpu\n1")
    contexts = [body["context"] for kind, body in daemon.requests if kind == "submit"]
    assert [context["keep_s"] for context in contexts] == [30.0, 120.0, 7.0, 0.0]
    assert notebook.run("%%gpu --kept 5\n1").error[0] == "MAGIC_MALFORMED" and daemon.count("submit") == 4


def test_release_ends_idle_workers(notebook, daemon) -> None:
    assert "no GPU process of this session ended" in notebook.ok("%looseleaf release").text
    assert daemon.count("evict_workers") == 1


def test_traceback_of_a_gpu_cell_is_shown_again_and_the_debugger_says_what_it_lacks(notebook) -> None:
    failed = notebook.run("%%gpu\nraise ValueError('over there')")
    count = failed.reply["execution_count"]
    again = notebook.ok("%tb")
    [error] = [content for kind, content in again.messages if kind == "error"] or pytest.fail(str(again))
    assert "over there" in "".join(error["traceback"])
    assert f"cell [{count}] failed on a GPU process" in notebook.ok("%debug").text
    notebook.run("raise KeyError('here')")
    shown = notebook.ok("%tb").messages
    assert "here" in str(shown) and "over there" not in str(shown)


def test_usage_reply_tells_of_gpus(notebook) -> None:
    told = notebook.control("usage_request", {})()
    assert told["pid"] == notebook.pid and told["kernel_memory"] > 0
    assert told["looseleaf"] == {"gpus": 0, "gpu_memory_bytes": 0, "saved_bytes": 0, "peak_bytes": None}


def test_breakpoints_that_do_not_stop_a_gpu_cell_are_named(notebook) -> None:
    notebook.ok(
        "import types\ndef debug(breakpoints):\n    kernel = get_ipython().kernel\n"
        "    name = kernel.shell.compile.get_code_name\n"
        "    kept, kernel.debugger = kernel.debugger, types.SimpleNamespace(\n"
        "        is_started=True, breakpoint_list={name(text, text, 0): breakpoints for text in ('%%gpu\\n6',)})\n"
        "    return lambda: setattr(kernel, 'debugger', kept)\nundo = debug([{'line': 2}])"
    )
    assert "`breakpoint()` in it does" in notebook.ok("%%gpu\n6").text
    assert notebook.ok("%%gpu\n7").text == ""
    notebook.ok("undo(); del undo, debug, types")
