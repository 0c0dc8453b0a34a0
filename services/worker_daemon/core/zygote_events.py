"""What the import cache's rules are told, and what they answer (import-cache study §4.2, failure table §5)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from looseleaf.services.worker_daemon.core.zygote_facts import ProbeKey, ProbeResult, Verdict
from looseleaf.services.worker_daemon.core.zygote_nodes import NodeId, TreeKey


class ForkFailure(StrEnum):
    """`REFUSED`: the system had no room for it. `TIMEOUT`: no answer came. `GONE`: the zygote ended.

    `STILLBORN`: there was a process, which ended or hung before it said a word.
    """

    REFUSED = "refused"
    TIMEOUT = "timeout"
    GONE = "gone"
    STILLBORN = "stillborn"


class KillWhy(StrEnum):
    """Why a zygote is ended."""

    EVICTED = "evicted"
    HUNG = "hung"
    POISONED = "poisoned"
    STILLBORN = "stillborn"
    CLOSED = "closed"


# -- events ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class KeyOpened:
    """A base is being started for a new environment; `learned`: as Tree. `after`: the tree that taught it."""

    key: TreeKey
    learned: Mapping[str, int] = field(default_factory=dict)
    after: TreeKey | None = None


@dataclass(frozen=True)
class BaseReady:
    """A base serves. `seconds`: import → what it took; `modules`: names that are there besides."""

    key: TreeKey
    environment_id: str
    seconds: Mapping[str, float]
    modules: frozenset[str] = frozenset()
    private_bytes: int = 0


@dataclass(frozen=True)
class BaseDown:
    """A base ended and is started again; `hopeless`: such a start has failed."""

    key: TreeKey
    hopeless: bool = False


@dataclass(frozen=True)
class KeyClosed:
    """Nobody forks from this environment any more."""

    key: TreeKey


@dataclass(frozen=True)
class Requested:
    """A worker for these imports is wanted; `request` is a number of its own."""

    request: int
    key: TreeKey
    imports: frozenset[str]


@dataclass(frozen=True)
class Forked:
    """The request's worker, forked or a fresh process, has said hello; the fork took so long."""

    request: int
    seconds: float


@dataclass(frozen=True)
class ForkFailed:
    """The fork that was tried last for the request did not."""

    request: int
    failure: ForkFailure


@dataclass(frozen=True)
class Abandoned:
    """Who made the request has gone."""

    request: int


@dataclass(frozen=True)
class Imported:
    """A worker imported what its zygote lacked; import → what it took."""

    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Doubted:
    """A worker ended or was late at this import."""

    key: TreeKey
    name: str


@dataclass(frozen=True)
class Probed:
    """What a probe for this planned node found; None: it could not run."""

    node: NodeId
    result: ProbeResult | None


@dataclass(frozen=True)
class Built:
    """The node serves. `modules`: names that are there besides its imports."""

    node: NodeId
    seconds: Mapping[str, float]
    modules: frozenset[str] = frozenset()
    private_bytes: int = 0


@dataclass(frozen=True)
class BuildFailed:
    """The node does not; `culprit`: the import that was at fault, if one was."""

    node: NodeId
    verdict: Verdict | None = None
    culprit: str = ""


@dataclass(frozen=True)
class NodeDied:
    """The node's process has ended."""

    node: NodeId


@dataclass(frozen=True)
class Poisoned:
    """A worker of this node cannot use CUDA because of what the node did."""

    node: NodeId


@dataclass(frozen=True)
class Sampled:
    """PSS of the zygotes that live."""

    pss_bytes: Mapping[NodeId, int]


Event = (
    KeyOpened | BaseReady | BaseDown | KeyClosed | Requested | Forked | ForkFailed | Abandoned | Imported | Doubted
    | Probed | Built | BuildFailed | NodeDied | Poisoned | Sampled
)  # fmt: skip

# -- actions -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fork:
    """Fork the request's worker from this node. `lacking`: what it must still import."""

    request: int
    node: NodeId
    lacking: frozenset[str] = field(default_factory=frozenset)


@dataclass(frozen=True)
class ForkFresh:
    """Exec a process for the request's worker: no zygote can serve it."""

    request: int


@dataclass(frozen=True)
class Probe:
    """Find out in a throw-away process of `parent` whether the node may import what it should."""

    node: NodeId
    parent: NodeId
    key: ProbeKey


@dataclass(frozen=True)
class Build:
    """Fork the node from `parent`; it imports `imports` in this order."""

    node: NodeId
    parent: NodeId
    imports: tuple[str, ...]


@dataclass(frozen=True)
class Kill:
    """End the node's process; workers and zygotes that were forked from it live on. A base is started again."""

    node: NodeId
    why: KillWhy


Action = Fork | ForkFresh | Probe | Build | Kill
