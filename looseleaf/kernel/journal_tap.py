"""The output journal at the one place that all outputs of a kernel pass: CPU cells, GPU cells, threads, widgets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from looseleaf.kernel.journal import OutputJournal
from looseleaf.kernel.journal_files import JOURNAL_FOLDER
from looseleaf.kernel_config import KernelConfig


def journal_root(run_dir: str | Path) -> Path:
    """Where the journals of a run folder are."""
    return Path(run_dir) / JOURNAL_FOLDER


def journal_outputs(session: Any, config: KernelConfig, title: str) -> OutputJournal:
    """The journal of what `session`, the kernel's Jupyter session, sends from now on."""
    journal = OutputJournal(journal_root(config.run_dir), title, config.journal_bytes_max)
    send = session.send

    def send_and_keep(stream: Any, msg_or_type: Any, content: Any = None, parent: Any = None, *a: Any, **k: Any) -> Any:
        if isinstance(msg_or_type, Mapping):
            kind, shown, of = msg_or_type.get("msg_type"), msg_or_type.get("content"), msg_or_type.get("parent_header")
        else:
            kind, shown, of = msg_or_type, content, (parent or {}).get("header", parent)
        if isinstance(shown, Mapping) and isinstance(of, Mapping):
            journal.take(str(of.get("msg_id", "")), str(kind), shown)
        return send(stream, msg_or_type, content, parent, *a, **k)

    session.send = send_and_keep
    return journal
