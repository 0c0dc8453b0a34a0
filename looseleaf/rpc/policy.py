"""One policy for every channel and server: sizes, keepalive, retries, deadlines."""

from __future__ import annotations

import asyncio
import json
import time
from contextvars import ContextVar
from typing import Any, Final

# A frame of the worker protocol (32 MiB) must fit.
MESSAGE_BYTES_MAX: Final = 40 << 20
# Errors ride in trailers; gRPC's default of 8 KiB would turn a large one into an unreadable fault.
METADATA_BYTES_MAX: Final = 64 << 10
CONCURRENT_CALLS_MAX: Final = 20_000
RETRY_ATTEMPTS_MAX: Final = 4
# What a service keeps of its caller's deadline for its own answer when it calls another service.
DEADLINE_MARGIN_S: Final = 0.05
# Metadata key that ties together the log lines of one request across services.
REQUEST_ID_KEY: Final = "x-looseleaf-request"
# Metadata keys of the ids that a call takes along for the logs: `x-looseleaf-session` and so on.
CARRIED_ID_PREFIX: Final = "x-looseleaf-"
# Metadata key by which a server tells gRPC's own retry not to try again.
RETRY_PUSHBACK_KEY: Final = "grpc-retry-pushback-ms"

_SERVICE_CONFIG: Final = json.dumps({
    "methodConfig": [{
        "name": [{}],
        "retryPolicy": {
            "maxAttempts": RETRY_ATTEMPTS_MAX,
            "initialBackoff": "0.05s",
            "maxBackoff": "1s",
            "backoffMultiplier": 3,
            "retryableStatusCodes": ["UNAVAILABLE"],
        },
    }],
    "retryThrottling": {"maxTokens": 100, "tokenRatio": 0.5},
})


def client_options(message_bytes_max: int = MESSAGE_BYTES_MAX) -> list[tuple[str, Any]]:
    """Options of every channel."""
    return [
        ("grpc.service_config", _SERVICE_CONFIG),
        ("grpc.enable_retries", 1),
        ("grpc.max_send_message_length", message_bytes_max),
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        # A restarted service must be found again in well under a second.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1_000),
        ("grpc.use_local_subchannel_pool", 1),
        # A proxy variable in the user's shell must not capture calls between our services.
        ("grpc.enable_http_proxy", 0),
    ]


def server_options(message_bytes_max: int = MESSAGE_BYTES_MAX) -> list[tuple[str, Any]]:
    """Options of every server."""
    return [
        ("grpc.max_send_message_length", message_bytes_max),
        ("grpc.max_receive_message_length", message_bytes_max),
        ("grpc.max_metadata_size", METADATA_BYTES_MAX),
        # Otherwise two servers share one TCP port without an error.
        ("grpc.so_reuseport", 0),
        ("grpc.keepalive_time_ms", 60_000),
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.keepalive_permit_without_calls", 1),
        # Clients ping every 30 s, also without calls: the default of 5 min would answer with GOAWAY too_many_pings.
        ("grpc.http2.min_recv_ping_interval_without_data_ms", 20_000),
    ]


# The deadline belongs to one task: a background task started by a handler must not inherit it.
_deadline: ContextVar[tuple[Any, float] | None] = ContextVar("looseleaf_deadline", default=None)


def bind_deadline(remaining_s: float | None) -> None:
    """Sets the current task's deadline; calls that this task makes are cut to it."""
    if remaining_s is not None:
        _deadline.set((asyncio.current_task(), time.monotonic() + remaining_s))


def remaining_s() -> float | None:
    """Seconds until the current task's deadline, or None; may be negative."""
    bound = _deadline.get()
    if bound is None or bound[0] is not asyncio.current_task():
        return None
    return bound[1] - time.monotonic()


def effective_timeout_s(timeout_s: float) -> float:
    """`timeout_s`, but never past the deadline of the call that the current task handles, less a margin."""
    remaining = remaining_s()
    return timeout_s if remaining is None else max(0.001, min(timeout_s, remaining - DEADLINE_MARGIN_S))
