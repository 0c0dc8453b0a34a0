from __future__ import annotations

from looseleaf.ids import Epoch, ExecutionId, LeaseId, SessionId, Version, WorkerId
from looseleaf.protocol.frames import pack
from looseleaf.recipe import DeviceLabel, Recipe
from looseleaf.rpc.recipes import recipe_to_proto
from looseleaf.services.worker_daemon.core.lease_table import HeldLease
from looseleaf.services.worker_daemon.core.worker_life import Stage, WorkerFacts
from looseleaf.services.worker_daemon.wire import lease_message, recipe_body, saved_body, worker_state
from looseleaf.v1 import recipe_pb2, scheduler_pb2, types_pb2
from looseleaf.v1 import worker_daemon_pb2 as pb


def test_recipe_is_what_the_kernel_reads_back() -> None:
    recipe = Recipe(
        "c", "hash", 3, ("x", "np"), ("numpy",), ("mine.py",), DeviceLabel.GPU, "It says so.", 0.5, True, True, ("y",),
        2, 100, 50, 7,
    )  # fmt: skip
    body = recipe_body(recipe_to_proto(recipe))
    pack({"t": "event", **body})
    assert Recipe.from_map(body) == recipe
    assert recipe_body(recipe_pb2.ExecutionRecipe())["label"] == ""


def test_outcome_has_every_figure_and_plain_values() -> None:
    saved = pb.CellSaved(
        version=4, error_reason="WORKER_LOST", error_message="gone", path="START_PATH_WARM", gpu_index=1, host_id="h0",
        worker_id="w-1", pid=7,
    )  # fmt: skip
    saved.unsaved.add(name="g", reason="NOT_SERIALIZABLE", path="g.it")
    for field in scheduler_pb2.ExecutionFigures.DESCRIPTOR.fields:
        setattr(saved.figures, field.name, 2)
    body = saved_body(saved)
    pack({"t": "ok", "saved": body})
    assert set(body["figures"]) == {field.name for field in scheduler_pb2.ExecutionFigures.DESCRIPTOR.fields}
    assert set(body["figures"].values()) == {2} and body["path"] == "warm"
    assert body["unsaved"] == [{"name": "g", "reason": "NOT_SERIALIZABLE", "path": "g.it", "here": False}]


def test_worker_and_lease_are_told_as_they_stand() -> None:
    facts = WorkerFacts(WorkerId("w-1"), 7, SessionId("s-1"), Epoch(2), Stage.SAVING, Version(3), "h", 0.0, (1,))
    state = worker_state(facts, 0.0)
    assert (state.stage, state.version, list(state.gpu_indices), state.pid) == (Stage.SAVING, 3, [1], 7)
    assert not state.HasField("hold")
    facts.hold({"it", "closed"}, {"it"}, 60.0)
    hold = worker_state(facts, 18.0).hold
    assert (list(hold.names), hold.left_s, hold.epoch) == (["it"], 42.0, 2)
    assert worker_state(facts, 99.0).hold.left_s == 0.0
    ids = LeaseId("l-1"), SessionId("s-1"), Epoch(2), ExecutionId("x-1")
    lease = HeldLease(*ids, (1,), None, types_pb2.START_PATH_COLD, 10.0, 0.0, 9.0)
    told = lease_message(lease, types_pb2.HostAddress(host_id="h0", address="unix:/h0"))
    assert (told.path, told.worker_id, told.ttl_ms, told.host.host_id) == (types_pb2.START_PATH_COLD, "", 10_000, "h0")
