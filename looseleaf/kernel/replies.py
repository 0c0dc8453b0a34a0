"""The reply of a cell that did not run in this process, and its place in the kernel's history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from looseleaf.errors import LooseLeafError
from looseleaf.kernel.forwarder import Publisher, error_output, error_reply, error_text, publish_output
from looseleaf.kernel.shell_undo import ShellUndo


class CellReplies:
    """Replies as ipykernel would give them, had the cell run in `shell`; outputs go to `publisher`."""

    def __init__(self, shell: Any, publisher: Publisher) -> None:
        self._shell = shell
        self._publisher = publisher
        # Of a cell that began here and was taken back: its text is stored already.
        self.taken_back: ShellUndo | None = None

    def finished(
        self, source: str, count: int, reply: Mapping[str, Any], user_expressions: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """The execute_reply of cell number `count` that ended as `reply` says; its text is in the history then."""
        self._store_input(count, source)
        content: dict[str, Any] = {
            "status": reply.get("status", "error"), "execution_count": count, "user_expressions": {},
            "payload": list(reply.get("payload", [])),
        }  # fmt: skip
        if content["status"] == "ok":
            content["user_expressions"] = self._shell.user_expressions(user_expressions or {})
        else:
            content.update({key: str(reply.get(key, "")) for key in ("ename", "evalue")})
            content["traceback"] = list(reply.get("traceback", []))
        for payload in content["payload"]:
            if payload.get("source") == "ask_exit":
                self._shell.exit_now = not payload.get("keepkernel")
        return content

    def refused(self, source: str, ename: str, text: str) -> dict[str, Any]:
        """The cell was not run: its output is the error, its number is used up as by any failing cell."""
        count: int = self._shell.execution_count
        output = error_output(ename, text)
        publish_output(self._publisher, output)
        return self.finished(source, count, error_reply(output))

    def not_again(self, reply: dict[str, Any], error: LooseLeafError | None) -> dict[str, Any]:
        """The reply of a cell that ran here to its end, where `error` follows what it has shown; its own if None."""
        if error is None:
            return reply
        output = error_output(error.reason, error_text(error))
        publish_output(self._publisher, output)
        return {**reply, "user_expressions": {}, **error_reply(output)}

    def _store_input(self, count: int, source: str) -> None:
        if self.taken_back is not None:
            self.taken_back.redo()
            self.taken_back = None
            self._shell.execution_count = count + 1
            return
        try:
            transformed = self._shell.transform_cell(source)
        except SyntaxError:
            transformed = source
        self._shell.history_manager.store_inputs(count, transformed, source)
        self._shell.execution_count = count + 1
