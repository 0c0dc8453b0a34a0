from __future__ import annotations

import struct
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from looseleaf.errors import InvalidArgument, LooseLeafError
from looseleaf.protocol.frames import (
    FRAME_BYTES_MAX,
    FRAME_FDS_MAX,
    UNCLAIMED_FDS_MAX,
    FrameReader,
    encode_frame,
    pack,
    unpack_map,
)

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
messages = st.builds(
    lambda body, type_, request_id: {**body, "t": type_, "id": request_id},
    st.dictionaries(st.text().filter(lambda key: key not in ("t", "id", "fds")), plain, max_size=4),
    st.text(),
    st.integers(0, 2**63),
)


def read_all(data: bytes, step: int) -> list[dict[str, Any]]:
    reader = FrameReader()
    found = []
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
        while (item := reader.next()) is not None:
            found.append(item[0])
    assert not reader.has_partial
    return found


@given(st.lists(messages, max_size=4), st.integers(1, 64))
def test_frames_cut_anywhere_come_back_whole_and_in_order(sent: list[dict[str, Any]], step: int) -> None:
    assert read_all(b"".join(encode_frame(message) for message in sent), step) == sent


@given(st.binary(max_size=200))
def test_reader_fed_random_bytes_raises_only_our_errors(data: bytes) -> None:
    reader = FrameReader()
    try:
        reader.feed(data)
        while reader.next() is not None:
            pass
    except LooseLeafError:
        return


@given(st.binary(max_size=120))
def test_reader_fed_random_body_raises_only_our_errors(body: bytes) -> None:
    reader = FrameReader()
    reader.feed(struct.pack("<I", len(body)) + body)
    try:
        message, fds = reader.next() or ({}, [])
    except LooseLeafError:
        return
    assert isinstance(message["t"], str)
    assert fds == []


@given(messages, st.data())
def test_reader_fed_a_damaged_frame_raises_only_our_errors(message: dict[str, Any], data: st.DataObject) -> None:
    frame = bytearray(encode_frame(message))
    position = data.draw(st.integers(0, len(frame) - 1))
    frame[position] ^= data.draw(st.integers(1, 255))
    reader = FrameReader()
    try:
        reader.feed(bytes(frame))
        reader.next()
    except LooseLeafError:
        return


def reason_of(body: bytes) -> str:
    reader = FrameReader()
    reader.feed(struct.pack("<I", len(body)) + body)
    with pytest.raises(InvalidArgument) as caught:
        reader.next()
    return caught.value.reason


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x91" * 5000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        msgpack.packb([1, 2]),
        msgpack.packb({1: 2, "t": "x"}),
        msgpack.packb({b"t": "x"}),
        msgpack.packb({}),
        msgpack.packb({"t": 3}),
        msgpack.packb({"t": b"x"}),
        msgpack.packb({"t": "x", "id": -1}),
        msgpack.packb({"t": "x", "id": True}),
        msgpack.packb({"t": "x", "id": "1"}),
        msgpack.packb({"t": "x", "fds": FRAME_FDS_MAX + 1}),
        msgpack.packb({"t": "x", "fds": [1]}),
        msgpack.packb({"t": "x", "v": msgpack.ExtType(5, b"x")}),
        msgpack.packb({"t": "x"}) + b"\x00",
        b"\x81\xa1t\xa1\xff",
    ],
)
def test_reader_malformed_body_is_refused_with_its_reason(body: bytes) -> None:
    assert reason_of(body) == "MESSAGE_MALFORMED"


def test_reader_length_over_the_limit_is_refused_before_the_body_comes() -> None:
    reader = FrameReader()
    reader.feed(struct.pack("<I", FRAME_BYTES_MAX + 1))
    with pytest.raises(InvalidArgument) as caught:
        reader.next()
    assert caught.value.reason == "FRAME_TOO_LARGE"


def test_encode_frame_over_the_limit_is_refused() -> None:
    with pytest.raises(InvalidArgument) as caught:
        encode_frame({"t": "x", "data": bytes(FRAME_BYTES_MAX)})
    assert caught.value.reason == "FRAME_TOO_LARGE"


@pytest.mark.parametrize("value", [object(), 1 << 70, "\ud800", {"x": {1, 2}}, pytest.fail])
def test_pack_value_that_is_not_plain_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument) as caught:
        pack({"t": "x", "value": value})
    assert caught.value.reason == "MESSAGE_NOT_PLAIN"


def test_pack_endless_nesting_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidArgument) as caught:
        pack(loop)
    assert caught.value.reason == "MESSAGE_NOT_PLAIN"


def test_unpack_map_reads_what_pack_wrote() -> None:
    assert unpack_map(pack({"a": (1, 2), "b": b"\x00"})) == {"a": [1, 2], "b": b"\x00"}


def test_reader_message_that_claims_fds_that_did_not_come_is_refused() -> None:
    reader = FrameReader()
    reader.feed(encode_frame({"t": "x"}, 2))
    with pytest.raises(InvalidArgument) as caught:
        reader.next()
    assert caught.value.reason == "FDS_MISSING"


def test_reader_more_unclaimed_fds_than_allowed_is_refused() -> None:
    reader = FrameReader()
    with pytest.raises(InvalidArgument) as caught:
        reader.feed(b"", [10_000 + number for number in range(UNCLAIMED_FDS_MAX + 1)])
    assert caught.value.reason == "TOO_MANY_FDS"
    reader._fds.clear()  # they are not real
