"""A small world of daemons and clients where messages are late, lost and doubled, and parts die.

Faults: lost and reordered answers, partitions, daemons and schedulers killed at any point, a scheduler that stands
still, cancelled and doubled requests, epoch changes. What must hold is checked after each event.
`python -m tests.services.scheduler.core.random_world SEED ...` runs the worlds of these seeds.
"""

from __future__ import annotations

import sys

from looseleaf.services.scheduler.core import events as ev
from looseleaf.services.scheduler.core.facts import ExecutionState
from tests.services.scheduler.core.random_scheduler import SchedulerSide
from tests.services.scheduler.core.random_state import quiet

STEPS = 400
SETTLE_ROUNDS_MAX = 400
ROUND_S = 0.5
# Without faults one more run waits than there are GPUs, besides those that waited before. A run waits for as many
# cells, each of two rounds of its host's, and for starts that were lost.
BUSY_ROUNDS, WAITING_MAX, KEYSTROKES = 100, 5, 2
WAIT_S_MAX, WAIT_S_PER_RUN = 20.0, 1.0
MODULE = "tests.services.scheduler.core.random_world"


class World(SchedulerSide):
    """A life of random steps, and its end without faults."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.start_scheduler()

    def run(self) -> None:
        """The whole life of the world; raises AssertionError naming the command that repeats it."""
        try:
            self.live()
        except AssertionError as error:
            raise AssertionError(f"seed {self.seed}: {error}; repeat with `python -m {MODULE} {self.seed}`") from error

    def live(self) -> None:
        for _ in range(STEPS):
            self.step()
        self.settle()

    def step(self) -> None:
        self.now_s = round(self.now_s + self.random.choice((0.0, 0.0, 0.05, 0.3)), 3)
        roll = self.random.random()
        daemon = self.random.choice(self.daemons)
        if roll < 0.09 and quiet(self.seed):
            if roll < 0.03:
                self.send(ev.Tick())
            else:
                self.prepare_something()
        elif roll < 0.12:
            self.new_run()
        elif roll < 0.45 and self.flights:
            self.flights.pop(self.random.randrange(len(self.flights)))()
        elif roll < 0.65:
            self.beat(daemon)
        elif roll < 0.85:
            self.progress(daemon)
        elif roll < 0.87:
            self.send(ev.Tick())
        elif roll < 0.92:
            self.prepare_something()
        elif roll < 0.94:
            self.cancel_something()
        elif roll < 0.955:
            self.double_something()
        elif roll < 0.965:
            self.raise_epoch()
        elif roll < 0.975:
            daemon.cut_off = not daemon.cut_off
            daemon.beating = False
        elif roll < 0.985:
            if daemon.up:
                self.crash(daemon)
            elif not daemon.stopped:
                self.restart(daemon)
        elif roll < 0.99:
            self.stand_still()
        else:
            self.retry_reports()

    def stand_still(self) -> None:
        """Nobody is heard for a while: by the weather's fault, or because the scheduler's process slept."""
        silence_s = self.random.choice((4.0, 4.0, 12.0))
        slept = self.random.random() < 0.5
        self.now_s += silence_s
        self.send(ev.Tick(silence_s if slept else 0.0))

    def retry_reports(self) -> None:
        waiting, self.reports = list(self.reports.values()), {}
        self.flights += waiting
        again, self.again = self.again, []
        for want in again:
            if not want.done:
                self.ask(want)

    def settle(self) -> None:
        """No more faults: whoever waits is served in bounded time while others come, and every GPU comes back."""
        self.faults = False
        for daemon in self.daemons:
            daemon.cut_off = daemon.beating = False
            daemon.foreign_bytes = []
            if not daemon.up and not daemon.stopped:
                self.restart(daemon)
        self.stay_busy()
        for _ in range(SETTLE_ROUNDS_MAX):
            self.round()
            if not self.open_wants() and not len(self.scheduler.state.leases):
                break
        assert self.starts, "nothing ever ran: this world shows nothing"
        assert not self.open_wants(), f"never served: {self.open_wants()}"
        assert not len(self.scheduler.state.leases), "leases that never end"
        assert not self.scheduler.state.runs
        assert not self.scheduler.state.preparations
        live = [record for record in self.scheduler.state.journal.live() if record.state is not ExecutionState.PENDING]
        assert not live, f"executions without an end: {live}"
        self.check_determinism()

    def round(self) -> None:
        """Half a second in which everybody does all that there is to do."""
        self.now_s = round(self.now_s + ROUND_S, 3)
        for daemon in self.daemons:
            daemon.beating = False
            self.beat(daemon)
            self.progress(daemon)
        self.retry_reports()
        while self.flights:
            self.flights.pop(0)()
        self.send(ev.Tick())

    def stay_busy(self) -> None:
        """Runs of both tenants and of all sizes come as fast as they can be served: none of them waits for long."""
        since_s: dict[str, float] = {}
        wait_s_max = WAIT_S_MAX + WAIT_S_PER_RUN * len(self.open_wants())
        for _ in range(BUSY_ROUNDS):
            if len(self.open_wants()) < WAITING_MAX:
                self.new_run()
            for _ in range(KEYSTROKES):
                self.prepare_something()
            self.round()
            for want in self.open_wants():
                waited_s = self.now_s - since_s.setdefault(want.execution_id, self.now_s)
                assert waited_s <= wait_s_max, f"waits for {waited_s} s while others are served: {want}"


if __name__ == "__main__":
    for number in sys.argv[1:]:
        World(int(number)).run()
