"""A CPU cell whose label may be wrong: what it needs is committed first, and if it uses a GPU after all, what it did is
taken back and it runs on a worker (design §4: a wrong label costs time, never correctness)."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from looseleaf.devices import touch
from looseleaf.devices.touch import GpuTouch, TouchWatch
from looseleaf.errors import LooseLeafError, PreconditionFailed
from looseleaf.ids import Version
from looseleaf.kernel import effects
from looseleaf.kernel.effects import Effects
from looseleaf.kernel.loop_work import LoopWork
from looseleaf.kernel.needs import names_to_commit
from looseleaf.kernel.session import KernelSession
from looseleaf.kernel.shell_undo import OpenedComms, ShellUndo
from looseleaf.recipe.analyze import analyze_cell
from looseleaf.recipe.label import CERTAIN, UNSEEN_PACKAGES, WAITS, DeviceLabel
from looseleaf.recipe.recipe import Recipe

log = logging.getLogger("looseleaf.kernel")


def may_use_torch(recipe: Recipe, loaded: Collection[str]) -> bool:
    """Whether a cell could meet one of torch's devices; `loaded`: modules of this process."""
    return "torch" in loaded or bool(recipe.file_dependencies) or any(_top(m) == "torch" for m in recipe.imports)


def is_doubted(recipe: Recipe) -> bool:
    """Whether a cell that runs on the CPU is prepared for needing a GPU: so is each that was labelled so.

    A person's own choice is not doubted, and without an analysis nobody knows what it may change.
    """
    return bool(recipe.guess) and recipe.confidence < (CERTAIN if recipe.label is DeviceLabel.CPU else 1.0)


def waits_for_gpu(recipe: Recipe, source: str, loaded: Collection[str]) -> bool:
    """Whether a GPU cell waits if no GPU is free at once; else it is tried on the CPU, where a use would be seen."""
    seen = may_use_torch(recipe, loaded) and UNSEEN_PACKAGES.isdisjoint(map(_top, recipe.imports))
    return recipe.confidence >= WAITS or recipe.device_bytes > 0 or not seen or bool(analyze_cell(source).shell)


def _top(module: str) -> str:
    return module.partition(".")[0]


def why_not_again(
    seen: Sequence[str], unsaved: Collection[str], recipe: Recipe, *, threads_left: bool, waiting: str = ""
) -> str:
    """Why a cell that used a GPU cannot be taken back and run again, as what it did; empty if it can.

    `seen`: its effects outside. `unsaved`: variables that no version has. `threads_left`: threads of earlier cells run.
    `waiting`: what it left in the event loop, which would run here besides.
    """
    if seen:
        return f"it {' and '.join(seen[:2])} before"
    if waiting:
        return f"it left work in the notebook's event loop, {waiting}, which goes on there"
    if used := sorted(set(recipe.names).intersection(unsaved)):
        return f"it may have changed `{used[0]}`, which no version can hold"
    if threads_left:
        return "a thread that an earlier cell started still runs and may have changed variables meanwhile"
    return ""


class Trial:
    """One CPU cell, from before its commit to the decision; used once, on the main thread.

    `comm_manager`: the kernel's. `raises`: it is prepared for being wrong. `used`: what it used of a GPU, empty if
    nothing. `undo`: of the shell's own memory of it, if it is prepared.
    """

    def __init__(self, session: KernelSession, shell: Any, comm_manager: Any, recipe: Recipe) -> None:
        self._session = session
        self._shell = shell
        self._recipe = recipe
        self._version = Version(0)
        if is_doubted(recipe) and session.has_gpus and may_use_torch(recipe, sys.modules):
            self._version = self._committed()
        self._watch = TouchWatch(raises=self._version > 0)
        self._effects = Effects(self._watch)
        self.undo = ShellUndo(shell) if self.raises else None
        self._comms = OpenedComms(comm_manager)
        self._waiting = ""

    @property
    def used(self) -> str:
        """See the class."""
        return self._watch.used

    @property
    def raises(self) -> bool:
        """See the class."""
        return self._watch.raises

    def _committed(self) -> Version:
        session = self._session
        try:
            session.commit(names_to_commit(self._recipe))
            if session.manifest is not None and session.manifest.lazy_bytes():
                # What only this process has could not come back with the version, needed by the cell or not.
                session.commit()
        except LooseLeafError as error:
            # Then it runs as if it were certain: a use of a GPU is refused where it happens.
            log.warning("commit_failed %s", error)
            return Version(0)
        manifest = session.manifest
        return Version(0) if manifest is None or manifest.lazy_bytes() else session.version

    async def run(self, run_here: Callable[[], Any]) -> dict[str, Any]:
        """The cell's reply, watched; its own GpuTouch is not shown."""
        work = LoopWork(asyncio.get_running_loop())
        with self._watching():
            try:
                reply: dict[str, Any] = await run_here()
            except GpuTouch as left:
                # Raised where no cell catches it, such as in a display hook.
                reply = {"status": "error", "ename": type(left).__name__, "evalue": str(left), "traceback": []}
        self._waiting = work.new()
        if not self._watch.used and self._session.has_gpus and reply.get("status") == "error":
            # An import that needs a GPU ended the cell; else past all that refuses.
            ename, evalue = str(reply.get("ename")), str(reply.get("evalue"))
            probed = self._watch.probed if "CUDA_IN_CPU_CELL" in evalue else ""
            self._watch.used = probed or touch.touch_in(ename, evalue)
        return reply

    @contextmanager
    def _watching(self) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(touch.watched(self._watch))
            if self.raises:
                stack.enter_context(effects.watched(self._effects))
                stack.enter_context(_quiet_about_touch(self._shell))
            yield

    def take_back(self, reply: Mapping[str, Any], refuse: Callable[[], None]) -> str:
        """Makes variables, process state, history and results as they were before the cell: empty, or why it cannot.

        `refuse()` raises a LooseLeafError if the cell can run on no worker.
        """
        if reply.get("ename") == "KeyboardInterrupt":
            return "it was interrupted"
        session = self._session
        unsaved = session.tracker.unsaved_here if session.tracker is not None else ()
        threads_left = session.threads.may_write()
        seen = self._effects.seen
        if why := why_not_again(seen, unsaved, self._recipe, threads_left=threads_left, waiting=self._waiting):
            return why
        assert self.undo is not None
        try:
            refuse()
            session.roll_back(self._version)
        except LooseLeafError as error:
            return f"what it did cannot be taken back: {error.message or error.reason}"
        self._comms.close()
        self.undo.undo()
        return ""

    def refusal(self, why: str, reply: Mapping[str, Any]) -> PreconditionFailed | None:
        """The error of a cell that used a GPU and does not run again by itself; None if what it shows says enough.

        `why`: as `take_back` gave it, empty for a cell that was not doubted.
        """
        if reply.get("ename") == "KeyboardInterrupt" or (not self.raises and reply.get("status") == "error"):
            return None
        # Without a guess nothing is learned of it.
        again = "Run it again: its next run gets" if self._recipe.guess else "Make %%gpu its first line: then it gets"
        text = (
            f"This cell ran on the CPU, because nothing in it seemed to need a GPU, but it uses one ({self.used}). It "
            f"was not run again on a GPU by itself: {why or 'nothing was saved before it, as its label seemed certain'}"
            f". Variables are as its statements left them. {again} a GPU."
        )
        return PreconditionFailed("RERUN_REFUSED", text, used=self.used)


@contextmanager
def _quiet_about_touch(shell: Any) -> Iterator[None]:
    """A GpuTouch that leaves a cell is no error to show."""
    show, own = shell.showtraceback, vars(shell).get("showtraceback")

    def showtraceback(*args: Any, **kwargs: Any) -> None:
        if not isinstance(sys.exc_info()[1], GpuTouch):
            show(*args, **kwargs)

    shell.showtraceback = showtraceback
    try:
        yield
    finally:
        # Unless the cell has put another there.
        if vars(shell).get("showtraceback") is showtraceback:
            del shell.showtraceback
            if own is not None:
                shell.showtraceback = own
