"""How the bytes of units are kept: as they came, or compressed where it pays. Regions are never compressed.

RocksDB compresses its tables in the background, fast and lightly. Compressing units harder is worth the saver's wait
only with zstd, an optional package (extra `zstd`); a store without it keeps and reads all that was kept plain.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

from looseleaf.errors import Corrupt, Unsupported

PLAIN: Final = 0
ZSTD: Final = 1
# Below this, or with a smaller gain, the work of every later read is not worth it.
COMPRESS_BYTES_MIN: Final = 1_024
GAIN_MIN: Final = 1.3
# Where a sample of the bytes gains nothing, the rest is not tried.
SAMPLE_BYTES: Final = 16 * 1_024
LEVEL: Final = 1


class UnitCodec:
    """Encodes with zstd if `compress` is set and the package is there; decodes all that this process can."""

    def __init__(self, *, compress: bool) -> None:
        self._zstd = _zstandard()
        self._compresses = compress and self._zstd is not None

    def encode(self, data: bytes) -> tuple[int, bytes]:
        """(codec, the bytes to keep)."""
        if not self._compresses or len(data) < COMPRESS_BYTES_MIN:
            return PLAIN, data
        compressor = self._zstd.ZstdCompressor(level=LEVEL)
        sample = data[:SAMPLE_BYTES]
        if len(data) > len(sample) and len(compressor.compress(sample)) * GAIN_MIN > len(sample):
            return PLAIN, data
        kept = compressor.compress(data)
        return (ZSTD, kept) if len(kept) * GAIN_MIN <= len(data) else (PLAIN, data)

    def decode(self, codec: int, kept: bytes, size_bytes: int) -> bytes:
        """The unit's bytes, which are `size_bytes` long; never makes more than that of what is kept.

        Raises Unsupported `UNIT_CODEC` for one that this process cannot read, Corrupt `CHECKSUM_MISMATCH` for damage.
        """
        if codec == PLAIN:
            return kept
        if codec != ZSTD:
            text = f"a unit is kept with codec {codec}, which this version does not know; upgrade the store"
            raise Unsupported("UNIT_CODEC", text, codec=codec)
        if self._zstd is None:
            text = "a unit is kept with zstd, which is not installed here: pip install 'looseleaf[zstd]'"
            raise Unsupported("UNIT_CODEC", text, codec=codec)
        try:
            # A frame that claims another size than the index is refused before anything is made of it.
            if self._zstd.frame_content_size(kept) == size_bytes:
                data: bytes = self._zstd.ZstdDecompressor().decompress(kept, max_output_size=size_bytes)
                return data
        except self._zstd.ZstdError:
            pass
        raise Corrupt("CHECKSUM_MISMATCH", "a unit is damaged in the store: it cannot be decompressed")


def _zstandard() -> Any:
    try:
        return importlib.import_module("zstandard")
    except ImportError:
        return None
