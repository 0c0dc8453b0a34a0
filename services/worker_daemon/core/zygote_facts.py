"""What is known of imports before a zygote may hold them: the word of a probe (import-cache study §3.4)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Protocol


class Verdict(StrEnum):
    """What a throw-away process showed about a set of imports. All but `CLEAN` are imported by workers alone."""

    CLEAN = "clean"
    # The driver was initialised: a forked child could not use CUDA.
    CUDA = "cuda"
    # Kernel threads are left that do not come back by themselves after a fork.
    THREADS = "threads"
    # A forked grandchild did not answer, or the import itself did not end.
    HANG = "hang"
    CHILDREN = "children"
    # Sockets, pipes or device files are left open.
    FDS = "fds"
    # A module that does not survive a fork was loaded.
    GRPC_LIKE = "grpc-like"
    # It changed signal handlers, the working directory or the umask, which a worker has of its own.
    EFFECTS = "effects"
    # Its files are no installed distribution's but of an editable install or a notebook's folder: they may change.
    FOREIGN = "foreign"
    # An import raised, or ended its process.
    ERROR = "error"
    # It took longer than a probe may.
    SLOW = "slow"
    # What it failed for may be gone soon: it was killed, or lacked memory, disk, descriptors or a server.
    PASSING = "passing"


# What depends on how the host was just then is not believed for ever.
DOUBTFUL: Final = frozenset({Verdict.SLOW, Verdict.HANG, Verdict.PASSING})
# So long it counts, for probes and nodes alike: a tree that forgot it earlier would ask for what is still refused.
DOUBTFUL_S: Final = 3600.0


@dataclass(frozen=True)
class ProbeKey:
    """Whose word counts for whom: the same imports may behave otherwise on other ones, or after an install.

    `base`: what the node had that the probe was forked from. `imports`: in the order in which they were added.
    """

    environment_id: str
    base: frozenset[str]
    imports: tuple[str, ...]


@dataclass(frozen=True)
class ProbeResult:
    """`seconds` and `modules` of the imports alone, without those of the base.

    `seconds`: import name → time it took. `private_bytes`: memory that the imports cost. `modules`: full names that
    came into `sys.modules`; `brought`: import name → those of them that came by it, after the imports before it.
    `culprit`: the import at which the verdict fell; empty if clean. `detail`: for people.
    """

    key: ProbeKey
    verdict: Verdict
    seconds: dict[str, float] = field(default_factory=dict)
    private_bytes: int = 0
    modules: frozenset[str] = frozenset()
    brought: dict[str, frozenset[str]] = field(default_factory=dict)
    culprit: str = ""
    detail: str = ""


# Forks a probe from the node: (imports, [channel, stdin, stdout, stderr]) → its pid, a child of the daemon.
ForkProbe = Callable[[Sequence[str], Sequence[int]], Awaitable[int]]


class Prober(Protocol):
    """The daemon's table of probe results and who fills it."""

    async def probe(self, key: ProbeKey, fork: ForkProbe) -> ProbeResult:
        """What was known, or what a new probe finds. Bad imports are a verdict; raises only if no probe could run."""
        ...
