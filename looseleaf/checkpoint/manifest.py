"""The index of one version of a session's state: its values and its bytes. Services import this module alone."""

from __future__ import annotations

from looseleaf.checkpoint.manifest_codec import decode_manifest, encode_manifest
from looseleaf.checkpoint.manifest_model import (
    ALGORITHM_XXH3,
    HASH_BYTES,
    MANIFEST_BYTES_MAX,
    NAMES_MAX,
    PAYLOADS_MAX,
    PREVIEW_CHARS_MAX,
    REGIONS_MAX,
    UNIT_BYTES_MAX,
    UNITS_MAX,
    Closure,
    Flag,
    Manifest,
    PayloadEntry,
    RegionList,
    RegionRef,
    UnitEntry,
    UnitHeader,
    Unsaved,
    region_ids,
)

__all__ = [
    "ALGORITHM_XXH3",
    "HASH_BYTES",
    "MANIFEST_BYTES_MAX",
    "NAMES_MAX",
    "PAYLOADS_MAX",
    "PREVIEW_CHARS_MAX",
    "REGIONS_MAX",
    "UNITS_MAX",
    "UNIT_BYTES_MAX",
    "Closure",
    "Flag",
    "Manifest",
    "PayloadEntry",
    "RegionList",
    "RegionRef",
    "UnitEntry",
    "UnitHeader",
    "Unsaved",
    "decode_manifest",
    "encode_manifest",
    "region_ids",
]
