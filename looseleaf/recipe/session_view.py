"""A session as a recipe sees it: what the log's text says, overruled by what headers recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from looseleaf.recipe.log import Definition, ExecutionLog
from looseleaf.recipe.name_facts import UNKNOWN_NAME, NameFacts
from looseleaf.recipe.values import UNKNOWN, Value, is_gpu_name

# Libraries whose device memory is not a payload of ours: what the text says of it stands.
_OPAQUE_PACKAGES = frozenset(
    {"jax", "jaxlib", "flax", "optax", "tensorflow", "keras", "cupy", "cudf", "cuml", "cugraph", "xgboost"}
)
_FRAMEWORKS = frozenset({"jax", "flax", "tensorflow", "keras"})
# Types of functions that no notebook defines.
_LIBRARY_CODE = frozenset({"builtin_function_or_method", "ufunc"})
_CONTAINER_TYPES = frozenset({"dict", "list", "tuple"})


class SessionView:
    """`headers` None: nothing is recorded, the log's names are the live ones (static only)."""

    def __init__(self, log: ExecutionLog, headers: Mapping[str, NameFacts] | None) -> None:
        self.log = log
        self.headers = headers
        self.live: frozenset[str] = frozenset(log.definitions if headers is None else headers)
        # Headers that are made on demand tell a module from other values without making the whole.
        self._is_module: Callable[[str], bool] = getattr(headers, "is_module", self._recorded_module)
        self._count_modules: Callable[[Iterable[str]], int] = getattr(headers, "count_modules", self._recorded_modules)

    def definition(self, name: str) -> Definition | None:
        """The latest executed definition of `name`, if it is live."""
        return self.log.definitions.get(name) if name in self.live else None

    def recorded(self, name: str) -> NameFacts | None:
        """What a header says of `name`, None if none does."""
        facts = self.headers.get(name) if self.headers is not None else None
        return None if facts is UNKNOWN_NAME else facts

    def _recorded_module(self, name: str) -> bool:
        facts = self.recorded(name)
        return facts is not None and facts.kind == "module"

    def _recorded_modules(self, names: Iterable[str]) -> int:
        return sum(map(self._recorded_module, names))

    def is_import(self, name: str) -> bool:
        """`name` is bound by an import: its package is needed, its bytes are not state."""
        if self._is_module(name):
            return True
        definition = self.definition(name)
        if definition is None:
            return self._is_from_star(name)
        return definition.kind == "import"

    def count_state(self) -> int:
        """How many live names no import binds, as far as that is known without a look at their objects."""
        known = self.log.definitions
        if self.headers is None:
            return sum(definition.kind != "import" for definition in known.values())
        imports = {name for name, definition in known.items() if definition.kind == "import"}
        state = self.live - imports
        return len(state) - self._count_modules(state)

    def _is_from_star(self, name: str) -> bool:
        """Code that a star import brought: no run names it, and its module is one that a star import names."""
        if not self.log.star_modules:
            return False
        facts = self.recorded(name)
        if facts is None or facts.type_name in _LIBRARY_CODE:
            return facts is not None
        packages = {module.partition(".")[0] for module in facts.modules}
        return not packages.isdisjoint(module.partition(".")[0] for module in self.log.star_modules)

    def lookup(self, name: str) -> Value:
        """What the device walk may assume of `name`."""
        if name not in self.live:
            return UNKNOWN
        value, facts = self.log.lookup(name), self.recorded(name)
        if facts is None or value.path:
            return value
        return recorded_value(facts, value)

    def uses_gpu(self) -> bool:
        """Whether the session works with a GPU: something is on one, or names one as its device."""
        values = (self.lookup(name) for name in sorted(self.live) if not self.is_import(name))
        return any(value.resident or (value.known and is_gpu_name(value.flag)) for value in values)

    def uses_framework(self) -> bool:
        """Whether the session imports a library that uses a GPU where there is one, or works with one."""
        packages = {m.partition(".")[0] for n in sorted(self.live) if (d := self.definition(n)) for m in d.modules}
        return not packages.isdisjoint(_FRAMEWORKS) or self.uses_gpu()


def recorded_value(facts: NameFacts, guess: Value) -> Value:
    """`guess` with what a header knows better."""
    packages = {module.partition(".")[0] for module in (facts.type_module, *facts.modules)}
    opaque = not packages.isdisjoint(_OPAQUE_PACKAGES)
    resident = facts.device_bytes > 0 or (opaque and guess.resident)
    value = guess
    if resident is not guess.resident or guess.exact is opaque:
        value = replace(guess, resident=resident, exact=not opaque)
    if facts.has_flag:
        return replace(value, known=True, flag=facts.flag)
    if facts.type_module == "torch" and facts.type_name == "device":
        return value
    if guess.known and not (isinstance(guess.flag, (dict, list, tuple)) and facts.type_name in _CONTAINER_TYPES):
        return replace(value, known=False, flag=None)
    if guess.cls and facts.type_name != guess.cls[0].name:
        return replace(value, cls=(), attrs={})
    return value
