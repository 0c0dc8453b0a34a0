"""One unit on its way into a manifest: pickled, with its header, or refused with the reason and the culprit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from looseleaf.checkpoint.bundles import Bundle, parse_name
from looseleaf.checkpoint.by_name import SESSION_MODULE, is_session_class
from looseleaf.checkpoint.code_names import names_read_by
from looseleaf.checkpoint.manifest import UNIT_BYTES_MAX, PayloadEntry, UnitHeader
from looseleaf.checkpoint.memory import Block
from looseleaf.checkpoint.persons_code import DETAIL_CHARS_MAX, BreakOff, out_of_memory, shown
from looseleaf.checkpoint.pickler import NAMESPACE_ID, PickleScope, UnitPickler
from looseleaf.checkpoint.previews import kind_of, plain_flag, preview_of, sizes_of
from looseleaf.checkpoint.session_globals import SESSION_TEXT, names_session_global
from looseleaf.checkpoint.unit_format import write_bundle, write_in_two_steps, write_plain, write_value
from looseleaf.errors import LooseLeafError
from looseleaf.ids import PayloadId, UnitId
from looseleaf.units import format_bytes

# Every unit needs these to be read; they say nothing about the value.
_OURS: Final = "looseleaf.checkpoint."
# The state of a CUDA generator: a seed and an offset.
_GENERATOR_BYTES: Final = 16


@dataclass(slots=True)
class Failure:
    """Why a unit has no bytes: `culprit` is the object at which pickling stopped. `passing`: trying again may help."""

    reason: str
    detail: str
    culprit: Any
    too_deep: bool = False
    cyclic: bool = False
    passing: bool = False


@dataclass(slots=True)
class Draft:
    """A live unit: `value` heads it; `data` are its bytes unless `failure` says why there are none.

    `construction`: ids that must exist before its object does.
    """

    unit_id: UnitId
    value: Any
    data: bytes = b""
    refs: frozenset[int] = frozenset()
    construction: frozenset[int] = frozenset()
    in_two_steps: bool = False
    pickler: UnitPickler | None = field(default=None, repr=False)
    failure: Failure | None = None


def draft_unit(scope: PickleScope, unit_id: UnitId, value: Any, *, plain: bool, in_two_steps: bool = False) -> Draft:
    """Pickles one unit. What the person's own classes raise while they are pickled becomes the draft's failure."""
    draft = Draft(unit_id, value, in_two_steps=in_two_steps)
    if plain:
        return _draft_plain(draft, value)
    pickler = draft.pickler = UnitPickler(scope)
    construction: frozenset[int | str] | None
    try:
        if in_two_steps:
            written = write_in_two_steps(pickler, value)
            if written is None:
                return draft_unit(scope, unit_id, value, plain=False)
            draft.data, construction = written
        else:
            is_bundle = isinstance(value, Bundle)
            draft.data = write_bundle(pickler, value) if is_bundle else write_value(pickler, value, unit_id)
            construction = None
    except BreakOff:
        raise
    except BaseException as error:
        draft.failure = _failure(error, value if pickler.last is None else pickler.last)
        return draft
    draft.refs = _named_ids(pickler.used)
    draft.construction = draft.refs if construction is None else _named_ids(construction)
    if SESSION_TEXT in draft.data and names_session_global(draft.data):
        draft.failure = Failure("SESSION_GLOBAL", "it is pickled by a name of this session only", value)
    _check_size(draft)
    return draft


def _named_ids(used: Iterable[int | str]) -> frozenset[int]:
    """Units and payloads behind persistent ids; a member of a bundle stands for the bundle."""
    found = set()
    for name in used:
        if isinstance(name, int):
            found.add(name)
        elif (place := parse_name(name)) is not None:
            found.add(place[0])
    found.discard(NAMESPACE_ID)
    return frozenset(found)


def _draft_plain(draft: Draft, value: Any) -> Draft:
    try:
        draft.data = write_plain(value)
    except Exception as error:
        draft.failure = _failure(error, value)
    _check_size(draft)
    return draft


def _check_size(draft: Draft) -> None:
    if draft.failure is None and len(draft.data) > UNIT_BYTES_MAX:
        sizes = f"its pickle has {format_bytes(len(draft.data))}, {format_bytes(UNIT_BYTES_MAX)} are allowed"
        draft.failure = Failure("UNIT_TOO_LARGE", sizes, draft.value)
    if draft.failure is not None:
        draft.data = b""


def _failure(error: BaseException, culprit: Any) -> Failure:
    if isinstance(error, MemoryError):
        error = out_of_memory("there was no memory for its pickle")
    if isinstance(error, LooseLeafError):
        return Failure(error.reason, error.message, culprit)
    if isinstance(error, RecursionError) or isinstance(error.__cause__, RecursionError):
        detail = "objects are nested more deeply than can be saved: keep them in a list instead of a chain"
        return Failure("TOO_DEEP", detail, culprit, too_deep=True)
    text = shown(error)
    is_race = type(error) is RuntimeError and "during iteration" in text
    detail = f"{type(culprit).__name__} cannot be saved: {text}"[:DETAIL_CHARS_MAX]
    return Failure("NOT_SERIALIZABLE", detail, culprit, passing=is_race)


def header_of(draft: Draft, payload_ids: dict[PayloadId, PayloadEntry]) -> UnitHeader:
    """What can be told of the unit without unpickling it; `payload_ids` are the payloads of this version."""
    value = draft.value
    refs = tuple(sorted(UnitId(ref) for ref in draft.refs if ref not in payload_ids))
    payloads = tuple(sorted(PayloadId(ref) for ref in draft.refs if ref in payload_ids))
    device_bytes: dict[str, int] = {}
    for payload_id in payloads:
        entry = payload_ids[payload_id]
        device_bytes[entry.device] = device_bytes.get(entry.device, 0) + entry.size_bytes
    for block in draft.pickler.inline_memory if draft.pickler is not None else ():
        device_bytes[block.device] = device_bytes.get(block.device, 0) + block.size_bytes
    for device in draft.pickler.generator_devices if draft.pickler is not None else ():
        # It can be made where the device is only; what needs it is found by the bytes on devices.
        device_bytes[device] = device_bytes.get(device, 0) + _GENERATOR_BYTES
    has_flag, flag = plain_flag(value)
    common: dict[str, Any] = {
        "refs": refs, "payloads": payloads, "device_bytes": device_bytes, "flag": flag, "has_flag": has_flag,
    }  # fmt: skip
    if isinstance(value, Bundle):
        size = len(value.members)
        facts = _code_facts(draft.pickler)
        return UnitHeader(**common, **facts, kind="bundle", type_name="bundle", preview=f"{size} objects", length=size)
    if isinstance(value, Block):
        return UnitHeader(**common, kind="memory", type_name="memory", device=value.device)
    kind = type(value)
    return UnitHeader(
        **common,
        **sizes_of(value),
        **_code_facts(draft.pickler),
        kind=kind_of(value),
        type_name=kind.__qualname__,
        type_module=kind.__module__ if type(kind.__module__) is str else "",
        preview=preview_of(value),
    )


def _code_facts(pickler: UnitPickler | None) -> dict[str, Any]:
    if pickler is None:
        return {}
    modules = set(pickler.modules)
    session_classes = set()
    for kind in pickler.kinds:
        if is_session_class(kind):
            session_classes.add(kind.__qualname__)
        elif type(kind.__module__) is str:
            modules.add(kind.__module__)
    names: dict[str, None] = {}
    for code in pickler.code:
        names.update(dict.fromkeys(names_read_by(code)))
    modules.difference_update(("builtins", SESSION_MODULE))
    modules = {module for module in modules if not module.startswith(_OURS)}
    return {
        "modules": tuple(sorted(modules)),
        "global_names": tuple(sorted(names)),
        "session_classes": tuple(sorted(session_classes)),
        "notes": tuple(dict.fromkeys(pickler.notes)),
    }
