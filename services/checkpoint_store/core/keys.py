"""Where each row lives: the index has no column families, so the first byte of a key tells the kind of row.

Session ids hold no NUL (see `looseleaf.ids.check_id`), so NUL ends them and the rows of one session lie together.
"""

from __future__ import annotations

from typing import Final

FORMAT_KEY: Final = b"!format"
# When all bytes were last read (ms), or when it was first noted that they never were
SCRUBBED_KEY: Final = b"!scrubbed"
# T<tenant> -> its key: TENANT_KEY_BYTES that begin the name of each of its objects, so that tenants share none
TENANT: Final = b"T"
# s<session> -> SessionRow
SESSION: Final = b"s"
# v<session>\0<version> -> VersionRow; m... -> the manifest's bytes; k... -> VersionRefs, what the version keeps alive
VERSION: Final = b"v"
MANIFEST: Final = b"m"
REFS: Final = b"k"
# e<session>\0<version> -> execution id of a version that retention dropped before a later one was durable
EXECUTION: Final = b"e"
# t<session> -> TombstoneRow of a deleted session
TOMBSTONE: Final = b"t"
# u<tenant key><unit hash> -> UnitRow; U... -> the unit's bytes, apart so that counting references moves no bytes
UNIT: Final = b"u"
UNIT_BYTES: Final = b"U"
# r<tenant key><region id> -> RegionRow
REGION: Final = b"r"
# h<host>\0<tenant key><region id> -> nothing: the regions of one host lie together
HOST_REGION: Final = b"h"
# o<key of a UnitRow or RegionRow> -> when it was last put or named (ms): the objects that no version keeps alive
ORPHAN: Final = b"o"
# x<number> -> object keys whose references are still to be given back
RELEASE: Final = b"x"

TENANT_KEY_BYTES: Final = 4
HASH_BYTES: Final = 16
# The key of a UnitRow or RegionRow, which is the object's name among those that versions keep alive.
OBJECT_KEY_BYTES: Final = 1 + TENANT_KEY_BYTES + HASH_BYTES
# The tenant that needs no row.
DEFAULT_TENANT: Final = bytes(TENANT_KEY_BYTES)


def tenant_row_key(name: str) -> bytes:
    """Key of the row of a tenant."""
    return TENANT + name.encode()


def tenant_name_of(key: bytes) -> str:
    """The tenant whose row has `key`."""
    return key[1:].decode()


def session_key(session_id: str) -> bytes:
    """Key of a SessionRow."""
    return SESSION + session_id.encode()


def session_of(key: bytes) -> str:
    """The session whose SessionRow has `key`."""
    return key[1:].decode()


def versions_prefix(kind: bytes, session_id: str) -> bytes:
    """Prefix of all rows of `kind` (VERSION, MANIFEST, REFS, EXECUTION) of a session, ascending by version."""
    return kind + session_id.encode() + b"\0"


def version_key(kind: bytes, session_id: str, version: int) -> bytes:
    """Key of the row of `kind` of one version."""
    return versions_prefix(kind, session_id) + version.to_bytes(8, "big")


def version_of(key: bytes) -> int:
    """The version whose row has `key`."""
    return int.from_bytes(key[-8:], "big")


def tombstone_key(session_id: str) -> bytes:
    """Key of a TombstoneRow."""
    return TOMBSTONE + session_id.encode()


def unit_key(tenant: bytes, unit_hash: bytes) -> bytes:
    """Key of a UnitRow; also the unit's name among the objects that versions keep alive."""
    return UNIT + tenant + unit_hash


def unit_bytes_key(tenant: bytes, unit_hash: bytes) -> bytes:
    """Key of a unit's bytes."""
    return UNIT_BYTES + tenant + unit_hash


def region_key(tenant: bytes, region_id: bytes) -> bytes:
    """Key of a RegionRow; also the region's name among the objects that versions keep alive."""
    return REGION + tenant + region_id


def is_region(object_key: bytes) -> bool:
    """Whether an object's name is a region's and not a unit's."""
    return object_key[:1] == REGION


def tenant_of(object_key: bytes) -> bytes:
    """Key of the tenant whose object it is."""
    return object_key[1 : 1 + TENANT_KEY_BYTES]


def hash_of(object_key: bytes) -> bytes:
    """A unit's hash or a region's id."""
    return object_key[1 + TENANT_KEY_BYTES :]


def host_prefix(host_id: str) -> bytes:
    """Prefix of a host's rows."""
    return HOST_REGION + host_id.encode() + b"\0"


def host_region_key(host_id: str, object_key: bytes) -> bytes:
    """Key of the row that says that a host's arena holds a region, named by the key of its RegionRow."""
    return host_prefix(host_id) + object_key[1:]


def region_on_host(host_id: str, key: bytes) -> bytes:
    """Key of the RegionRow of the region that a row of `host_region_key` is about."""
    return REGION + key[len(host_prefix(host_id)) :]


def orphan_key(object_key: bytes) -> bytes:
    """Key of the row that says that no version keeps an object alive."""
    return ORPHAN + object_key


def release_key(number: int) -> bytes:
    """Key of the `number`-th row of references to give back."""
    return RELEASE + number.to_bytes(8, "big")
