from __future__ import annotations

from looseleaf.checkpoint.manifest import Manifest, PayloadEntry, UnitEntry, UnitHeader
from looseleaf.ids import PayloadId, SessionId, UnitId
from looseleaf.recipe import NameFacts, Payload, facts_from_manifest


def unit(*refs: int, **header: object) -> UnitEntry:
    return UnitEntry(b"h" * 16, 10, (), UnitHeader(refs=tuple(map(UnitId, refs)), **header))  # type: ignore[arg-type]


def payload(device: str, size_bytes: int) -> PayloadEntry:
    return PayloadEntry("memory", device, size_bytes, "xxh3-128", 2 << 20, ())


def test_facts_from_manifest_cover_all_units_reached() -> None:
    manifest = Manifest(
        SessionId("s"),
        roots={"model": UnitId(1), "opt": UnitId(2), "flag": UnitId(4)},
        units={
            UnitId(1): unit(3, kind="instance", type_name="Net", modules=("torch.nn",), payloads=(PayloadId(7),)),
            UnitId(2): unit(1, kind="instance", modules=("torch.optim",)),
            UnitId(3): unit(1, kind="class", global_names=("WIDTH",)),
            UnitId(4): unit(flag=True, has_flag=True),
        },
        payloads={PayloadId(7): payload("cuda:0", 100)},
    )
    facts = facts_from_manifest(manifest)
    assert facts["model"] == NameFacts(
        "instance", "Net", "", frozenset({"WIDTH"}), frozenset({"torch.nn"}), {7: Payload("cuda:0", 100)}
    )
    assert facts["opt"].modules == {"torch.nn", "torch.optim"}
    assert facts["opt"].device_bytes == 100
    assert (facts["flag"].flag, facts["flag"].has_flag) == (True, True)


def test_memory_inside_units_counts_once_for_each_unit_whoever_reaches_it() -> None:
    shared = {"cpu": 5, "cuda:0": 70}
    manifest = Manifest(
        SessionId("s"),
        roots={"a": UnitId(1), "b": UnitId(2), "c": UnitId(4)},
        units={
            UnitId(1): unit(3, device_bytes={"cuda:0": 10}),
            UnitId(2): unit(3, device_bytes={"cuda:0": 20}),
            UnitId(3): unit(device_bytes=shared),
            # 100 bytes of it are payload 7.
            UnitId(4): unit(device_bytes={"cuda:1": 101}, payloads=(PayloadId(7),)),
        },
        payloads={PayloadId(7): payload("cuda:1", 100)},
    )
    facts = facts_from_manifest(manifest)
    assert [facts[name].device_bytes for name in "abc"] == [80, 90, 101]
    together = {i: p for name in "abc" for i, p in facts[name].payloads.items()}
    assert sum(p.size_bytes for p in together.values() if p.on_gpu) == 10 + 20 + 70 + 101
    assert sum(p.size_bytes for p in together.values()) == 10 + 20 + 75 + 101
