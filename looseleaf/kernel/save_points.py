"""Between two cells of a batch run: everything is saved as a version that a later run can go on from (design §3)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from looseleaf.checkpoint.version_list import ListedVersion
from looseleaf.errors import InvalidArgument, LooseLeafError, PreconditionFailed
from looseleaf.kernel.main_thread import call_on
from looseleaf.kernel.save_requests import RESUME_REQUEST, SAVE_REQUEST
from looseleaf.kernel.session import KernelSession
from looseleaf.kernel.time_travel import TimeTravel
from looseleaf.protocol import fields

log = logging.getLogger("looseleaf.kernel")

Answer = dict[str, Any]


class SavePoints:
    """Answers both requests, which come on the control channel while no cell runs. `session` as in KernelSession.

    save: `{}` → `{status, session_id, version, execution_id, unsaved}`, with everything saved.
    resume: `{points: [[version, execution_id, execution_count]]}` → `{status, index}`: the state, and the count of the
    next cell, are those of the first point that the store still has whole, which is `index` in the list; -1 if it has
    none, and then no version was taken up.
    An error is `{status: "error", ename, evalue}`; `STATE_IS_ELSEWHERE` while a cell runs, which `busy()` says.
    """

    def __init__(self, session: KernelSession, travel: TimeTravel, shell: Any, busy: Callable[[], bool]) -> None:
        self._session = session
        self._travel = travel
        self._shell = shell
        self._busy = busy

    def register(self, kernel: Any) -> None:
        """Makes `kernel` answer them."""

        def handler(answer: Callable[[Mapping[str, Any]], Answer], reply_type: str) -> Any:
            async def handle(stream: Any, ident: Any, parent: Any) -> None:
                content = await self._on_main(kernel.io_loop.asyncio_loop, answer, parent["content"])
                kernel.session.send(stream, reply_type, content, parent, ident)

            return handle

        kernel.control_handlers[SAVE_REQUEST] = handler(self.save, SAVE_REQUEST.replace("request", "reply"))
        kernel.control_handlers[RESUME_REQUEST] = handler(self.resume, RESUME_REQUEST.replace("request", "reply"))

    async def _on_main(
        self, loop: asyncio.AbstractEventLoop, answer: Callable[[Mapping[str, Any]], Answer], asked: Mapping[str, Any]
    ) -> Answer:
        answers: list[Answer] = []

        def work() -> None:
            if self._busy():
                raise PreconditionFailed("STATE_IS_ELSEWHERE", "a cell runs: its state is no cell's end. Wait for it")
            answers.append(answer(asked))

        try:
            await asyncio.wrap_future(call_on(loop, work))
        except KeyboardInterrupt:
            # Of the main thread, where it has stopped the work; this loop, which serves the channel, goes on.
            return {"status": "error", "ename": "INTERRUPTED", "evalue": "the save was interrupted"}
        except LooseLeafError as error:
            return {"status": "error", "ename": error.reason, "evalue": error.message}
        except Exception as error:
            # The run must hear of it; it would wait for ever.
            log.exception("save_point_failed")
            return {"status": "error", "ename": "BUG", "evalue": f"{type(error).__name__}: {error}"}
        return {"status": "ok", **answers[0]}

    def save(self, _asked: Mapping[str, Any]) -> Answer:
        """See the class. Raises the store's or the daemon's error."""
        session = self._session
        session.connect()
        session.changed()
        session.commit()
        manifest = session.manifest
        return {
            "session_id": str(session.session_id), "version": int(session.version),
            "execution_id": str(manifest.execution_id) if manifest is not None else "",
            "unsaved": sorted(entry.name for entry in manifest.unsaved) if manifest is not None else [],
        }  # fmt: skip

    def resume(self, asked: Mapping[str, Any]) -> Answer:
        """See the class. Raises as TimeTravel.check_out, InvalidArgument `FIELD_MALFORMED`."""
        points = [_point(item) for item in fields.sequence(asked, "points")]
        self._session.connect()
        index = newest_whole([(version, execution_id) for version, execution_id, _count in points],
                             self._travel.versions())
        if index < 0:
            return {"index": -1}
        version, _execution_id, count = points[index]
        self._travel.check_out(version, force=True)
        self._shell.execution_count = count
        return {"index": index}


def _point(item: Any) -> tuple[int, str, int]:
    match item:
        case [int(version), str(execution_id), int(count)]:
            return version, execution_id, count
    raise InvalidArgument("FIELD_MALFORMED", f"{item!r} is no save point")


def newest_whole(points: Sequence[tuple[int, str]], kept: Sequence[ListedVersion]) -> int:
    """The first of `points` that is still what it was then; -1 if none is.

    A host that was lost may have taken the newest versions along, and their numbers were given anew since.
    """
    known = {entry.version: entry for entry in kept}
    for index, (version, execution_id) in enumerate(points):
        entry = known.get(version)
        if entry is not None and entry.execution_id == execution_id and not entry.lazy_bytes:
            return index
    return -1
