"""Where variables that no version has live: in this kernel, or in a GPU worker that is kept for them (design §3)."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any, Final

from looseleaf.checkpoint.manifest import Manifest, Unsaved
from looseleaf.errors import LooseLeafError
from looseleaf.ids import Epoch
from looseleaf.protocol.frames import Message

log = logging.getLogger("looseleaf.kernel")

# How long an ending session waits to be heard: its connection goes at once afterwards, and requests under way with it.
RELEASE_AT_END_S: Final = 0.5


@dataclass(frozen=True)
class Holder:
    """A worker in which a variable lives. It makes way for nobody before `kept_until_s` of the wall clock."""

    worker_id: str
    host_id: str
    pid: int
    epoch: Epoch
    since_version: int
    kept_until_s: float

    def where(self, now_s: float) -> str:
        """Such as "the GPU process 4711, which is kept for it until 12:30:05"."""
        until = time.strftime("%H:%M:%S", time.localtime(self.kept_until_s))
        process = f"the GPU process {self.pid} of an earlier cell"
        if now_s < self.kept_until_s:
            return f"{process}, which is kept for it until {until}"
        return f"{process}, which may be gone by now"


@dataclass(frozen=True)
class Released:
    """`ended` processes are gone, and with them the variables `names`; `silent` hosts did not answer."""

    ended: int
    names: list[str]
    silent: list[str]


class Holders:
    """The workers of this session's unsaved variables, by name. Of the kernel's main thread.

    `send`: a request to the daemon.
    """

    def __init__(self, send: Callable[[str, Message], Future[Any]]) -> None:
        self._send = send
        self._by_name: dict[str, Holder] = {}
        # Why a holder is known to be gone, for people.
        self._gone: dict[str, str] = {}

    def ran(self, saved: Mapping[str, Any], manifest: Manifest, epoch: Epoch, now_s: float) -> None:
        """A GPU cell was saved and its version, `manifest`, was taken over."""
        worker_id, pid, kept_s = saved.get("worker_id"), saved.get("pid"), saved.get("unsaved_kept_s")
        if not (isinstance(worker_id, str) and worker_id and isinstance(pid, int)):
            return
        kept_until_s = now_s + (kept_s if isinstance(kept_s, (int, float)) else 0.0)
        since = {entry.name: entry.since_version for entry in manifest.unsaved}
        self._forget([name for name, holder in self._by_name.items() if holder.worker_id == worker_id])
        rows = [item for item in saved.get("unsaved", ()) if isinstance(item, Mapping) and item.get("here") is True]
        names = [name for item in rows if (name := item.get("name")) in since]
        # Bound anew there: what another worker has is an older one.
        self._release([name for name in names if name in self._by_name])
        for name in names:
            self._by_name[name] = Holder(
                worker_id, str(saved.get("host_id", "")), pid, epoch, since[name], kept_until_s
            )

    def of(self, entry: Unsaved, epoch: Epoch) -> Holder | None:
        """The worker in which the entry's value lives, if it may still be asked for it."""
        holder = self._by_name.get(entry.name)
        if holder is None or holder.since_version != entry.since_version or entry.name in self._gone:
            return None
        return holder if holder.epoch == epoch else None

    def gone(self, names: Collection[str], why: str) -> None:
        """The cluster said that the holder of these variables is gone; `why` completes "the process ..."."""
        self._gone.update({name: why for name in names if name in self._by_name})

    def why_gone(self, entry: Unsaved, epoch: Epoch) -> str:
        """What is known of the end of the entry's holder, for people; empty if nothing is."""
        holder = self._by_name.get(entry.name)
        if holder is None or holder.since_version != entry.since_version:
            return ""
        process = f"it was kept in the GPU process {holder.pid}, which"
        if holder.epoch != epoch:
            return f"{process} was given up when a later cell of this notebook was lost"
        return f"{process} {self._gone[entry.name] or 'is gone'}" if entry.name in self._gone else ""

    def where(self, entry: Unsaved, epoch: Epoch) -> str:
        """Where the entry's value lives, or why it does no longer, for people; empty if nothing is known."""
        holder = self.of(entry, epoch)
        return self.why_gone(entry, epoch) if holder is None else f"it lives in {holder.where(time.time())}"

    def follow(self, manifest: Manifest) -> None:
        """`manifest` is the newest version: for what it knows otherwise or not at all no worker need be kept."""
        since = {entry.name: entry.since_version for entry in manifest.unsaved}
        self._release([name for name, h in self._by_name.items() if since.get(name) != h.since_version])

    def names(self) -> list[str]:
        """The variables that live in workers."""
        return sorted(self._by_name)

    def release_all(self) -> None:
        """The session ends: no worker need be kept for it. Waits until that was heard, `RELEASE_AT_END_S` at most."""
        wait(self._release(list(self._by_name)), RELEASE_AT_END_S)

    def _release(self, names: Collection[str]) -> list[Future[Any]]:
        answers = []
        for holder, of_it in self._forget(names):
            body = {"host_id": holder.host_id, "worker_id": holder.worker_id, "names": of_it}
            try:
                answer = self._send("release_unsaved", body)
            except LooseLeafError as error:
                # Its time ends by itself.
                log.info("hold_not_released %s", error)
                continue
            answer.add_done_callback(_log_refusal)
            answers.append(answer)
        return answers

    def _forget(self, names: Collection[str]) -> list[tuple[Holder, list[str]]]:
        found: dict[str, tuple[Holder, list[str]]] = {}
        for name in names:
            holder = self._by_name.pop(name)
            self._gone.pop(name, None)
            found.setdefault(holder.worker_id, (holder, []))[1].append(name)
        return list(found.values())


def _log_refusal(future: Future[Any]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.info("hold_not_released %s", error)
