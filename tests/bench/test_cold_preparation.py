from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import demo_notebook
import fresh_process
import pytest
from alternating import Rounds
from demo_notebook import SHARES, closure
from peers import Peers
from preparation_report import (
    BEGIN,
    END,
    Size,
    as_markdown,
    at_run,
    breakdown,
    fresh,
    prepare,
    read_kept,
    rows,
    told,
    verdicts,
    write_kept,
)
from table import insert

# Beside the checkout where this project is developed; nothing that is built or tested needs it.
SCRIPT = Path(__file__).parents[3] / "shared" / "peers" / "peers_prep.py"


def size_of(peers: Peers | None = None) -> Size:
    rounds = Rounds()
    for share in SHARES:
        rounds.add(prepare(share), [0.05 * share / 5] * 19 + [0.1 * share])
        rounds.add(at_run(share, "prepared"), 0.02)
        rounds.add(fresh(share), 2.0 if share == 100 else 1.2)
    return Size(0.5, rounds, peers or Peers())


def rivals() -> Peers:
    peers = Peers()
    peers.take([
        json.dumps({"peer": "build", "ok": True, "build_s": 1.0}),
        json.dumps({"peer": "naive_torchsave", "ok": True, "prep_all": [1.8, 1.9, 2.0]}),
        json.dumps({"peer": "naive_cloudpickle", "ok": True, "prep_all": [2.4]}),
        json.dumps({"peer": "criu_tmpfs", "ok": True, "prep_all": [0.6]}),
        json.dumps({"peer": "criu_disk", "ok": False, "why": "criu needs root"}),
    ])  # fmt: skip
    return peers


def test_cells_need_their_share_of_the_tensors_and_the_whole_one_every_variable() -> None:
    small, some, whole = (closure(share) for share in SHARES)
    assert [sum(name[:1] == "t" for name in each.names) for each in (small, some, whole)] == [1, 4, 20]
    assert whole.names == demo_notebook.variables() and len(set(whole.names)) == 54
    assert set(small.names) < set(some.names) < set(whole.names)
    assert all(name in small.source for name in small.names) and small.source.startswith("%%gpu\n")


@pytest.mark.skipif(not SCRIPT.exists(), reason="the rivals' script lies beside the checkouts of this project only")
def test_notebook_is_that_of_the_rivals_script() -> None:
    spec = importlib.util.spec_from_file_location("peers_prep", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for gigabytes in (0.5, 2.0):
        assert module.demo_cells(gigabytes)[:-1] == demo_notebook.cells(gigabytes)


def test_rivals_are_taken_with_their_times_or_with_why_there_are_none() -> None:
    peers = rivals()
    peers.take([json.dumps({"peer": "criu_tmpfs", "ok": True, "prep_all": [0.7]})])
    assert peers.seconds["criu_tmpfs"] == [0.6, 0.7] and peers.missing == {"criu_disk": "criu needs root"}


def test_targets_are_judged_against_the_fastest_plain_way_and_criu() -> None:
    size = size_of(rivals())
    assert size.rival_s("naive") == 1.9 and size.rival_s("CRIU") == 0.6
    assert verdicts(size) == [
        "5 %, median: 38.0 times as fast as naive (at least 30: met)",
        "5 %, p95: 38.0 times as fast as naive (at least 15: met)",
        "5 %, median: 12.0 times as fast as CRIU (at least 8: met)",
        "5 %, p95: 12.0 times as fast as CRIU (at least 4: met)",
        "100 %, median: 0.6 times as fast as CRIU (at least 1: not met)",
        "criu_disk not measured: criu needs root",
    ]


def test_without_the_script_the_fresh_process_is_the_plain_way_and_nothing_is_said_of_criu() -> None:
    size = size_of()
    assert size.rival_s("naive") == 2.0 and size.rival_s("CRIU") is None
    assert not [line for line in verdicts(size) if "CRIU" in line]
    assert rows(size)[0] == ["LooseLeaf, 5 % of the state", "50 ms", "50 ms", "500 ms", "20", "40.0", "–"]


def test_breakdown_goes_from_everything_to_what_is_left_at_run() -> None:
    steps = breakdown(size_of())
    assert [seconds for _, seconds in steps] == [2.0, 1.2, 0.05, 0.02]


def test_tables_come_between_the_marks() -> None:
    text = insert(f"before\n{BEGIN}\nold\n{END}\nafter\n", as_markdown([size_of()]), BEGIN, END)
    assert text.startswith(f"before\n{BEGIN}\n\n**0.5 GB") and text.endswith(f"{END}\nafter\n") and "old" not in text
    with pytest.raises(ValueError, match="no place"):
        insert("nothing", [], BEGIN, END)


@pytest.mark.parametrize("load", [0.3, 9.5])
def test_kept_figures_are_read_back_and_a_busy_machine_is_told(tmp_path: Path, load: float) -> None:
    size = size_of(rivals())
    write_kept(tmp_path / "kept.json", [size], {"cpus": 2, "load_average_before": [load]})
    sizes, facts = read_kept(tmp_path / "kept.json")
    assert sizes == [size]
    assert told(sizes, facts).startswith("`python bench/cold_preparation.py --demo 0.5 --rounds 1`, with the rivals'")
    assert ("busy with other work (9.5 ready" in told(sizes, facts)) is (load > 2)


def test_fresh_process_that_lacks_a_variable_is_no_measurement(tmp_path: Path) -> None:
    file = tmp_path / "5.pkl"
    file.write_bytes(b"\x80\x04}\x94.")
    assert fresh_process.load_s(file, ["json"], 0) > 0
    with pytest.raises(RuntimeError, match="0 of 4 variables"):
        fresh_process.load_s(file, [], 4)
