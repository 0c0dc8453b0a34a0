"""One conformance suite that every kind of database passes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from looseleaf.errors import InvalidArgument, Unavailable
from looseleaf.kv import KV_KINDS, Batch, KvBackend, open_kv, scan_all
from looseleaf.kv.backend import KEY_BYTES_MAX, SCAN_LIMIT_MAX, VALUE_BYTES_MAX


@pytest.fixture(params=sorted(KV_KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    if request.param == "rocksdict":
        pytest.importorskip("rocksdict", reason="the optional package rocksdict is not installed")
    return str(request.param)


@pytest.fixture
def kv(kind: str, tmp_path: Path) -> Iterator[KvBackend]:
    backend = open_kv(tmp_path / "kv", kind)
    yield backend
    backend.close()


def batch_of(**puts: str) -> Batch:
    batch = Batch()
    for key, value in puts.items():
        batch.put(key.encode(), value.encode())
    return batch


def test_get_unknown_key_is_none(kv: KvBackend) -> None:
    assert kv.get(b"nothing") is None
    assert kv.multi_get([]) == []


def test_write_puts_and_deletes_are_visible_at_once(kv: KvBackend) -> None:
    kv.write(batch_of(a="1", b="2"))
    batch = batch_of(c="")
    batch.delete(b"a")
    batch.delete(b"never")
    kv.write(batch, durable=True)
    assert kv.multi_get([b"a", b"b", b"c", b"b"]) == [None, b"2", b"", b"2"]


def test_batch_same_key_twice_last_one_wins(kv: KvBackend) -> None:
    batch = batch_of(a="1")
    batch.delete(b"a")
    batch.put(b"a", b"2")
    batch.put(b"b", b"3")
    batch.delete(b"b")
    kv.write(batch)
    assert kv.multi_get([b"a", b"b"]) == [b"2", None]


def test_scan_yields_prefix_ascending_from_start_to_limit(kv: KvBackend) -> None:
    kv.write(batch_of(a="0", p1="1", p3="3", p2="2", q="4"))
    assert kv.scan(b"p") == [(b"p1", b"1"), (b"p2", b"2"), (b"p3", b"3")]
    assert kv.scan(b"p", b"p2") == [(b"p2", b"2"), (b"p3", b"3")]
    assert kv.scan(b"p", b"a", 1) == [(b"p1", b"1")]
    assert kv.scan(b"p", b"q") == []
    assert kv.scan(b"\xff") == []
    assert [key for key, _ in scan_all(kv, b"p", page=1)] == [b"p1", b"p2", b"p3"]


@pytest.mark.parametrize("limit", [0, SCAN_LIMIT_MAX + 1])
def test_scan_with_bad_limit_is_refused(kv: KvBackend, limit: int) -> None:
    with pytest.raises(InvalidArgument, match="KV_SCAN_LIMIT"):
        kv.scan(b"", b"", limit)


def test_batch_beyond_limits_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="KV_KEY_SIZE"):
        Batch().put(b"", b"")
    with pytest.raises(InvalidArgument, match="KV_KEY_SIZE"):
        Batch().delete(b"k" * (KEY_BYTES_MAX + 1))
    with pytest.raises(InvalidArgument, match="KV_VALUE_SIZE"):
        Batch().put(b"k", bytes(VALUE_BYTES_MAX + 1))


def test_reopened_database_has_every_write(kind: str, tmp_path: Path) -> None:
    if kind == "memory":
        pytest.skip("the database in memory keeps nothing")
    kv = open_kv(tmp_path / "kv", kind)
    kv.write(batch_of(a="1"))
    kv.write(Batch(), durable=True)
    kv.close()
    kv = open_kv(tmp_path / "kv", kind)
    assert kv.get(b"a") == b"1"
    kv.close()


def test_second_open_while_open_is_refused(kind: str, tmp_path: Path) -> None:
    if kind == "memory":
        pytest.skip("the database in memory has no owner")
    kv = open_kv(tmp_path / "kv", kind)
    with pytest.raises(Unavailable, match="KV_LOCKED"):
        open_kv(tmp_path / "kv", kind)
    kv.close()


def test_closed_database_refuses_and_closes_twice(kv: KvBackend) -> None:
    kv.close()
    kv.close()
    for call in (lambda: kv.get(b"a"), lambda: kv.write(batch_of(a="1")), kv.flush, lambda: kv.scan(b"")):
        with pytest.raises(Unavailable, match="KV_CLOSED"):
            call()


def test_unknown_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="KV_KIND_UNKNOWN"):
        open_kv(tmp_path, "tape")


def test_threads_write_durably_together_each_sees_its_own(kv: KvBackend) -> None:
    failures: list[str] = []

    def work(name: str) -> None:
        for index in range(20):
            kv.write(batch_of(**{f"{name}{index}": name}), durable=True)
            if kv.get(f"{name}{index}".encode()) != name.encode():
                failures.append(f"{name}{index}")

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(kv.scan(b"")) == 80


KEYS = st.binary(min_size=1, max_size=3)
STEPS = st.lists(
    st.lists(st.tuples(KEYS, st.none() | st.binary(max_size=4)), max_size=6), max_size=8
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS, prefix=st.binary(max_size=2), start=st.binary(max_size=2))
def test_backend_equals_a_sorted_dict(
    kind: str,
    tmp_path_factory: pytest.TempPathFactory,
    steps: list[list[tuple[bytes, bytes | None]]],
    prefix: bytes,
    start: bytes,
) -> None:
    kv = open_kv(tmp_path_factory.mktemp("kv"), kind)
    model: dict[bytes, bytes] = {}
    for step in steps:
        batch = Batch()
        for key, value in step:
            if value is None:
                batch.delete(key)
                model.pop(key, None)
            else:
                batch.put(key, value)
                model[key] = value
        kv.write(batch)
    expected = [(key, model[key]) for key in sorted(model) if key.startswith(prefix) and key >= start]
    assert kv.scan(prefix, start) == expected
    assert kv.multi_get(sorted(model)) == [model[key] for key in sorted(model)]
    kv.close()
