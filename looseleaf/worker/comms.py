"""Widgets and progress bars in a worker: comms that are forwarded to the kernel as output messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import comm
from comm.base_comm import BaseComm

Publish = Callable[[dict[str, Any]], None]


def forward_comms(publish: Publish) -> None:
    """From now on every comm made in this process sends its messages by `publish`.

    Asked again before each cell: importing ipykernel, which a cell may do, puts its own comms in place.
    """

    class ForwardedComm(BaseComm):
        def publish_msg(
            self,
            msg_type: str,
            data: dict[str, Any] | None = None,
            metadata: dict[str, Any] | None = None,
            buffers: list[bytes] | None = None,
            **keys: Any,
        ) -> None:
            publish({
                "type": msg_type,
                "comm_id": self.comm_id,
                "data": {} if data is None else data,
                "metadata": {} if metadata is None else metadata,
                "buffers": [bytes(buffer) for buffer in buffers or ()],
                **keys,
            })

    comm.create_comm = ForwardedComm
    comm.get_comm_manager = comm._get_comm_manager
