"""What a page says of its cells: one message on the control channel for each edit, focus or paste (design §4, §9)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from looseleaf.errors import InvalidArgument, Unsupported
from looseleaf.protocol import fields

EDIT_VERSION: Final = 1
# `idle`: the page asks for the state only. `blur`: nobody edits this cell any more.
KINDS: Final = frozenset({"edit", "focus", "paste", "idle", "blur"})
PREPARED_KINDS: Final = frozenset({"edit", "focus", "paste"})
# A cell that is longer is prepared when it is run.
SOURCE_CHARS_MAX: Final = 1 << 20
ID_CHARS_MAX: Final = 256


@dataclass(frozen=True)
class EditSignal:
    """One signal, checked. `page`: the id of the comm on which that page takes the state of the GPU, empty if none."""

    kind: str
    cell_id: str
    source: str
    edit_sequence: int
    device_override: str
    page: str

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> EditSignal:
        """Raises InvalidArgument `FIELD_MALFORMED`, `CELL_TOO_LARGE`, Unsupported `PROTOCOL_VERSION`."""
        version = fields.integer(content, "v", EDIT_VERSION)
        if version != EDIT_VERSION:
            text = f"edit signals of version {version} are not understood, only those of version {EDIT_VERSION}"
            raise Unsupported("PROTOCOL_VERSION", text)
        kind = fields.text(content, "kind", "edit")
        if kind not in KINDS:
            raise InvalidArgument("FIELD_MALFORMED", f"{kind[:40]!r} is none of the kinds {', '.join(sorted(KINDS))}")
        return cls(
            kind,
            _id(content, "cell_id"),
            _source(content, needed=kind in PREPARED_KINDS),
            fields.integer(content, "edit_sequence", 0),
            fields.text(content, "device_override", ""),
            _id(content, "page"),
        )

    @property
    def prepares(self) -> bool:
        """Whether a worker is to be prepared for it."""
        return self.kind in PREPARED_KINDS


def _id(content: Mapping[str, Any], key: str) -> str:
    value = fields.text(content, key, "")
    if len(value) > ID_CHARS_MAX:
        raise InvalidArgument("FIELD_MALFORMED", f"{key!r} has more than {ID_CHARS_MAX} characters")
    return value


def _source(content: Mapping[str, Any], *, needed: bool) -> str:
    source = fields.text(content, "source", None if needed else "")
    if len(source) > SOURCE_CHARS_MAX:
        text = (
            f"the cell has {len(source)} characters; more than {SOURCE_CHARS_MAX} are not looked at before Run: "
            "nothing was prepared"
        )
        raise InvalidArgument("CELL_TOO_LARGE", text)
    return source
