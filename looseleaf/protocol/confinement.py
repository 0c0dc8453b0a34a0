"""What a worker may have of its host, as the daemon tells it at the fork (design §10)."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Final

from looseleaf.errors import InvalidArgument
from looseleaf.protocol import fields

# In the environment of a FORK; no cell sees it.
CONFINEMENT_VARIABLE: Final = "LOOSELEAF_CONFINEMENT"


@dataclass(frozen=True)
class Confinement:
    """`uid` 0: the daemon's own; `gid`, `groups`, `home` and `user` are that user's.

    `open_files`, `processes`: limits, 0 for the inherited ones. `cgroup`: file to write its pid to, or empty.
    """

    uid: int = 0
    gid: int = 0
    groups: tuple[int, ...] = ()
    home: str = ""
    user: str = ""
    open_files: int = 0
    processes: int = 0
    cgroup: str = ""

    def text(self) -> str:
        """The value of `CONFINEMENT_VARIABLE`."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> Confinement:
        """Raises InvalidArgument `FIELD_MALFORMED`: the daemon is then of another version, and nothing is confined."""
        try:
            body = json.loads(text)
        except ValueError as error:
            raise InvalidArgument("FIELD_MALFORMED", f"a worker's limits are no JSON: {error}") from error
        if not isinstance(body, dict):
            raise InvalidArgument("FIELD_MALFORMED", "a worker's limits are no mapping")
        return cls(
            fields.integer(body, "uid"), fields.integer(body, "gid"), tuple(fields.integers(body, "groups")),
            fields.text(body, "home"), fields.text(body, "user"), fields.integer(body, "open_files"),
            fields.integer(body, "processes"), fields.text(body, "cgroup"),
        )  # fmt: skip
