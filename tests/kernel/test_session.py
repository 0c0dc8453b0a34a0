"""The session by itself, in this process."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from looseleaf.checkpoint.lazy import LAZY_MOVE_BYTES_MAX
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

    def commit(_needed: object = None) -> None:
        session.give_way.arrived()
        threading.Event().wait(0)
        commits.append("done")

    monkeypatch.setattr(session, "commit", commit)
    session.commit_quietly()
    assert commits == []
    session.close()
    assert commits == ["done"]


def test_commit_for_some_variables_leaves_the_rest_to_the_idle_one(tmp_path: Path, new_daemon: Any) -> None:
    large = bytearray(2 * LAZY_MOVE_BYTES_MAX)
    namespace: dict[str, Any] = {"needed": [1], "large": large, "box": [large]}
    session = KernelSession(namespace, lambda _name: False, KernelConfig(endpoint=str(tmp_path / "d.sock")))
    daemon = new_daemon()
    session.connect()
    session.commit(["needed"])
    assert session.manifest is not None and session.manifest.lazy_bytes() == len(large)
    assert not daemon.store.regions
    # Nothing new for the same cell; the idle kernel goes on, and so does a cell that needs the rest.
    session.commit(["needed"])
    assert session.version == 1 and session.commits.pending
    session.commit(["box"])
    assert session.version == 2 and not session.commits.pending and daemon.store.regions
    session.close()
