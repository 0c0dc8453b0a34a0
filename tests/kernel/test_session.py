"""The session by itself, in this process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from looseleaf.kernel.session import KernelSession
from looseleaf.kernel_config import KernelConfig


def test_commit_that_finds_nothing_new_is_not_cut_while_it_renews_its_tables(
    tmp_path: Path, new_daemon: Any, monkeypatch: Any
) -> None:
    namespace: dict[str, Any] = {"x": [1]}
    session = KernelSession(namespace, lambda _name: False, KernelConfig(endpoint=str(tmp_path / "d.sock")))
    new_daemon()
    session.connect()
    session.commit_quietly()
    assert session.tracker is not None and session.version == 1
    replace, replaced = session.tracker.labels.replace, []

    def slow_replace(*args: Any) -> None:
        session.give_way.arrived()
        threading.Event().wait(0)
        replace(*args)
        replaced.append(True)

    monkeypatch.setattr(session.tracker.labels, "replace", slow_replace)
    session.changed()
    session.commit_quietly()
    assert replaced == [True] and session.version == 1 and not session.commits.pending
    session.close()


def test_close_commits_whatever_arrives_meanwhile(tmp_path: Path, monkeypatch: Any) -> None:
    session = KernelSession({}, lambda _name: False, KernelConfig(endpoint=str(tmp_path / "d.sock")))
    commits: list[str] = []

    def commit() -> None:
        session.give_way.arrived()
        threading.Event().wait(0)
        commits.append("done")

    monkeypatch.setattr(session, "commit", commit)
    session.commit_quietly()
    assert commits == []
    session.close()
    assert commits == ["done"]
