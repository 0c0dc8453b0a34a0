"""The session's versions as its kernel follows them: the head, what workers committed, what was lost (design §3)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

from looseleaf.checkpoint.history import checked_out_version
from looseleaf.checkpoint.manifest import Manifest
from looseleaf.checkpoint.tracker import StateTracker
from looseleaf.errors import NotFound, Unavailable
from looseleaf.ids import Epoch, Version, new_execution_id
from looseleaf.kernel.link import DaemonLink
from looseleaf.kernel.main_thread import on_thread
from looseleaf.kernel.run_log import RunLog
from looseleaf.kernel.session_news import SessionNews
from looseleaf.kernel_config import KernelConfig
from looseleaf.protocol import fields
from looseleaf.protocol.frames import Message
from looseleaf.protocol.threaded import ThreadedLink
from looseleaf.worker.unsaved import stale_note

log = logging.getLogger("looseleaf.kernel")

# Versions that no cell of the log has made.
TAKEN_BACK: Final = "(what a cell did on the CPU before it was run on a GPU)"
BEFORE_TAKEN_BACK: Final = "(as before that cell)"


class FollowedVersions(ABC):
    """Part of KernelSession, which makes everything that is named here."""

    config: KernelConfig
    tracker: StateTracker | None
    runs: RunLog
    rebinding: Callable[[], AbstractContextManager[None]]
    _link: DaemonLink
    _news: SessionNews

    @property
    @abstractmethod
    def version(self) -> Version:
        """See KernelSession."""

    @property
    @abstractmethod
    def manifest(self) -> Manifest | None:
        """See KernelSession."""

    @abstractmethod
    async def connected(self) -> ThreadedLink:
        """See KernelSession."""

    @abstractmethod
    def changed(self) -> None:
        """See KernelSession."""

    @abstractmethod
    def commit(self, needed: Collection[str] | None = None) -> None:
        """See KernelSession."""

    @abstractmethod
    def _leave(self) -> None:
        """Ends the connection to the cluster."""

    def roll_back(self, version: Version) -> None:
        """Makes the live state that of `version` again, which this kernel committed before the cell that has just run.

        What the cell did becomes a version of its own, between both. Nothing of `version` may be lazy: it would be
        gone. Raises as `commit` and `StateTracker.check_out`, and Unavailable `NO_CLUSTER` without a daemon; then the
        state is as the cell left it.
        """
        assert self.tracker is not None
        _head, data = self.tracker.io.manifest(version)
        if data is None:
            raise NotFound("VERSION_UNKNOWN", f"version {version} of this session is not in the store", version=version)
        self.changed()
        self.commit(())
        self.runs.explain(self.version, TAKEN_BACK)
        if self._link.live is None:
            raise Unavailable("NO_CLUSTER", "the connection to the LooseLeaf cluster was lost")
        if self.version == version:
            return
        with self.rebinding():
            report = self.tracker.check_out(data, new_execution_id())
        self._news.not_followed(report.problems)
        self.runs.saved(self.version)
        self.runs.explain(self.version, BEFORE_TAKEN_BACK)
        log.info("rolled_back source=%s version=%s", version, self.version)

    def _take_head(self) -> None:
        before = self.version
        self._advance(Version(0))
        if self.version < before:
            self._fell_back(before)
        elif before and self.version != before and (source := self._checked_out()):
            self.runs.check_out(source, self.version)
            self._news.checked_out(source, self.version)

    def _fell_back(self, before: Version) -> None:
        """The store has lost the versions from here to `before`, and with them what their cells did."""
        lost = range(self.version + 1, before + 1)
        cells = [cell for version in lost for cell in self.runs.cells_of(version)]
        self.runs.check_out(self.version, self.version)
        self._news.fell_back(self.version, len(lost), cells)

    def _checked_out(self) -> int:
        return checked_out_version(self.manifest) if self.manifest is not None else 0

    def take_notes(self) -> str:
        """What is to be told to the person, once: of a checkout by others, of values that no longer fit the version
        followed, and of what of it this process could not follow."""
        return self._news.take() + stale_note(self.tracker.take_stale() if self.tracker is not None else [])

    def take_version(self, version: int) -> None:
        """Takes over what a worker committed: names that it changed become stubs here (design §3, two copies).

        Raises the daemon's or the store's error; joining the cluster again, before the next cell, then does the same.
        """
        with self._rejoining_after_failure():
            self._take_version(version)

    @contextmanager
    def _rejoining_after_failure(self) -> Iterator[None]:
        # On this connection nothing would ever bring what the worker's cell has changed.
        try:
            yield
        except BaseException:
            self._leave()
            raise

    def _take_version(self, version: int) -> None:
        if self.tracker is not None and version != self.tracker.version:
            self._advance(Version(version))

    def _advance(self, version: Version) -> None:
        assert self.tracker is not None
        _head, manifest = self.tracker.io.manifest(version)
        if manifest is None:
            return
        with self.rebinding():
            report = self.tracker.advance(manifest)
        self._news.not_followed(report.problems)

    async def fence(self) -> None:
        """After a worker was lost: nothing that it may still send is accepted any more, and the store's head counts.

        Raises the daemon's or the store's error; joining the cluster again, before the next cell, then does the same.
        """
        with self._rejoining_after_failure():
            link = await self.connected()
            assert self.tracker is not None
            body = await on_thread(self._raise_epoch, link)
            self.tracker.epoch = Epoch(fields.integer(body, "epoch"))
            before = self.version
            self._take_version(fields.integer(body, "version"))
            if self.version < before:
                # The worker's host took with it what it had not written to disk.
                self._fell_back(before)

    def _raise_epoch(self, link: ThreadedLink) -> Message:
        body, _fds = link.request("raise_epoch", {}, timeout_s=self.config.request_timeout_s)
        return body
