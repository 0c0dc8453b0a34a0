"""The daemon's end of a zygote's channel, with a test at the other."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from daemon_fakes import until

from looseleaf.errors import LooseLeafError, Timeout, Unavailable
from looseleaf.protocol.control import ControlSocket
from looseleaf.services.worker_daemon.zygote_channel import ZygoteChannel

READY = {"t": "READY", "v": 1, "imports": [], "failed": []}


class Ends:
    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.channel = ZygoteChannel(ours)
        self._control = ControlSocket(self.theirs)

    def say(self, message: dict[str, Any]) -> None:
        self._control.send(message, ())


@pytest.fixture
async def ends() -> AsyncIterator[Ends]:
    made = Ends()
    yield made
    made.channel.close()
    made.theirs.close()


async def failure(ends: Ends) -> LooseLeafError:
    with pytest.raises(LooseLeafError) as caught:
        await ends.channel.ready(0.01)
    return caught.value


@pytest.mark.parametrize("ends_there", [True, False])
async def test_import_at_which_a_start_ends_or_is_late_is_named(ends: Ends, ends_there: bool) -> None:
    for name in ("numpy", "tqdm"):
        ends.say({"t": "IMPORTING", "name": name})
    await until(lambda: ends.channel.importing == "tqdm")
    if ends_there:
        ends.theirs.close()
        await until(lambda: ends.channel.closed)
    error = await failure(ends)
    assert isinstance(error, Unavailable if ends_there else Timeout)
    assert error.fields["name"] == "tqdm" and "it was importing tqdm" in error.message


async def test_import_has_a_limit_of_its_own_that_begins_with_it(ends: Ends) -> None:
    ends.say({"t": "IMPORTING", "name": "numpy"})
    waiting = asyncio.create_task(ends.channel.ready(1000.0, 0.01))
    with pytest.raises(Timeout, match="0.01 s; it was importing numpy"):
        await waiting


async def test_zygote_that_is_at_no_import_has_the_whole_time(ends: Ends) -> None:
    waiting = asyncio.create_task(ends.channel.ready(1000.0, 0.0))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not waiting.done()
    ends.say(READY)
    assert (await waiting)["t"] == "READY"


async def test_zygote_that_was_ready_blames_no_import(ends: Ends) -> None:
    ends.say({"t": "IMPORTING", "name": "tqdm"})
    ends.say(READY)
    assert (await ends.channel.ready(20.0))["t"] == "READY"
    for ask in (ends.channel.fork({}, (), 0.01), ends.channel.pss_bytes(0.01)):
        with pytest.raises(Timeout) as caught:
            await ask
        assert not caught.value.fields["name"] and "importing" not in caught.value.message
