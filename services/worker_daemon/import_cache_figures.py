"""What the import cache did, counted; `DaemonMetrics` puts it into Prometheus' registry."""

from __future__ import annotations

from collections.abc import Callable

from looseleaf.services.worker_daemon.core.zygote_events import KillWhy
from looseleaf.services.worker_daemon.core.zygote_facts import Verdict


class CacheFigures:
    """Counts nothing by itself: whoever wants to, sets the functions."""

    def __init__(self) -> None:
        # Sum over the zygotes that live, as last sampled.
        self.pss_bytes = 0
        self.on_fork: Callable[[int | None, float, bool], None] = lambda _depth, _seconds, _lacking: None
        self.on_build: Callable[[Verdict, float], None] = lambda _verdict, _seconds: None
        self.on_end: Callable[[KillWhy], None] = lambda _why: None

    def forked(self, depth: int | None, seconds: float, *, lacking: bool) -> None:
        """A worker was forked from a node of this depth (None: a fresh process); `lacking`: it must import more."""
        self.on_fork(depth, seconds, lacking)

    def built(self, verdict: Verdict, seconds: float) -> None:
        """A node was built, if the verdict is clean, or refused."""
        self.on_build(verdict, seconds)

    def ended(self, why: KillWhy) -> None:
        """A zygote was ended."""
        self.on_end(why)
