"""Contexts that wait for a Run, by tenant, and in how many of their cells somebody types; each look costs the same."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile

from looseleaf.ids import HostId, WorkerId


@dataclass(slots=True)
class OpenContext:
    """A worker that waits for a Run with a context on `gpus` GPUs since `since_s`; `typed_s`: the last keystroke."""

    host_id: HostId
    tenant: str
    gpus: int
    since_s: float
    typed_s: float
    # Nothing had run on the worker: it is speculation.
    counted: bool


class OpenContexts:
    """At most one for each worker. Times never go back."""

    def __init__(self, expiry_s: float) -> None:
        self._expiry_s = expiry_s
        self._of: dict[WorkerId, OpenContext] = {}
        # How many workers each tenant has here.
        self._workers: dict[str, int] = {}
        # Of each tenant those that somebody types in, the longest unused first, and their GPUs.
        self._typed: dict[str, OrderedDict[WorkerId, OpenContext]] = {}
        self._gpus: dict[str, int] = {}

    def __contains__(self, worker_id: object) -> bool:
        return worker_id in self._of

    def __iter__(self) -> Iterator[tuple[WorkerId, OpenContext]]:
        """All of them."""
        return iter(list(self._of.items()))

    def add(self, worker_id: WorkerId, context: OpenContext) -> None:
        """A worker waits with a context from now on, in whose cell somebody may last have typed before."""
        self._of[worker_id] = context
        self._workers[context.tenant] = self._workers.get(context.tenant, 0) + 1
        self._count(worker_id, context)

    def type_in(self, worker_id: WorkerId, now_s: float) -> None:
        """Somebody types in the worker's cell; nothing happens if it has no context."""
        context = self._of.get(worker_id)
        if context is not None:
            context.typed_s = now_s
            self._uncount(worker_id, context)
            self._count(worker_id, context)

    def give(self, worker_id: WorkerId, tenant: str) -> None:
        """The worker's session is that tenant's; nothing happens if it has no context."""
        context = self.take(worker_id)
        if context is not None:
            context.tenant = tenant
            self.add(worker_id, context)

    def take(self, worker_id: WorkerId) -> OpenContext | None:
        """Drops the worker's context; None if it has none."""
        context = self._of.pop(worker_id, None)
        if context is not None:
            self._uncount(worker_id, context)
            self._workers[context.tenant] -= 1
            if not self._workers[context.tenant]:
                del self._workers[context.tenant]
        return context

    def others_than(self, tenant: str) -> bool:
        """True if workers of another tenant are here."""
        return len(self._workers) > (tenant in self._workers)

    def gpus_typed_in(self, tenant: str, now_s: float) -> int:
        """On how many GPUs the tenant has contexts of cells that somebody typed in lately; each counts for itself."""
        typed = self._typed.get(tenant)
        while typed:
            worker_id, context = next(iter(typed.items()))
            if now_s - context.typed_s < self._expiry_s:
                break
            self._uncount(worker_id, context)
        return self._gpus.get(tenant, 0)

    def gpus(self, worker_id: WorkerId) -> int:
        """The GPUs of one worker's context, 0 if it has none."""
        context = self._of.get(worker_id)
        return context.gpus if context is not None else 0

    def typed_in(self, worker_id: WorkerId, now_s: float) -> int:
        """The GPUs of one worker's context, 0 if it has none or nobody types there."""
        context = self._of.get(worker_id)
        return context.gpus if context is not None and now_s - context.typed_s < self._expiry_s else 0

    def _count(self, worker_id: WorkerId, context: OpenContext) -> None:
        typed = self._typed.setdefault(context.tenant, OrderedDict())
        # Nearly always none: one that was typed in before is rarely added.
        later = list(takewhile(lambda other: other[1].typed_s > context.typed_s, reversed(typed.items())))
        typed[worker_id] = context
        for other, _context in reversed(later):
            typed.move_to_end(other)
        self._gpus[context.tenant] = self._gpus.get(context.tenant, 0) + context.gpus

    def _uncount(self, worker_id: WorkerId, context: OpenContext) -> None:
        typed = self._typed.get(context.tenant)
        if typed is None or typed.pop(worker_id, None) is None:
            return
        self._gpus[context.tenant] -= context.gpus
        if not typed:
            del self._typed[context.tenant], self._gpus[context.tenant]
