"""How a host comes to a new worker: forked from the best zygote, or in the next best way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from looseleaf.errors import LooseLeafError
from looseleaf.ids import Version, new_worker_id
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.state_requests import StateOwner, StateRequests
from looseleaf.services.worker_daemon.worker_process import Forker, WorkerLimits, WorkerProcess


class ForkAttempts(Forker, Protocol):
    """As ForkRequest: one fork at a time, and another one while `again` says so."""

    def served(self) -> None:
        """See ForkRequest.served."""
        ...

    def stillborn(self) -> None:
        """See ForkRequest.stillborn."""
        ...

    @property
    def again(self) -> bool:
        """There is another way to try."""
        ...


class WorkerSource(Protocol):
    """ZygoteGenerations, or a test's stand-in."""

    def request(self, imports: Iterable[str]) -> AbstractAsyncContextManager[ForkAttempts]:
        """See ZygoteGenerations.request."""
        ...

    async def environment_id(self) -> str:
        """See ZygoteGenerations.environment_id."""
        ...

    def failed(self, pid: int, error: BaseException) -> None:
        """See ZygoteGenerations.failed."""
        ...

    def spoiled(self, pid: int) -> None:
        """See ZygoteGenerations.spoiled."""
        ...

    def imported(self, seconds: Mapping[str, float]) -> None:
        """See ZygoteGenerations.imported."""
        ...


class _Attempt:
    """One fork of `attempts`. What fails before it is asked for would fail in the same way for ever."""

    def __init__(self, attempts: ForkAttempts) -> None:
        self._attempts = attempts
        self.asked = False

    async def fork(self, title: str, env: dict[str, str], fds: list[int]) -> int:
        self.asked = True
        return await self._attempts.fork(title, env, fds)


class WorkerForks:
    """Makes workers from `source`. `env`: what each gets beyond its zygote's."""

    def __init__(
        self, source: WorkerSource, reaper: Reaper, limits: WorkerLimits,
        new_requests: Callable[[StateOwner], StateRequests], env: dict[str, str],
    ) -> None:  # fmt: skip
        self.source = source
        self._reaper = reaper
        self._limits = limits
        self._new_requests = new_requests
        self._env = env

    async def fork(self, owner: StateOwner, imports: Iterable[str], version: int = 0) -> WorkerProcess:
        """A worker for `owner` that has said hello, with as many of the imports as a zygote has.

        `version`: the one that it will be asked to prepare, 0 if that is not known.
        Raises as `WorkerProcess.fork` once there is no other way to try.
        """
        async with self.source.request(imports) as attempts:
            while True:
                attempt = _Attempt(attempts)
                try:
                    worker = await self._fork_once(owner, attempt, version)
                except LooseLeafError as error:
                    if error.reason == "WORKER_LOST":
                        attempts.stillborn()
                    if not (attempt.asked and attempts.again):
                        raise
                else:
                    attempts.served()
                    return worker

    async def _fork_once(self, owner: StateOwner, attempt: _Attempt, version: int) -> WorkerProcess:
        requests = self._new_requests(owner)
        if version:
            requests.expected.ask(owner.session_id, Version(version))
        try:
            return await WorkerProcess.fork(new_worker_id(), attempt, self._env, requests, self._reaper, self._limits)
        except BaseException:
            # There may be no connection whose end would do it.
            requests.expected.forget()
            raise
