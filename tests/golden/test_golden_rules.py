"""Each masking rule masks what it is for, and nothing that looks like it."""

from __future__ import annotations

import pytest
from golden_rules import RULES

MASKS = {rule.name: rule.mask for rule in RULES}

# rule: pairs of texts that count as the same, and pairs that do not.
EXAMPLES: dict[str, tuple[list[tuple[str, str]], list[tuple[str, str]]]] = {
    "timing magics": (
        [
            ("Wall time: 5 s\n3", "Wall time: 70 ms\n3"),
            ("CPU times: user 1 s, sys: 2 ms, total: 1 s\n", "CPU times: user 2 s, sys: 1 ms, total: 2 s\n"),
        ],
        [("Wall time: 5 s\n3", "Wall time: 5 s\n4"), ("took 5 s", "took 6 s")],
    ),
    "time per loop": (
        [
            (
                "1.2 ms ± 3 µs per loop (mean ± std. dev. of 7 runs, 100 loops each)",
                "970 µs ± 1 µs per loop (mean ± std. dev. of 7 runs, 1,000 loops each)",
            ),
            ("1e+03 ms ± 20 ms per loop (mean)", "1min 2s ± 3 s per loop (mean)"),
            ("The slowest run took 7 times longer than the fastest. So.\n9 μs ± 6 μs per loop", "8 μs ± 1 μs per loop"),
        ],
        [
            ("1.2 ms", "1.3 ms"), ("score 0.5 ± 0.1", "score 0.6 ± 0.1"),
            ("The slowest run took 2.00 times longer", "The slowest run took 3.00 times longer"),
        ],
    ),
    "address": (
        [("<A at 0x7f00deadbeef>", "<A at 0x7f00deadbee0>")],
        [("0xff", "0xfe"), ("0x7f00deadbeef", "7f00deadbeef"), ("<A at 0x7f00deadbeef>", "<B at 0x7f00deadbeef>")],
    ),
    "cell file": (
        [("File /tmp/ipykernel_1/23.py:4", "File /tmp/ipykernel_5/67.py:4")],
        [
            ("File /tmp/ipykernel_1/23.py:4", "File /tmp/ipykernel_1/23.py:5"),
            ("File /tmp/ipykernel_1/23.py", "File /tmp/other_1/23.py"),
        ],
    ),
    "log stamp": (
        [("W1129 22:39:08.497000 23196 a/b.py:29] none", "W1130 08:00:00.000001 7 a/b.py:29] none")],
        [
            ("W1129 22:39:08.497000 23196 a/b.py:29] none", "W1129 22:39:08.497000 23196 a/b.py:30] none"),
            ("E1129 22:39:08.497000 23196 x", "W1129 22:39:08.497000 23196 x"), ("W1129", "W1130"),
        ],
    ),
    "temporary path": (
        [("/tmp/tmpab12cd_9/x.pt", "/tmp/tmpzzzzzzzz/x.pt")],
        [("/tmp/tmpab12cd_9/x.pt", "/tmp/tmpab12cd_9/y.pt"), ("/tmp/tmp1", "/tmp/tmp2"), ("/tmp/dat_a", "/tmp/dat_b")],
    ),
    "progress rate": (
        [
            ("100%|##| 8/8 [00:00<00:00, 93.41it/s]", "100%|##| 8/8 [00:01<00:00,  7.20it/s]"),
            ("0%| | 0/8 [00:00<?, ?it/s]", "0%| | 0/8 [00:03<?, ?it/s]"),
        ],
        [
            ("100%|##| 8/8 [00:00<00:00, 93.41it/s]", "100%|##| 9/9 [00:00<00:00, 93.41it/s]"),
            ("[0.5, 0.6]", "[0.5, 0.7]"), ("[00:01, 2]", "[00:02, 2]"),
        ],
    ),
    "overwritten line": (
        [("1/3\r2/3\r3/3\nend", "1/3\r3/3\nend"), ("a\r\nb", "a\nb")],
        [("1/3\r2/3\n", "1/3\r3/3\n"), ("a\nb", "b"), ("a\rb\nc", "a\nc")],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MASKS))
def test_golden_rule_masks_what_it_is_for_and_nothing_else(name: str) -> None:
    same, different = EXAMPLES[name]
    mask = MASKS[name]
    assert same and different
    for one, other in same:
        assert one != other and mask(one) == mask(other), (one, other)
    for one, other in different:
        assert mask(one) != mask(other), (one, other)


def test_golden_rules_have_examples_and_a_reason_each() -> None:
    assert set(EXAMPLES) == set(MASKS) and len(MASKS) == len(RULES)
    assert all(rule.reason for rule in RULES)
