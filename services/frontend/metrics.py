"""Prometheus figures of the recipe frontend beside those of its RPCs."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from looseleaf.rpc.metrics import LATENCY_BUCKETS_S
from looseleaf.services.frontend.core.book import SessionBook


class FrontendMetrics:
    """How soon edits become preparations, and how often a label was wrong. Any thread may count."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.edit_signal = Histogram(
            "looseleaf_edit_signal_seconds", "Time from an edit's arrival to the order for a preparation",
            buckets=LATENCY_BUCKETS_S, registry=registry)
        self._misses = Counter(
            "looseleaf_recipe_miss", "Cells that needed what their recipe did not say", ["kind"], registry=registry)
        self._misses.labels("device")
        self._sessions = Gauge("looseleaf_frontend_sessions", "Sessions whose logs are held", registry=registry)

    def follow(self, book: SessionBook) -> None:
        """Shows how many sessions are held."""
        self._sessions.set_function(lambda: len(book))

    def wrong_device(self) -> None:
        """A cell whose text is labelled CPU was run on a GPU."""
        self._misses.labels("device").inc()
