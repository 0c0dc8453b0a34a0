"""What a running cell says, from its worker's event to the kernel's: over the wire between their hosts in between."""

from __future__ import annotations

import msgpack

from looseleaf.protocol import fields
from looseleaf.services.worker_daemon.core.worker_life import Stage, WorkerFacts
from looseleaf.services.worker_daemon.wire import Body, left_body
from looseleaf.v1 import scheduler_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb


def response_of(event: Body) -> pb.ExecuteResponse | None:
    """A worker's event as the running host tells it; None for one that is no mere message of the cell.

    Raises InvalidArgument `FIELD_MALFORMED`.
    """
    kind, number = event.get("t"), worker_event(event)
    if kind == "output":
        output = msgpack.packb(fields.mapping(event, "message"))
        return pb.ExecuteResponse(output=output, worker_event=number)
    if kind == "input_request":
        request = pb.InputRequest(
            prompt=fields.text(event, "prompt", ""), password=fields.boolean(event, "password", False),
            question=fields.integer(event, "question", 0),
        )  # fmt: skip
        return pb.ExecuteResponse(input_request=request, worker_event=number)
    if kind == "comm_done":
        done = pb.CommDone(origin=fields.text(event, "origin"), late=fields.boolean(event, "late", False))
        return pb.ExecuteResponse(comm_done=done, worker_event=number)
    return None


def worker_event(event: Body) -> int:
    """The number that the worker gave it; 0: none."""
    return fields.integer(event, "n", 0)


def event_of(response: pb.ExecuteResponse) -> tuple[str, Body] | None:
    """What the running host tells as the kernel hears it: kind and body; None for the save, and for what is not known.

    An event of the worker itself keeps its number, as `n`.
    """
    which = response.WhichOneof("message")
    number = {"n": response.worker_event} if response.worker_event else {}
    if which == "output":
        return which, {"message": msgpack.unpackb(response.output), **number}
    if which == "stage":
        stage = response.stage
        body = {
            "stage": stage.stage, "worker_id": stage.worker_id, "pid": stage.pid, "elapsed_ms": stage.elapsed_ms,
        }  # fmt: skip
        return which, {**body, **number}
    if which == "input_request":
        asked = response.input_request
        return which, {"prompt": asked.prompt, "password": asked.password, "question": asked.question, **number}
    if which == "comm_done":
        return which, {"origin": response.comm_done.origin, "late": response.comm_done.late, **number}
    if which == "left":
        return which, left_body(response.left)
    if which == "ended":
        return which, {"reply": msgpack.unpackb(response.ended.reply), "run_s": response.ended.run_s, **number}
    return None


def stage_news(stage: Stage, facts: WorkerFacts | None, elapsed_ms: float, number: int = 0) -> pb.ExecuteResponse:
    """The cell has come to `stage`, on the worker of `facts` if it has one; `number`: of the worker's event."""
    news = pb.StageNews(
        stage=scheduler_pb2.WorkerStage.Name(int(stage)), worker_id=facts.worker_id if facts else "",
        pid=facts.pid if facts else 0, elapsed_ms=elapsed_ms,
    )  # fmt: skip
    return pb.ExecuteResponse(stage=news, worker_event=number)


def note(text: str) -> pb.ExecuteResponse:
    """A line of ours among the cell's output."""
    return pb.ExecuteResponse(output=msgpack.packb({"type": "stream", "name": "stderr", "text": text}))


def unrun(ename: str, text: str, execution_count: int) -> list[pb.ExecuteResponse]:
    """The outputs and the end of a cell that has no end of its own."""
    error = {"ename": ename, "evalue": text, "traceback": [text]}
    reply = {"status": "error", **error, "execution_count": execution_count}
    return [
        pb.ExecuteResponse(output=msgpack.packb({"type": "error", **error})),
        pb.ExecuteResponse(ended=pb.CellEnded(reply=msgpack.packb(reply), run_s=0.0)),
    ]
