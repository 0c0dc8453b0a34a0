"""What a preparation does beyond host_ready: a device is opened before Run, and data are laid on it (design §5, §6).

Nobody waits for it, and it keeps nobody waiting: a lease of its GPUs ends the worker whose data lie there or are on
their way, whatever it is doing (`gpu_room.make_way`); a context alone stays beside the cells of others.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass, field, replace

from looseleaf.errors import LooseLeafError
from looseleaf.services.worker_daemon.core.worker_life import Stage, WorkerFacts
from looseleaf.services.worker_daemon.worker_process import WorkerProcess

# Another worker will do: this one has imported older files, or opened its device in another way.
RENEWED_REASONS = frozenset({"OWN_FILES_CHANGED", "DEVICE_NOT_FRESH"})


def _none_leased(_gpus: Collection[int]) -> bool:
    return False


@dataclass
class Opening:
    """How far one preparation is to go: `stage` at most, on `gpus` from context_ready on.

    `leased(gpus)`: a cell has one of them. `began`: the device was asked for, so that a failure is most likely its.
    """

    stage: Stage = Stage.HOST_READY
    gpus: tuple[int, ...] = ()
    device: str = "none"
    delays: bool = False
    leased: Callable[[Collection[int]], bool] = _none_leased
    # Whether other workers have left these GPUs, which is waited for; None: nobody can be there.
    cleared: Callable[[Collection[int], WorkerFacts], Awaitable[bool]] | None = None
    # A context must go too.
    leave: bool = False
    began: bool = field(default=False, init=False)

    def serves(self, facts: WorkerFacts) -> bool:
        """False if another worker must be made ready: a process can neither leave its device nor change it.

        A worker that has run a cell goes on where it is.
        """
        if facts.has_run:
            return True
        if (self.stage < Stage.DEVICE_READY and facts.gpus) or (self.leave and facts.opened_gpus):
            return False
        return self.stage is Stage.HOST_READY or facts.opened_gpus in ((), self.gpus)

    async def reach(self, worker: WorkerProcess) -> dict[str, float]:
        """Takes a host_ready worker further; milliseconds by stage, empty if it stays where it is.

        It stays if it is as far already, if a Run waits for it, which opens its own GPUs, or if one has the GPUs.
        """
        facts, load = worker.facts, self.stage is Stage.DEVICE_READY
        if self.stage is Stage.HOST_READY or facts.has_run or facts.users > 1 or self.leased(self.gpus):
            return {}
        if facts.gpus == self.gpus or (facts.context_gpus == self.gpus and not load):
            return {}
        if load and self.cleared is not None and not await self.cleared(self.gpus, facts):
            # Who was to make way is still there: two do not fit.
            return {}
        if facts.users > 1 or self.leased(self.gpus):
            return {}
        self.began = True
        began_s = time.monotonic()
        await worker.open_ahead(self.gpus, self.device, self.delays, load=load)
        return {"attach": (time.monotonic() - began_s) * 1000}

    def after(self, error: LooseLeafError) -> Opening | None:
        """How far another worker is to go once this one has failed; None: the preparation has."""
        if error.reason in RENEWED_REASONS:
            return replace(self)
        # The GPU went to a cell, or does not take the data: they stay in host memory.
        return Opening() if self.began else None
