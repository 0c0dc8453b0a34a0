"""Generations of zygotes as pure rules: a new one for each new environment, the old one drained (design §5).

A zygote holds packages as they were when it imported them. After an install none of its forks may begin another cell;
workers that it has forked run on, for they are not its children.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class StartZygote:
    """Start the zygote of this generation."""

    number: int


@dataclass(frozen=True)
class StopZygote:
    """End the zygote of this generation: nobody waits for a fork of it."""

    number: int


Action = StartZygote | StopZygote


@dataclass
class Generation:
    """`environment_id`: what was installed when its zygote began to import. `forks`: those under way."""

    number: int
    environment_id: str
    forks: int = 0


@dataclass
class GenerationRules:
    """Which zygotes there are; only the newest one forks. Starts and ends nothing itself.

    `settling`: an id that a look without a need has seen once.
    """

    # The first one is there before its zygote is ready.
    generations: list[Generation] = field(default_factory=lambda: [Generation(1, "")])
    settling: str = ""

    @property
    def newest(self) -> Generation:
        """The one that forks are asked of."""
        return self.generations[-1]

    def confirmed(self, number: int, environment_id: str) -> None:
        """A zygote is ready and says from which environment it imported; the first one, or one that died before."""
        if number == self.newest.number:
            self.newest.environment_id = environment_id

    def seen(self, environment_id: str) -> list[Action]:
        """Somebody needs a worker, and this is what is installed now."""
        self.settling = ""
        if environment_id == self.newest.environment_id:
            return []
        number = self.newest.number + 1
        idle = [old for old in self.generations if not old.forks]
        self.generations = [old for old in self.generations if old.forks]
        self.generations.append(Generation(number, environment_id))
        return [StartZygote(number), *(StopZygote(old.number) for old in idle)]

    def glimpsed(self, environment_id: str) -> list[Action]:
        """As `seen`, when nobody waits: an installer that is at work must not cause a start at each of its steps."""
        if environment_id == self.newest.environment_id or environment_id == self.settling:
            return self.seen(environment_id)
        self.settling = environment_id
        return []

    def fork_began(self) -> int:
        """A fork is asked of the newest generation; its number."""
        self.newest.forks += 1
        return self.newest.number

    def fork_ended(self, number: int) -> list[Action]:
        """It was answered, well or not."""
        generation = next(one for one in self.generations if one.number == number)
        generation.forks -= 1
        if generation.forks or generation is self.newest:
            return []
        self.generations.remove(generation)
        return [StopZygote(number)]
