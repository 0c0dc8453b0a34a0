"""What the device walk knows of a value without having it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from looseleaf.recipe.facts import CodeFacts

# Plain values that decide branches and devices: bool, int, float, str, None, dictionaries, lists and tuples of them.
Flag = Any

_GPU_CHOICES = frozenset({("tree_method", "gpu_hist"), ("predictor", "gpu_predictor"), ("tree_method", "gpu_exact")})
_GPU_KEYS = frozenset({"device", "device_type", "task_type", "accelerator", "device_map", "map_location", "devices"})
_GPU_WORDS = frozenset({"cuda", "gpu"})


@dataclass(frozen=True, slots=True)
class Value:
    """An abstract value.

    `known`: `flag` is its value. `resident`: it holds memory on a GPU. `exact`: residency was recorded, not guessed.
    `armed`: calling it, or one of its methods, uses the GPU. `path`: the dotted import path it came by.
    `family`: the kind of library object it is, which tells what its methods give back (`families.py`).
    `codes`: notebook code that a call runs. `cls`: the notebook classes it may be an instance of.
    `attrs`: what is known of its attributes.
    """

    known: bool = False
    flag: Flag = None
    resident: bool = False
    exact: bool = False
    armed: bool = False
    path: str = ""
    family: str = ""
    codes: tuple[CodeFacts, ...] = ()
    cls: tuple[CodeFacts, ...] = ()
    attrs: Mapping[str, Value] = field(default_factory=dict)

    def with_attr(self, name: str, value: Value) -> Value:
        """This value after `self.name = value`."""
        return replace(self, attrs={**self.attrs, name: value}, resident=self.resident or value.resident)

    def part(self) -> Value:
        """What is known of an item of this value."""
        return made_of(self.resident, armed=self.armed)

    def on_device(self) -> Value:
        """This value moved to a GPU."""
        return replace(self, resident=True, known=False, flag=None)


UNKNOWN = Value()
_MADE_OF = {
    (False, False): UNKNOWN,
    (False, True): Value(armed=True),
    (True, False): Value(resident=True),
    (True, True): Value(resident=True, armed=True),
}


def made_of(resident: bool, *, armed: bool = False) -> Value:
    """A value of which only this is known."""
    return _MADE_OF[(resident, armed)]


def known(flag: Flag) -> Value:
    """A value that is exactly `flag`."""
    return Value(known=True, flag=flag)


def join(first: Value, second: Value) -> Value:
    """What holds of a value that is one of two."""
    if first == second:
        return first
    same = first.known and second.known and first.flag == second.flag and type(first.flag) is type(second.flag)
    flag = first.flag if same else None
    if first.known and second.known and isinstance(first.flag, dict) and isinstance(second.flag, dict):
        same, flag = True, _either_entry(first.flag, second.flag)
    names = first.attrs.keys() | second.attrs.keys()
    return Value(
        known=same,
        flag=flag,
        resident=first.resident or second.resident,
        exact=first.exact and second.exact,
        armed=first.armed or second.armed,
        path=first.path if first.path == second.path else "",
        family=first.family if first.family == second.family else "",
        codes=_distinct(first.codes, second.codes),
        cls=_distinct(first.cls, second.cls),
        attrs={n: join(first.attrs.get(n, UNKNOWN), second.attrs.get(n, UNKNOWN)) for n in sorted(names)},
    )


def _distinct(first: tuple[CodeFacts, ...], second: tuple[CodeFacts, ...]) -> tuple[CodeFacts, ...]:
    """Both without repeats; two definitions of one name are two."""
    return tuple({id(code.node): code for code in (*first, *second)}.values())


def _either_entry(first: dict[Any, Flag], second: dict[Any, Flag]) -> dict[Any, Flag]:
    """What one of two dictionaries may hold; of two values for a key the one that asks for a GPU, else neither."""
    merged = {}
    for key in dict.fromkeys((*first, *second)):
        values = [flags[key] for flags in (first, second) if key in flags]
        asking = [v for v in values if isinstance(key, str) and chooses_gpu(key, v)]
        if asking or all(v == values[0] for v in values):
            merged[key] = (asking or values)[0]
    return merged


def is_gpu_name(flag: object) -> bool:
    """The plain value names a GPU: "cuda", "cuda:1", "gpu", "/GPU:0"."""
    if not isinstance(flag, str):
        return False
    word = flag.strip().lower().strip("/").split(":")[0]
    return word in _GPU_WORDS or "/gpu:" in flag.lower()


def chooses_gpu(key: str, flag: object) -> bool:
    """A parameter of this name with this value asks a library to use a GPU."""
    if (isinstance(flag, str) and (key, flag) in _GPU_CHOICES) or (
        key in ("use_gpu", "use_cuda", "gpu") and flag is True
    ):
        return True
    if key in ("load_in_4bit", "load_in_8bit"):
        return flag is True
    if key == "device_map":
        return flag == "auto" or is_gpu_name(flag) or isinstance(flag, dict)
    if key == "device" and type(flag) is int:
        return flag >= 0
    return key in _GPU_KEYS and (
        is_gpu_name(flag) or (isinstance(flag, dict) and any(is_gpu_name(v) for v in flag.values()))
    )


def holds_gpu_choice(flag: object) -> bool:
    """A dictionary of parameters, nested ones included, that asks for a GPU."""
    if isinstance(flag, dict):
        return any(isinstance(k, str) and chooses_gpu(k, v) for k, v in flag.items()) or any(
            map(holds_gpu_choice, flag.values())
        )
    return False
