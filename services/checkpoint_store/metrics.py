"""Prometheus figures of the store beside those of its RPCs."""

from __future__ import annotations

from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge

from looseleaf.services.checkpoint_store.collector import Collected
from looseleaf.services.checkpoint_store.store import Store
from looseleaf.services.checkpoint_store.turns import Turns


class StoreMetrics:
    """What is held, what was freed, how often a session fell back."""

    def __init__(self, registry: CollectorRegistry, store: Store) -> None:
        held = Gauge("looseleaf_store_bytes", "Bytes of units and regions on the store's disk", registry=registry)
        held.set_function(lambda: store.usage.used_bytes)
        limit = Gauge("looseleaf_store_bytes_limit", "Limit of looseleaf_store_bytes", registry=registry)
        limit.set_function(lambda: store.usage.bytes_max)
        sessions = Gauge("looseleaf_store_sessions", "Sessions that exist", registry=registry)
        sessions.set_function(lambda: store.sessions.count)
        self.fallbacks = Counter(
            "looseleaf_store_fallbacks", "Sessions that lost their newest version with a host", registry=registry)
        self._freed = Counter("looseleaf_store_freed", "Objects freed by the collector", ["kind"], registry=registry)

        damaged = Gauge(
            "looseleaf_store_damaged_regions", "Regions whose bytes the disk changed", registry=registry)
        damaged.set_function(lambda: len(store.index.damaged))
        self._waiting = Gauge(
            "looseleaf_store_streams_waiting", "Streams that wait for their turn", ["kind"], registry=registry)

    def follow(self, **turns: Turns) -> None:
        """Shows how many streams of each kind wait."""
        for kind, followed in turns.items():
            self._waiting.labels(kind).set_function(partial(getattr, followed, "waiting"))

    def collected(self, freed: Collected) -> None:
        """Counts one run of the collector."""
        self._freed.labels("version").inc(freed.versions_dropped)
        self._freed.labels("unit").inc(freed.units_deleted)
        self._freed.labels("region").inc(freed.regions_deleted)
