"""What belongs to one request: its outputs, and the figures that ride in its reply."""

from __future__ import annotations

from typing import Any

from looseleaf.kernel.report import PendingReports


class RequestFrame:
    """Part of the kernel: who it answers. Before ipykernel's class among its bases."""

    session: Any
    iopub_socket: Any
    get_parent: Any
    _topic: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._reports = PendingReports()
        # The newest request: what threads print belongs to it, as in ipykernel.
        self._newest: Any = {}

    def set_parent(self, ident: Any, parent: Any, channel: str = "shell") -> None:
        """Remembers the newest request of the shell."""
        super().set_parent(ident, parent, channel)  # type: ignore[misc]
        if channel == "shell":
            self._newest = parent

    def publish(self, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[bytes]) -> None:
        """See forwarder.Publisher; under the current request."""
        self.publish_under(self.get_parent("shell"), msg_type, content, metadata, buffers)

    def publish_under(
        self, parent: Any, msg_type: str, content: dict[str, Any], metadata: dict[str, Any], buffers: list[bytes]
    ) -> None:
        """Sends one message on iopub under the request `parent`."""
        self.session.send(
            self.iopub_socket, msg_type, content, metadata=metadata, parent=parent, ident=self._topic(msg_type),
            buffers=buffers,
        )  # fmt: skip

    def _keep_report(self, report: dict[str, Any]) -> None:
        self._reports.keep(self.get_parent("shell")["header"]["msg_id"], report)

    def finish_metadata(self, parent: Any, metadata: Any, reply_content: Any) -> Any:
        """Adds the cell's figures to the reply's metadata, under "looseleaf"."""
        metadata = super().finish_metadata(parent, metadata, reply_content)  # type: ignore[misc]
        report = self._reports.take(parent.get("header", {}).get("msg_id", ""))
        if report is not None:
            metadata["looseleaf"] = report
        return metadata
