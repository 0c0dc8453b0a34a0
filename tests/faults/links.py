"""The tests' end of `link_process.py`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

BOTH = ("there", "back")


class Links:
    """Sockets in `folder` that stand for others, and can be cut by their names."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cut: set[str] = set()
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("link_process.py"))],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )

    def open(self, name: str, target: str) -> str:
        """The gRPC address that stands for `target`, an address too."""
        listen = self._folder / name
        self._order("open", name, listen=str(listen), target=target.removeprefix("unix:"))
        return f"unix:{listen}"

    def hold(self, name: str, *ways: str) -> None:
        """What is sent on these ways, both if none is named, arrives only after `release`."""
        self._cut.add(name)
        self._order("hold", name, ways=list(ways or BOTH))

    def release(self, name: str) -> None:
        """What was held arrives now, late."""
        self._cut.discard(name)
        self._order("release", name)

    def drop(self, name: str) -> None:
        """The connections break; what was held never arrives, what comes later does."""
        self._order("drop", name)
        self.release(name)

    def mend(self) -> None:
        """No link is cut any more."""
        for name in sorted(self._cut):
            self.drop(name)

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _order(self, do: str, link: str, **fields: Any) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps({"do": do, "link": link, **fields}), file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n", f"the links' process ended at {do} of {link}"
