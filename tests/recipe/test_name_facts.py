from __future__ import annotations

from looseleaf.checkpoint.manifest import Manifest, PayloadEntry, UnitEntry, UnitHeader
from looseleaf.ids import PayloadId, SessionId, UnitId
from looseleaf.recipe import NameFacts, Payload, facts_from_headers, facts_from_manifest


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


def test_facts_from_headers_without_ids_count_each_payload() -> None:
    header = UnitHeader(device_bytes={"cpu": 5, "cuda:0": 7})
    facts = facts_from_headers(header, [UnitHeader(device_bytes={"cuda:0": 1})])
    assert (facts.device_bytes, sum(p.size_bytes for p in facts.payloads.values())) == (8, 13)
