"""The execution recipe of a cell (§3.1): what it needs, where it runs, and why."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from looseleaf.errors import InvalidArgument
from looseleaf.recipe.analyze import analyze_cell
from looseleaf.recipe.facts import CellFacts
from looseleaf.recipe.graph import Closure, find_closure
from looseleaf.recipe.label import DeviceLabel, Label, decide_label
from looseleaf.recipe.learning import guess_of, learned_label
from looseleaf.recipe.log import ExecutionLog
from looseleaf.recipe.name_facts import UNKNOWN_NAME, NameFacts
from looseleaf.recipe.packages import LocalModule, first_match, import_closure, no_local_modules, written_modules
from looseleaf.recipe.partial import partial_facts
from looseleaf.recipe.session_view import SessionView

# A text that does not parse: its label is a guess for the preparation.
PARTIAL_CONFIDENCE_MAX = 0.5


@dataclass(frozen=True, slots=True)
class Recipe:
    """The fields of proto `ExecutionRecipe`, which documents them.

    `names` holds state and import-bound names (`np`, `plt`): both must be bound in the worker. `live_names` leaves
    import-bound names out.
    """

    cell_id: str = ""
    source_hash: str = ""
    version: int = 0
    names: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    file_dependencies: tuple[str, ...] = ()
    label: DeviceLabel = DeviceLabel.CPU
    reason: str = ""
    confidence: float = 0.0
    dynamic: bool = False
    partial: bool = False
    defines: tuple[str, ...] = ()
    gpu_count: int = 1
    closure_bytes: int = 0
    device_bytes: int = 0
    live_names: int = 0
    environment_id: str = ""
    guess: str = ""
    peak_bytes: int = 0

    def to_map(self) -> dict[str, Any]:
        """Plain values only, as the worker protocol carries them."""
        plain = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**plain, "label": str(self.label), **{k: list(v) for k, v in plain.items() if isinstance(v, tuple)}}

    @classmethod
    def from_map(cls, plain: Mapping[str, Any]) -> Recipe:
        """The inverse of `to_map`; keys of a newer version are ignored. Raises InvalidArgument `RECIPE_MALFORMED`."""
        values: dict[str, Any] = {}
        for item in fields(cls):
            if item.name not in plain:
                continue
            value, default = plain[item.name], getattr(cls(), item.name)
            try:
                if isinstance(default, tuple):
                    value = tuple(_text(v) for v in value)
                elif isinstance(default, DeviceLabel):
                    value = DeviceLabel(value)
                elif isinstance(default, bool) and not isinstance(value, bool):
                    raise TypeError(f"not a flag: {type(value).__name__}")
                else:
                    value = type(default)(value)
            except (TypeError, ValueError) as error:
                text = f"A recipe's field {item.name} is malformed: {error}."
                raise InvalidArgument("RECIPE_MALFORMED", text) from error
            values[item.name] = value
        return cls(**values)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not a text: {type(value).__name__}")
    return value


@dataclass(frozen=True, slots=True)
class Analysis:
    """A recipe with what it was made of. `state_names`: the names of the closure that no import binds, sorted."""

    recipe: Recipe
    facts: CellFacts
    closure: Closure
    label: Label
    star_modules: tuple[str, ...] = ()
    state_names: tuple[str, ...] = field(default=())


def derive_recipe(
    source: str,
    *,
    cell_id: str,
    log: ExecutionLog,
    headers: Mapping[str, NameFacts] | None,
    version: int,
    device_override: str = "",
    editing: bool = False,
    local_module: LocalModule = no_local_modules,
) -> Recipe:
    """The recipe of `source` as it would run now; executes nothing, same arguments give the same recipe.

    `headers`: facts of every live name; None if nothing is recorded, then the log's names count as live.
    `device_override`: the cell's metadata, "gpu", "cpu" or empty; a magic in the text overrules it.
    `editing`: Run was not pressed. Only then a text that does not parse gets a guessed label; at Run it is a CPU cell,
    because Python's message needs no GPU.
    Raises InvalidArgument `DEVICE_UNKNOWN` for another override.
    """
    return analyze(
        source,
        cell_id=cell_id,
        log=log,
        headers=headers,
        version=version,
        device_override=device_override,
        editing=editing,
        local_module=local_module,
    ).recipe


def analyze(
    source: str,
    *,
    cell_id: str,
    log: ExecutionLog,
    headers: Mapping[str, NameFacts] | None,
    version: int,
    device_override: str = "",
    editing: bool = False,
    local_module: LocalModule = no_local_modules,
) -> Analysis:
    """`derive_recipe` with its intermediate results."""
    if device_override not in ("", "gpu", "cpu"):
        text = f'looseleaf.device is {device_override!r}; it must be "gpu", "cpu" or absent.'
        raise InvalidArgument("DEVICE_UNKNOWN", text)
    facts = analyze_cell(source, future_annotations=log.future_annotations)
    partial = not facts.parsed
    if partial:
        facts = partial_facts(source, facts, future_annotations=log.future_annotations)
    view = SessionView(log, headers)
    closure = find_closure(facts, view)
    guessed = decide_label(facts, closure, view, device_override=device_override)
    guess = guess_of(facts.source_hash, guessed, _code_behind(closure, log))
    lesson = log.lessons.of(guess)
    label = guessed if partial else learned_label(guessed, lesson)
    if partial:
        label = _partial_label(label, editing=editing)
    elif facts.too_deep and label.confidence < 1.0:
        text = f"{label.reason} The text is nested too deep to be followed."
        label = replace(label, reason=text, confidence=min(label.confidence, PARTIAL_CONFIDENCE_MAX))
    names = set(closure.names)
    if label.label is DeviceLabel.GPU:
        # `del x` needs x to exist on the worker; in the kernel a stub is enough.
        names |= (facts.deletes | facts.may_delete) & view.live
    own_files = [*log.written_files, *(path for path, _ in facts.files)]
    local = first_match(local_module, written_modules(own_files))
    imports = import_closure(facts, closure, view, local)
    # A module that is patched is not a variable that changed.
    touched = {name for name in facts.touched & view.live if not view.is_import(name)}
    changed = facts.defines | facts.imports | closure.writes | touched | (view.live if facts.rebinds_all else set())
    closure_bytes, device_bytes = _payload_bytes(names, view)
    recipe = Recipe(
        cell_id=cell_id,
        source_hash=facts.source_hash,
        version=version,
        names=tuple(sorted(names)),
        imports=imports.modules,
        file_dependencies=imports.files,
        label=label.label,
        reason=label.reason,
        confidence=round(label.confidence, 3),
        dynamic=bool(closure.dynamic),
        partial=partial,
        defines=tuple(sorted(changed)),
        gpu_count=facts.gpu.count,
        closure_bytes=closure_bytes,
        # What the person knows that the cell will need is more than what it finds there.
        device_bytes=max(device_bytes, facts.gpu.memory_bytes),
        live_names=view.count_state(),
        guess=guess,
        peak_bytes=lesson.peak_bytes if lesson is not None else 0,
    )
    state = tuple(sorted(name for name in names if not view.is_import(name)))
    return Analysis(recipe, facts, closure, label, tuple(log.star_modules), state)


def _code_behind(closure: Closure, log: ExecutionLog) -> list[ast.AST]:
    """The definitions that the cell reaches, as the notebook has them."""
    definitions = (log.definitions.get(name) for name in closure.state)
    return [code.node for definition in definitions if definition is not None for code in definition.codes]


def _partial_label(label: Label, *, editing: bool) -> Label:
    if not editing and label.confidence < 1.0:
        return Label(DeviceLabel.CPU, "The text does not parse; Python says so in the kernel.", 1.0)
    confidence = min(label.confidence, PARTIAL_CONFIDENCE_MAX)
    return Label(label.label, f"{label.reason} The text does not parse yet.", confidence)


def _payload_bytes(names: set[str], view: SessionView) -> tuple[int, int]:
    """Payload bytes of the closure on all devices, and on GPUs; what variables share counts once."""
    payloads = {i: p for name in names for i, p in (view.recorded(name) or UNKNOWN_NAME).payloads.items()}
    return sum(p.size_bytes for p in payloads.values()), sum(p.size_bytes for p in payloads.values() if p.on_gpu)


def with_logged_names(headers: Mapping[str, NameFacts], log: ExecutionLog) -> dict[str, NameFacts]:
    """`headers` and names of runs whose commit is under way, as unknown ones: for preparations, not for Run."""
    merged = {name: UNKNOWN_NAME for name in log.definitions if name not in headers}
    merged.update(headers)
    return merged
