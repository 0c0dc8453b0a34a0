"""The one tree of errors (style: Errors). `reason` is a stable word; the text is for people.

A cell that raises is a result, not an error of this tree.
"""

from __future__ import annotations

from typing import Any, ClassVar


class LooseLeafError(Exception):
    """Something that LooseLeaf could not do.

    `reason`: a stable UPPER_SNAKE word that tests and users match on.
    `message`: one sentence or two: what happened to the person's state and what to do next.
    `fields`: details, string keys to plain values; they travel with the error over every protocol.
    """

    code: ClassVar[str] = "INTERNAL"

    # Positional only: a field of an error from another process may have any name, also "reason" or "message".
    def __init__(self, reason: str, message: str = "", /, **fields: Any) -> None:
        self.reason = reason
        self.message = message
        self.fields = fields
        super().__init__(f"{reason}: {message}" if message else reason)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.reason, self.message, self.fields))


def _rebuild(cls: type[LooseLeafError], reason: str, message: str, fields: dict[str, Any]) -> LooseLeafError:
    return cls(reason, message, **fields)


class InvalidArgument(LooseLeafError):
    """The request itself is wrong; nobody may retry it unchanged."""

    code = "INVALID_ARGUMENT"


class NotFound(LooseLeafError):
    """A named thing does not exist."""

    code = "NOT_FOUND"


class PreconditionFailed(LooseLeafError):
    """The caller's view is out of date, such as `STALE_EPOCH`; refresh first."""

    code = "FAILED_PRECONDITION"


class Conflict(LooseLeafError):
    """Somebody else was first, such as `MANIFEST_MOVED`; the caller's whole step may be retried."""

    code = "ABORTED"


class CapacityExceeded(LooseLeafError):
    """A limit was met, such as `NO_GPU_FREE`; retry after the given delay."""

    code = "RESOURCE_EXHAUSTED"


class Unavailable(LooseLeafError):
    """A part of the system is not there now, such as `STORE_DOWN`; the channel retries by policy."""

    code = "UNAVAILABLE"


class Timeout(LooseLeafError):
    """A limit of time passed; the caller may retry with the same request id."""

    code = "DEADLINE_EXCEEDED"


class Corrupt(LooseLeafError):
    """Bytes are not what was saved; never hidden, never retried."""

    code = "DATA_LOSS"


class Unsupported(LooseLeafError):
    """This build or this machine cannot do it."""

    code = "UNIMPLEMENTED"


class Unauthenticated(LooseLeafError):
    """No valid token."""

    code = "UNAUTHENTICATED"


class Forbidden(LooseLeafError):
    """A valid token that does not open this."""

    code = "PERMISSION_DENIED"


class Internal(LooseLeafError):
    """A fault of ours; `fields["error_id"]` is in the service's log."""

    code = "INTERNAL"


ERRORS_BY_CODE: dict[str, type[LooseLeafError]] = {
    cls.code: cls
    for cls in (
        InvalidArgument, NotFound, PreconditionFailed, Conflict, CapacityExceeded, Unavailable,
        Timeout, Corrupt, Unsupported, Unauthenticated, Forbidden, Internal,
    )
}


def to_wire(error: LooseLeafError) -> dict[str, Any]:
    """The error as a plain map {code, reason, message, fields}, as every protocol carries it."""
    return {"code": error.code, "reason": error.reason, "message": error.message, "fields": dict(error.fields)}


def from_wire(wire: dict[str, Any]) -> LooseLeafError:
    """The error that `to_wire` made; an unknown code becomes Internal, never a lost error."""
    cls = ERRORS_BY_CODE.get(str(wire.get("code")), Internal)
    fields = wire.get("fields")
    named = {str(k): v for k, v in fields.items()} if isinstance(fields, dict) else {}
    return cls(str(wire.get("reason", "BUG")), str(wire.get("message", "")), **named)
