"""Recipes and runs of `looseleaf.recipe` as messages and back; the one place for frontend, scheduler and daemon."""

from __future__ import annotations

from typing import Final

from looseleaf.errors import InvalidArgument
from looseleaf.recipe import CellRun, DeviceLabel, Recipe
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
    )


def run_to_proto(run: CellRun) -> recipe_pb2.CellRun:
    """One run of a log as a message."""
    return recipe_pb2.CellRun(sequence=run.sequence, cell_id=run.cell_id, source=run.source, ok=run.ok)


def run_from_proto(message: recipe_pb2.CellRun) -> CellRun:
    """The inverse."""
    return CellRun(sequence=message.sequence, cell_id=message.cell_id, source=message.source, ok=message.ok)
