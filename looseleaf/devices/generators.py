"""Random numbers on virtual GPUs (design §8).

Each virtual device has a generator of its own, as CUDA has, so that seeding and drawing on the device leave the CPU's
stream alone and the other way round; results depend on the seed alone. A drawing call runs with torch's CPU generator
seeded from (seed, offset) and put back afterwards: another thread that draws on the CPU in that very moment may get
numbers from the wrong stream. The numbers are not those of a real GPU.

Imported only after torch.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from looseleaf.devices.virtual import VirtualGenerator, VirtualGpus

torch: Any = importlib.import_module("torch")
_cpu = torch.default_generator


def draw(generator: VirtualGenerator, call: Callable[[], Any]) -> Any:
    """Run `call`, whose draws come from `generator`."""
    saved = _cpu.get_state()
    _cpu.manual_seed(generator.next_seed())
    try:
        return call()
    finally:
        _cpu.set_state(saved)


class _GeneratorType(type(torch.Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, real_generator) if cls is Generator else super().__instancecheck__(instance)


real_generator: Any = torch.Generator


class Generator(torch.Generator, metaclass=_GeneratorType):  # type: ignore[misc]
    """`torch.Generator` where `device="cuda"` is a virtual one. A generator of the CPU is torch's own.

    Seeded alike, it gives what the device's default generator gives, as on CUDA.
    """

    virtual: VirtualGenerator
    _index: int | None

    def __new__(cls, device: Any = "cpu") -> Any:
        asked = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
        if asked.type != "cuda":
            return real_generator(asked)
        return cls._made(asked.index or 0, VirtualGenerator())

    @classmethod
    def _made(cls, index: int, virtual: VirtualGenerator) -> Generator:
        made: Generator = super().__new__(cls, "cpu")
        made._index, made.virtual = index, virtual
        return made

    @property
    def device(self) -> Any:
        """The virtual device, always with an index."""
        return torch.device("cuda", self._index)

    def __reduce__(self) -> tuple[Any, ...]:
        return (Generator, (self.device,), self.virtual.get())

    def __setstate__(self, state: bytes) -> None:
        self.virtual.set(state)

    def manual_seed(self, seed: int) -> Generator:
        """Seed it."""
        self.virtual.manual_seed(int(seed))
        return self

    def initial_seed(self) -> int:
        """The seed last set."""
        return self.virtual.seed

    def seed(self) -> int:
        """Seed it from the system's entropy."""
        self.virtual.manual_seed(_fresh_seed())
        return self.virtual.seed

    def get_offset(self) -> int:
        """How far it has drawn."""
        return self.virtual.offset

    def set_offset(self, offset: int) -> None:
        """Draw on from there."""
        self.virtual.offset = int(offset)

    def get_state(self) -> Any:
        """16 bytes as a ByteTensor on the host."""
        return torch.frombuffer(bytearray(self.virtual.get()), dtype=torch.uint8)

    def set_state(self, state: Any) -> Generator:
        """What `get_state` gave; raises RuntimeError for anything of another size."""
        try:
            self.virtual.set(bytes(state.tolist()))
        except ValueError as error:
            raise RuntimeError(str(error)) from error
        return self

    def clone_state(self) -> Generator:
        """Another generator that goes on from here."""
        return self._made(self._index or 0, VirtualGenerator(self.virtual.seed, self.virtual.offset))


Generator.__module__ = "torch"
Generator.__qualname__ = "Generator"


def check_generator(generator: Any, on_device: bool) -> None:
    """Raise as torch does when a generator of one device is to fill a tensor of another."""
    if generator is None:
        return
    has, wants = generator.device.type, "cuda" if on_device else "cpu"
    if has != wants:
        raise RuntimeError(f"Expected a '{wants}' device type for generator but found '{has}'")


class DefaultGenerator(Generator):
    """An element of `torch.cuda.default_generators`: a virtual device's own generator."""

    def __new__(cls, gpus: VirtualGpus, index: int) -> Any:
        return cls._made(index, gpus.generators[index])

    def __reduce__(self) -> tuple[Any, ...]:
        return (default_generator, (self._index,))


def default_generator(index: int) -> Any:
    """What a pickled handle becomes: the same device's generator where it is loaded."""
    return torch.cuda.default_generators[index]


def _fresh_seed() -> int:
    import secrets

    return secrets.randbits(63)


def generator_answers(gpus: VirtualGpus) -> dict[str, Callable[..., Any]]:
    """The functions of `torch.cuda.random` over the virtual generators; none uses a device."""

    def index_from(device: Any) -> int:
        if isinstance(device, int):
            return device
        index = torch.device(device).index
        return gpus.current if index is None else int(index)

    def get_rng_state(device: Any = "cuda") -> Any:
        return DefaultGenerator(gpus, index_from(device)).get_state()

    def get_rng_state_all() -> list[Any]:
        return [get_rng_state(index) for index in range(gpus.count)]

    def set_rng_state(new_state: Any, device: Any = "cuda") -> None:
        DefaultGenerator(gpus, index_from(device)).set_state(new_state)

    def set_rng_state_all(new_states: Any) -> None:
        for index, state in enumerate(new_states):
            set_rng_state(state, index)

    def manual_seed(seed: int) -> None:
        gpus.generators[gpus.current].manual_seed(int(seed))

    def manual_seed_all(seed: int) -> None:
        for generator in gpus.generators[: gpus.count]:
            generator.manual_seed(int(seed))

    def seed() -> None:
        manual_seed(_fresh_seed())

    def seed_all() -> None:
        manual_seed_all(_fresh_seed())

    def initial_seed() -> int:
        return gpus.generators[gpus.current].seed

    return {
        "get_rng_state": get_rng_state, "get_rng_state_all": get_rng_state_all,
        "set_rng_state": set_rng_state, "set_rng_state_all": set_rng_state_all,
        "manual_seed": manual_seed, "manual_seed_all": manual_seed_all,
        "seed": seed, "seed_all": seed_all, "initial_seed": initial_seed,
    }
