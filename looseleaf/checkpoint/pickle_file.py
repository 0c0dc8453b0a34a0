"""The memory file that units are pickled into."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

from looseleaf.checkpoint.manifest_model import UNIT_BYTES_MAX
from looseleaf.errors import PreconditionFailed
from looseleaf.units import format_bytes

if TYPE_CHECKING:
    from typing_extensions import Buffer

# An object may give items without end: beyond it, it is refused while it is pickled.
PICKLE_BYTES_MAX: Final = UNIT_BYTES_MAX


class PickleFile(io.BytesIO):
    """Its `write` is Python code: signals are heard after each frame of 64 KiB, so that a commit can be broken off.

    Otherwise a large pickle of builtin objects is one call of C code, from its beginning to its end. Raises
    PreconditionFailed `UNIT_TOO_LARGE` beyond PICKLE_BYTES_MAX.
    """

    def write(self, data: Buffer, /) -> int:
        """As BytesIO's."""
        if self.tell() > PICKLE_BYTES_MAX:
            sizes = f"its pickle has more than the {format_bytes(PICKLE_BYTES_MAX)} that are allowed"
            raise PreconditionFailed("UNIT_TOO_LARGE", sizes)
        return super().write(data)
