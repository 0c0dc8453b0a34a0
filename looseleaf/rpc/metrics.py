"""Prometheus figures of a process's RPCs; one registry per server, so that several can live in one process."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from looseleaf.errors import PreconditionFailed
from looseleaf.units import KIB

LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
# An interactive start takes at most 1 s (design §6): most buckets lie around it.
START_BUCKETS_S = (0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1, 1.25, 1.5, 2, 3, 5, 10, 30, 60)
# 64 KiB to 128 GiB.
BYTES_BUCKETS = tuple(64 * KIB * 8**power for power in range(8))


class RpcMetrics:
    """Requests, latency and errors of each method."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry
        self.requests = Counter(
            "looseleaf_rpc_requests", "Finished calls by status code", ["method", "code"], registry=registry)
        self.errors = Counter(
            "looseleaf_rpc_errors", "Failed calls by reason", ["method", "reason"], registry=registry)
        self.latency = Histogram(
            "looseleaf_rpc_latency_seconds", "Time from a call's start to its end", ["method"],
            buckets=LATENCY_BUCKETS_S, registry=registry)
        self.running = Gauge("looseleaf_rpc_running", "Calls that run now", ["method"], registry=registry)

    def finished(self, method: str, code: str, reason: str, elapsed_s: float) -> None:
        """Counts one call; `reason` is empty for a call that succeeded."""
        self.requests.labels(method, code).inc()
        self.latency.labels(method).observe(elapsed_s)
        if reason:
            self.errors.labels(method, reason).inc()


def prepare_seconds(registry: CollectorRegistry) -> Histogram:
    """`queue` is the scheduler's, `fork`, `import`, `restore` and `attach` the daemon's: one name, as of one wait."""
    return Histogram(
        "looseleaf_prepare_seconds", "Time of each stage of making a cell's worker ready", ["stage"],
        buckets=LATENCY_BUCKETS_S, registry=registry)


def serve_metrics(port: int, registry: CollectorRegistry, host: str = "127.0.0.1") -> Callable[[], None]:
    """Serves `registry` at `host` and `port`; returns what stops it. Raises PreconditionFailed `ADDRESS_IN_USE`."""
    try:
        server, thread = start_http_server(port, addr=host, registry=registry)
    except OSError as error:
        text = f"cannot serve metrics on {host}:{port}: {error.strerror}; choose another with --metrics-port"
        raise PreconditionFailed("ADDRESS_IN_USE", text) from error

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join()

    return stop
