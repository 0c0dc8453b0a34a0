"""CPU or GPU: by override, by what the closure holds on a GPU, by what the code will do there."""

from __future__ import annotations

import ast
import functools
import sys
from dataclasses import dataclass
from enum import StrEnum

from looseleaf.recipe.cues import (
    GPU_PACKAGES,
    HOST_PACKAGES,
    READING_CALLS,
)
from looseleaf.recipe.device_walk import DeviceWalk
from looseleaf.recipe.facts import CellFacts
from looseleaf.recipe.graph import Closure
from looseleaf.recipe.session_view import SessionView
from looseleaf.recipe.small_reads import only_reads, reads_by_name
from looseleaf.recipe.tree import UNPARSEABLE, nodes_of
from looseleaf.recipe.values import Value, known
from looseleaf.units import MIB, format_bytes

# Device values up to this size may be read in the kernel, without a GPU (design §3).
SMALL_READ_BYTES_MAX = 16 * MIB
# Below this a label counts as uncertain: a CPU cell's closure is committed before it runs.
CERTAIN = 0.9
# A GPU cell of less confidence waits for no GPU: it is tried on the CPU, with the way back.
WAITS = 0.75

# Definitions of which it is remembered whether they move anything.
CODES_KNOWN_MAX = 4096

_REASON_CHARS_MAX = 200
# What is read of a value tells where it lives.
_OF_SMALL = {"device": known("cuda"), "is_cuda": known(True), "is_cpu": known(False)}
_MOVING = frozenset({"to", "cuda", "to_device", "to_empty"})
# Where these take the name by which they find something.
_FINDING = {"getattr": 1, "attrgetter": 0, "methodcaller": 0, "import_module": 0, "__import__": 0}
_SHELL_CALLS = frozenset({"get_ipython"})
# What these do with a device follows from the cell's own text.
_FOLLOWED = HOST_PACKAGES | sys.stdlib_module_names | frozenset(
    [
        "__main__", "builtins", "torch", "torchvision", "torchaudio", "ipywidgets", "matplotlib_inline", "ipykernel",
        "jax", "tensorflow", "keras", "flax", "looseleaf", "cloudpickle", "huggingface_hub", "gym", "gymnasium",
        "packaging", "statsmodels", "wordcloud", "pytesseract", "networkx", "bokeh", "altair",
    ]
)  # fmt: skip
# Their use of a GPU is not seen by torch's devices.
UNSEEN_PACKAGES = GPU_PACKAGES | frozenset(
    ["jax", "jaxlib", "flax", "optax", "tensorflow", "keras", "xgboost", "lightgbm", "catboost", "numba", "triton"]
)


class DeviceLabel(StrEnum):
    """Where a cell runs: in the session's kernel, or on a worker that holds a GPU."""

    CPU = "cpu"
    GPU = "gpu"


class GpuKind(StrEnum):
    """What a cell has to do with the GPU.

    NONE: nothing. QUERY: it only asks about it. COMPUTE: it makes or uses memory there. RESIDENT: it only touches an
    object that lives there. SHELL: a shell line does.
    """

    NONE = "none"
    QUERY = "query"
    COMPUTE = "compute"
    RESIDENT = "resident"
    SHELL = "shell"


@dataclass(frozen=True, slots=True)
class Label:
    """`reason`: one sentence for people. `confidence`: 0 to 1; below 1 the label may be wrong.

    `may_learn_cpu`: a GPU label that a run without a touch refutes: nothing that the cell needs lives on the GPU, and
    a touch of torch's devices would be seen.
    """

    label: DeviceLabel
    reason: str
    confidence: float
    kind: GpuKind = GpuKind.NONE
    may_learn_cpu: bool = False


def decide_label(facts: CellFacts, closure: Closure, view: SessionView, *, device_override: str = "") -> Label:
    """The label of a parsed cell. A magic in the text overrules the cell's metadata, both overrule the code."""
    override = facts.override or device_override
    if override in ("gpu", "cpu"):
        asks = f"%%{override} asks" if facts.override else "The cell's settings ask"
        return Label(DeviceLabel(override), f"{asks} for the {override.upper()}.", 1.0)
    if facts.only_installs:
        return Label(DeviceLabel.CPU, "It installs packages, which the notebook's own process does.", 1.0)
    if facts.parsed and not facts.tree.body and not facts.shell:
        return Label(DeviceLabel.CPU, "It runs no Python.", 0.99)
    small = _small_reads(facts, closure, view)
    held = _held_on_gpu(closure, view) if not small else ""
    walk = _walked(facts, view, small)
    cue = walk.best_cue()
    if held:
        return Label(DeviceLabel.GPU, _sentence(held), 0.99, _gpu_kind(walk))
    if cue is not None:
        unseen = cue.kind == "shell" or _device_bytes(closure, view) or _opaque(facts, closure, view, UNSEEN_PACKAGES)
        return Label(DeviceLabel.GPU, _sentence(cue.text), cue.confidence, _gpu_kind(walk), may_learn_cpu=not unseen)
    if small:
        sure = CERTAIN if reads_by_name(facts.tree, small) and not _runs_own_code(closure, view) else 0.8
        return Label(DeviceLabel.CPU, "It only reads small values that live on the GPU.", sure, GpuKind.RESIDENT)
    return _cpu(facts, closure, view, asks=walk.asks)


def _runs_own_code(closure: Closure, view: SessionView) -> bool:
    """Whether reading may run the notebook's code, such as the `__repr__` of a class of its own, which may compute."""
    for name in closure.state:
        definition, recorded = view.definition(name), view.recorded(name)
        if recorded is not None and recorded.type_module == "__main__":
            return True
        if definition is not None and definition.codes:
            return True
    return False


def _gpu_kind(walk: DeviceWalk) -> GpuKind:
    kinds = {cue.kind for cue in walk.cues}
    if "compute" in kinds or walk.computes:
        return GpuKind.COMPUTE
    return GpuKind.SHELL if "shell" in kinds else GpuKind.RESIDENT


def _cpu(facts: CellFacts, closure: Closure, view: SessionView, *, asks: bool) -> Label:
    if closure.dynamic:
        return Label(
            DeviceLabel.CPU, f"Nothing that can be seen uses the GPU, but {closure.dynamic} may reach anything.", 0.6
        )
    if asks:
        kind = GpuKind.SHELL if facts.shell and not facts.calls - _SHELL_CALLS else GpuKind.QUERY
        return Label(DeviceLabel.CPU, "It only asks about the GPU.", 0.9, kind)
    if not facts.calls:
        return Label(DeviceLabel.CPU, "It calls nothing that could use the GPU.", 0.98)
    if _moves(facts, closure, view):
        text = "Nothing that can be seen uses the GPU, but where something moves, or what is called, cannot be seen."
        return Label(DeviceLabel.CPU, text, 0.8)
    if opaque := _opaque(facts, closure, view):
        text = f"Nothing that can be seen uses the GPU, but what `{opaque}` does cannot be seen."
        return Label(DeviceLabel.CPU, text, 0.8)
    return Label(DeviceLabel.CPU, "Nothing that it reaches uses the GPU.", 0.9)


def _opaque(facts: CellFacts, closure: Closure, view: SessionView, packages: frozenset[str] | None = None) -> str:
    """A module that the cell calls or whose objects it needs, and whose use of the GPU nobody can follow; else empty.

    `packages`: look for these instead of all but the followed ones.
    """
    if not facts.calls - READING_CALLS:
        return ""
    modules = set(facts.modules)
    for name in closure.names:
        definition, recorded = view.definition(name), view.recorded(name)
        if recorded is not None:
            modules |= {recorded.type_module, *recorded.modules}
        if definition is not None and (recorded is None or definition.kind == "import"):
            modules |= definition.modules
    tops = {module.partition(".")[0] for module in modules} - {""}
    found = tops & packages if packages is not None else tops - _FOLLOWED
    return min(found, default="")


def _moves(facts: CellFacts, closure: Closure, view: SessionView) -> bool:
    """Whether the cell, or notebook code that it reaches, moves something or calls what it finds by a made-up name."""
    called = {call.rpartition(".")[2] for call in facts.calls}
    if not called.isdisjoint(_MOVING) or (not called.isdisjoint(_FINDING.keys()) and _code_moves(facts.tree)):
        return True
    definitions = (view.definition(name) for name in closure.state)
    codes = [code for found in definitions if found is not None for code in found.codes]
    codes += [code for call in facts.calls for code in facts.codes_of(call.partition(".")[0])]
    return any(_code_moves(code.node) for code in codes)


@functools.lru_cache(maxsize=CODES_KNOWN_MAX)
def _code_moves(node: ast.AST) -> bool:
    return any((isinstance(n, ast.Attribute) and n.attr in _MOVING) or _finds(n) for n in nodes_of(node))


def _finds(node: ast.AST) -> bool:
    """`getattr(x, name)` or `import_module(name)`, where only a run knows the name."""
    if not isinstance(node, ast.Call):
        return False
    called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    place = _FINDING.get(called)
    return place is not None and len(node.args) > place and not isinstance(node.args[place], ast.Constant)


def _device_bytes(closure: Closure, view: SessionView) -> int:
    return sum(facts.device_bytes for name in closure.state if (facts := view.recorded(name)) is not None)


def _sentence(text: str) -> str:
    text = text[0].upper() + text[1:]
    if len(text) >= _REASON_CHARS_MAX:
        text = text[: _REASON_CHARS_MAX - 2] + "…"
    return f"{text}."


def _walked(facts: CellFacts, view: SessionView, small: frozenset[str]) -> DeviceWalk:
    def lookup(name: str) -> Value:
        return Value(exact=True, attrs=_OF_SMALL) if name in small else view.lookup(name)

    walk = DeviceWalk(lookup, view.log.background(view.uses_gpu, view.uses_framework))
    try:
        for body in facts.shell:
            # Bodies of cell magics; single lines stand in the tree.
            if "\n" in body or not facts.tree.body:
                walk.shell(body)
        walk.run(facts.tree)
    except UNPARSEABLE:
        # Nested deeper than our recursion: what was found until there stands.
        return walk
    return walk


def _held_on_gpu(closure: Closure, view: SessionView) -> str:
    """What the closure holds on a GPU, as text for people; empty if nothing."""
    found: dict[str, int] = {}
    payloads: dict[int, int] = {}
    for name in sorted(closure.state):
        facts = view.recorded(name)
        if facts is not None and facts.device_bytes:
            found[name] = facts.device_bytes
            payloads.update({i: p.size_bytes for i, p in facts.payloads.items() if p.on_gpu})
    if not found:
        return ""
    largest = sorted(found, key=lambda n: (-found[n], n))[:3]
    names = ", ".join(f"`{name}`" for name in largest)
    more = f" and {len(found) - len(largest)} more" if len(found) > len(largest) else ""
    return f"it needs {names}{more} with {format_bytes(sum(payloads.values()))} on the GPU"


def _small_reads(facts: CellFacts, closure: Closure, view: SessionView) -> frozenset[str]:
    """Device values of the closure if all of them are small and the cell's own text only reads them; else none."""
    sizes = {}
    for name in closure.state:
        recorded = view.recorded(name)
        if recorded is not None and recorded.device_bytes:
            sizes[name] = recorded.device_bytes
    if not sizes or sum(sizes.values()) > SMALL_READ_BYTES_MAX or not sizes.keys() <= facts.read_names:
        return frozenset()
    # Code that the cell calls may do anything with the values that it names.
    codes = [code.reads for name in closure.state if (found := view.definition(name)) for code in found.codes]
    codes += [recorded.global_names for name in closure.state if (recorded := view.recorded(name)) is not None]
    if any(not names.isdisjoint(sizes) for names in codes):
        return frozenset()
    return frozenset(sizes) if only_reads(facts.tree, sizes) else frozenset()
