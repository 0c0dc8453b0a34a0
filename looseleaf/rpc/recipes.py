"""Recipes and runs of `looseleaf.recipe` as messages and back; the one place for frontend, scheduler and daemon."""

from __future__ import annotations

from typing import Final

from looseleaf.errors import InvalidArgument
from looseleaf.recipe import CellRun, DeviceLabel, Observation, Recipe
from looseleaf.v1 import recipe_pb2, types_pb2

_TO_LABEL: Final = {
    DeviceLabel.CPU: types_pb2.DEVICE_LABEL_CPU,
    DeviceLabel.GPU: types_pb2.DEVICE_LABEL_GPU,
}
_FROM_LABEL: Final = {number: label for label, number in _TO_LABEL.items()}


def recipe_to_proto(recipe: Recipe) -> recipe_pb2.ExecutionRecipe:
    """The message with every field of `recipe`."""
    return recipe_pb2.ExecutionRecipe(
        cell_id=recipe.cell_id,
        source_hash=recipe.source_hash,
        version=recipe.version,
        names=recipe.names,
        imports=recipe.imports,
        file_dependencies=recipe.file_dependencies,
        label=_TO_LABEL[recipe.label],
        reason=recipe.reason,
        confidence=recipe.confidence,
        dynamic=recipe.dynamic,
        partial=recipe.partial,
        defines=recipe.defines,
        gpu_count=recipe.gpu_count,
        closure_bytes=recipe.closure_bytes,
        device_bytes=recipe.device_bytes,
        live_names=recipe.live_names,
        guess=recipe.guess,
        peak_bytes=recipe.peak_bytes,
        environment_id=recipe.environment_id,
    )


def recipe_from_proto(message: recipe_pb2.ExecutionRecipe) -> Recipe:
    """The inverse; raises InvalidArgument `RECIPE_MALFORMED` if the label is not decided."""
    if message.label not in _FROM_LABEL:
        raise InvalidArgument("RECIPE_MALFORMED", "A recipe needs a device label, CPU or GPU.")
    return Recipe(
        cell_id=message.cell_id,
        source_hash=message.source_hash,
        version=message.version,
        names=tuple(message.names),
        imports=tuple(message.imports),
        file_dependencies=tuple(message.file_dependencies),
        label=_FROM_LABEL[message.label],
        reason=message.reason,
        confidence=message.confidence,
        dynamic=message.dynamic,
        partial=message.partial,
        defines=tuple(message.defines),
        gpu_count=message.gpu_count,
        closure_bytes=message.closure_bytes,
        device_bytes=message.device_bytes,
        live_names=message.live_names,
        guess=message.guess,
        peak_bytes=message.peak_bytes,
        environment_id=message.environment_id,
    )


def run_to_proto(run: CellRun) -> recipe_pb2.CellRun:
    """One run of a log as a message."""
    observed = None
    if run.observed is not None:
        observed = recipe_pb2.Observation(
            guess=run.observed.guess,
            touched_gpu=run.observed.touched_gpu,
            peak_bytes=run.observed.peak_bytes,
            duration_s=run.observed.duration_s,
        )
    return recipe_pb2.CellRun(
        sequence=run.sequence, cell_id=run.cell_id, source=run.source, ok=run.ok, observed=observed
    )


def run_from_proto(message: recipe_pb2.CellRun) -> CellRun:
    """The inverse."""
    observed = None
    if message.HasField("observed"):
        seen = message.observed
        observed = Observation(seen.guess, seen.touched_gpu, seen.peak_bytes, seen.duration_s)
    return CellRun(message.sequence, message.cell_id, message.source, message.ok, observed)
