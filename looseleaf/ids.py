"""Identifiers as types, so that one kind is never passed for another."""

from __future__ import annotations

import re
import secrets
from typing import NewType

from looseleaf.errors import InvalidArgument

SessionId = NewType("SessionId", str)
ExecutionId = NewType("ExecutionId", str)
CellId = NewType("CellId", str)
WorkerId = NewType("WorkerId", str)
HostId = NewType("HostId", str)
LeaseId = NewType("LeaseId", str)
RequestId = NewType("RequestId", str)
# A session's saved state at one point; 0 means "nothing was saved yet".
Version = NewType("Version", int)
# The number that fences an old owner of a session; rises when ownership moves after loss or restart.
Epoch = NewType("Epoch", int)
UnitId = NewType("UnitId", int)
PayloadId = NewType("PayloadId", int)

_ID_CHARS_MAX = 128
_ID_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]*")


def _fresh(prefix: str) -> str:
    return f"{prefix}-{secrets.token_hex(8)}"


def new_session_id() -> SessionId:
    """A session id that nobody can guess."""
    return SessionId(f"s-{secrets.token_hex(16)}")


def new_execution_id() -> ExecutionId:
    """An id for one run of one cell; at most one start happens per id (design §6)."""
    return ExecutionId(_fresh("x"))


def new_worker_id() -> WorkerId:
    """An id for a worker process, never reused as pids are."""
    return WorkerId(_fresh("w"))


def new_lease_id() -> LeaseId:
    """An id for one time-bound right to a GPU."""
    return LeaseId(_fresh("l"))


def new_request_id() -> RequestId:
    """An idempotency key for one mutating request."""
    return RequestId(_fresh("r"))


def check_id(kind: str, value: str) -> str:
    """Returns `value` if it is a well-formed id, else raises InvalidArgument `ID_MALFORMED`."""
    if len(value) > _ID_CHARS_MAX or not _ID_PATTERN.fullmatch(value):
        allowed = f"1 to {_ID_CHARS_MAX} letters, digits, '._:-'"
        raise InvalidArgument("ID_MALFORMED", f"{kind} id is malformed: {allowed}", kind=kind)
    return value
