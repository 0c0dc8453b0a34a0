"""The compiled part: the walk over a session's live objects, and the bytes of units."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, final

# What `classify` may answer for a type: its objects are no nodes; nodes whose children are what the type tells the
# garbage collector; nodes without children; byte strings, which are nodes from a size on.
ATOM: int
REFERENTS: int
LEAF: int
BYTES: int

def canonical(data: bytes) -> bytes:
    """The same pickle of protocol 5, or run of pickles with one memo, in a form that is the same for the same state.

    The pickler tells equal texts apart by identity, and a restore changes which of them are one object, because
    attribute names are interned: without this a unit would count as changed after every move. `data` itself if it is
    not what a pickler of protocol 5 wrote.
    """

def make_persistent_id(ids: dict[int, int | str], used: set[int | str]) -> Callable[[Any], int | str | None]:
    """A `persistent_id` for picklers: `ids.get(id(value))`, which is also added to `used`; None for atoms."""

def mark_finalized(value: Any) -> bool:
    """From now on `value` counts as finalized: its `__del__` does not run when it dies.

    False if an object of its type cannot be marked (it is unknown to the garbage collector); nothing was changed then.
    """

@final
class ObjectGraph:
    """Numbers what roots reach, in the order of one depth-first walk; node 0, the entry, refers to all roots.

    `classify(type)` gives one of the numbers above, or a handler: `handler(object)` gives its children, or None if the
    object is no node. `on_bytes(object)` is told of each byte string of at least `bytes_node_min` bytes, and of every
    bytearray. Objects at `cut` addresses are no nodes. Those at `forced` addresses head units whoever refers to them.

    Iterative: no structure is too deep. No attribute of a walked object is read, and no method of its class called, but
    by handlers. Every numbered object is kept alive as long as the graph. Not safe for use by several threads at once.
    Exceptions of the callables pass through and leave a graph that is only good for being dropped. Raises IndexError
    for nodes that there are not, RuntimeError for questions about heads before `find_heads` and additions after it.
    """

    def __init__(
        self, *, classify: Callable[[type], int | Callable[[Any], Sequence[Any] | None]],
        on_bytes: Callable[[Any], None], cut: Iterable[int], forced: Iterable[int], bytes_node_min: int,
    ) -> None: ...  # fmt: skip
    def __len__(self) -> int:
        """Number of nodes, the entry included."""
    def add_root(self, value: Any) -> int:
        """Walks on from `value`; its node, or 0 if it is no node."""
    def add_edge_from_entry(self, node: int) -> None:
        """As if `node` were a root too."""
    def find_heads(self) -> None:
        """Ends the walk: heads are the nodes that the entry immediately dominates."""
    def object(self, node: int) -> Any: ...
    def parent(self, node: int) -> int:
        """The node from which the walk first came to `node`; less than `node`."""
    def head(self, node: int) -> int:
        """The head that dominates `node`, or `node` itself."""
    def is_plain(self, node: int) -> bool:
        """For a head: it dominates builtin containers and atoms of builtin types only, which refer to nothing else."""
    def heads(self) -> list[int]:
        """All heads, ascending."""
    def other_predecessors(self, node: int) -> list[int]:
        """The origins of all edges to `node` but the one from its parent; neighbouring repetitions may be left out."""
    def node_at(self, address: int) -> int:
        """The node of the object with that id, 0 if there is none."""
