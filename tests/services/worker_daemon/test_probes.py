"""Probes by script as real processes: what the daemon makes of what they say, and of those that say nothing."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from daemon_fakes import until, within

from looseleaf.environment import Environment
from looseleaf.errors import Unavailable
from looseleaf.services.worker_daemon import probes as probes_module
from looseleaf.services.worker_daemon.core.zygote_facts import DOUBTFUL, ForkProbe, ProbeKey, ProbeResult, Verdict
from looseleaf.services.worker_daemon.probe_table import ENVIRONMENTS_MAX, ProbeTable
from looseleaf.services.worker_daemon.probes import Probes, ProbeSettings
from looseleaf.services.worker_daemon.reaper import Reaper
from looseleaf.services.worker_daemon.zygote import Zygote, ZygoteSettings
from looseleaf.subreaper import become_subreaper
from looseleaf.worker.probe_origins import installed_folders

KEY = ProbeKey("e1", frozenset({"numpy"}), ("pandas", "sklearn"))
RESULT = {
    "verdict": "clean", "culprit": "", "detail": "", "private_bytes": 7, "modules": ["pandas", "sklearn.base"],
}  # fmt: skip
SAID = [{"begin": "pandas"}, {"took": ["pandas", 0.5], "modules": ["pandas"]}, {"begin": "sklearn"}]

NewProbes = Callable[..., Probes]


@pytest.fixture
async def new_probes(tmp_path: Path) -> AsyncIterator[NewProbes]:
    """Makes a prober whose interpreter says `lines` and then does `then`, a piece of Python."""
    become_subreaper()
    reaper = Reaper()
    reaper.start()

    def make(*lines: object, then: str = "") -> Probes:
        python = tmp_path / "python"
        said = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
        (tmp_path / "tries").touch()
        python.write_text(f"""#!{sys.executable} -IS
import os, sys, time
with open({str(tmp_path / "tries")!r}, "a") as tries:
    print(*sys.argv, file=tries)
os.write(int(sys.argv[sys.argv.index("--fd") + 1]), {(said + chr(10) if said else "").encode()!r})
{then}
""")
        python.chmod(0o700)
        return Probes(ProbeTable(tmp_path / "probes"), reaper, ProbeSettings(str(python), {}))

    yield make
    reaper.stop()


def tries(tmp_path: Path) -> list[str]:
    return (tmp_path / "tries").read_text().splitlines()


async def test_probe_result_is_known_afterwards_and_after_a_restart(new_probes: NewProbes, tmp_path: Path) -> None:
    probes = new_probes(*SAID, {"took": ["sklearn", 1.5], "modules": ["sklearn.base"]}, {"result": RESULT})
    expected = ProbeResult(
        KEY, Verdict.CLEAN, {"pandas": 0.5, "sklearn": 1.5}, 7, frozenset({"pandas", "sklearn.base"}),
        {"pandas": frozenset({"pandas"}), "sklearn": frozenset({"sklearn.base"})},
    )  # fmt: skip
    assert await within(probes.probe(KEY)) == expected
    assert await within(probes.probe(KEY)) == await within(new_probes().probe(KEY)) == expected
    assert len(tries(tmp_path)) == 1
    assert tries(tmp_path)[0].endswith("--base numpy --imports pandas,sklearn")
    await within(probes.probe(ProbeKey("e2", KEY.base, KEY.imports)))
    assert len(tries(tmp_path)) == 2


@pytest.mark.parametrize(
    ("lines", "then", "verdict", "culprit", "detail"),
    [
        (SAID, "os.kill(os.getpid(), 11)", Verdict.PASSING, "sklearn", "its process was killed by SIGSEGV"),
        (SAID, "sys.exit(3)", Verdict.ERROR, "sklearn", "its process exited with code 3"),
        (SAID, "os.kill(os.getpid(), 9)", Verdict.PASSING, "sklearn", "its process was killed by SIGKILL"),
        ([], "sys.exit(1)", Verdict.ERROR, "", "its process exited with code 1"),
        ([*SAID, "[1, 2"], "time.sleep(1000)", Verdict.ERROR, "sklearn", "not understood"),
        ([*SAID, {"took": ["x", None]}], "time.sleep(1000)", Verdict.ERROR, "sklearn", "not understood"),
        ([*SAID, {"took": ["x"]}], "time.sleep(1000)", Verdict.ERROR, "sklearn", "not understood"),
        ([*SAID, {"result": {"verdict": "odd"}}], "time.sleep(1000)", Verdict.ERROR, "", "not understood"),
        ([{"result": {**RESULT, "verdict": "cuda", "culprit": "x", "detail": "why"}}], "", Verdict.CUDA, "x", "why"),
    ],
)
async def test_probe_that_ends_in_any_way_is_a_verdict(
    new_probes: NewProbes, tmp_path: Path, lines: list[object], then: str, verdict: Verdict, culprit: str, detail: str
) -> None:
    result = await within(new_probes(*lines, then=then).probe(KEY))
    assert (result.verdict, result.culprit) == (verdict, culprit)
    assert detail in result.detail
    # What may pass is not known for ever.
    assert (ProbeTable(tmp_path / "probes").get(KEY) is None) == (verdict in DOUBTFUL)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is up as soon as a probe has said that it imports sklearn."""
    listen = probes_module._listen

    async def listen_until_late(sock: socket.socket, told: probes_module._Told) -> None:
        listening = asyncio.create_task(listen(sock, told))
        await until(lambda: told.importing == "sklearn")
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        raise TimeoutError

    monkeypatch.setattr(probes_module, "_listen", listen_until_late)


async def test_probe_that_hangs_is_ended_with_its_family_named_and_tried_again(
    new_probes: NewProbes, late: None, tmp_path: Path
) -> None:
    # A child in a session of its own outlives its group. It exists before the probe says that it imports.
    then = f"""
if os.fork() == 0:
    os.setsid()
    open({str(tmp_path / "child")!r}, "w").write(str(os.getpid()))
    os.write(int(sys.argv[sys.argv.index("--fd") + 1]), b'{json.dumps(SAID[-1])}' + bytes([10]))
time.sleep(1000)"""
    result = await within(new_probes(*SAID[:-1], then=then).probe(KEY))
    assert (result.verdict, result.culprit) == (Verdict.HANG, "sklearn")
    child = int((tmp_path / "child").read_text())
    await until(lambda: not Path(f"/proc/{child}").exists())
    # The host may have been busy: the next daemon does not take it for known.
    assert ProbeTable(tmp_path / "probes").get(KEY) is None


async def test_probe_that_works_too_long_is_slow(
    new_probes: NewProbes, late: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes_module, "BUSY_SHARE", 0.0)
    result = await within(new_probes(*SAID, then="time.sleep(1000)").probe(KEY))
    assert (result.verdict, result.culprit) == (Verdict.SLOW, "sklearn")


async def test_probe_is_forked_where_a_node_can_and_execed_where_it_cannot(
    new_probes: NewProbes, tmp_path: Path
) -> None:
    asked: list[Sequence[str]] = []

    async def fork(imports: Sequence[str], fds: Sequence[int]) -> int:
        asked.append(imports)
        raise Unavailable("FORK_FAILED", "no memory")

    forker: ForkProbe = fork
    assert (await within(new_probes({"result": RESULT}).probe(KEY, forker))).verdict is Verdict.CLEAN
    assert asked == [KEY.imports]
    assert len(tries(tmp_path)) == 1


@pytest.mark.parametrize("user_site", [True, False])
async def test_probe_and_zygote_see_the_users_own_packages_as_kernels_do(
    new_probes: NewProbes, tmp_path: Path, user_site: bool
) -> None:
    probes = new_probes({"result": RESULT})
    settings = replace(probes._settings, user_site=user_site)
    await within(Probes(ProbeTable(tmp_path / "other"), probes._reaper, settings).probe(KEY))
    # What stands for a zygote ends at once, after it has noted its arguments.
    with pytest.raises(Unavailable, match="ZYGOTE_FAILED"):
        await within(Zygote(ZygoteSettings(settings.python, (), user_site=user_site), probes._reaper).start())
    flags = [line.split(" -m ")[0].split()[1:] for line in tries(tmp_path)]
    assert flags == [["-P"] if user_site else ["-P", "-s"]] * 2


def test_users_own_folder_is_one_of_those_that_are_watched_and_may_be_held(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = str(tmp_path / "own")
    monkeypatch.setattr("site.getusersitepackages", lambda: folder)
    for enabled in (True, False):
        monkeypatch.setattr("site.ENABLE_USER_SITE", enabled)
        assert (folder in Environment.here().site_dirs) == (f"{folder}/" in installed_folders()) == enabled


@pytest.mark.parametrize("has_network", [True, False])
async def test_daemon_says_once_if_its_probes_have_a_network(new_probes: NewProbes, has_network: bool) -> None:
    probes = new_probes({"result": {**RESULT, "has_network": has_network}})
    with structlog.testing.capture_logs() as logs:
        for environment in ("e1", "e2"):
            await within(probes.probe(ProbeKey(environment, KEY.base, KEY.imports)))
    assert [entry["event"] for entry in logs].count("probes_have_network") == has_network


async def test_table_is_read_and_written_off_the_event_loop(
    new_probes: NewProbes, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    read, write = ProbeTable.get, ProbeTable.add

    def get(table: ProbeTable, key: ProbeKey) -> ProbeResult | None:
        threads.append(threading.current_thread())
        return read(table, key)

    def add(table: ProbeTable, result: ProbeResult, *, on_disk: bool = True) -> None:
        threads.append(threading.current_thread())
        write(table, result, on_disk=on_disk)

    monkeypatch.setattr(ProbeTable, "get", get)
    monkeypatch.setattr(ProbeTable, "add", add)
    await within(new_probes({"result": RESULT}).probe(KEY))
    assert len(threads) == 2
    assert threading.main_thread() not in threads


async def test_probe_without_an_interpreter_says_so(tmp_path: Path) -> None:
    probes = Probes(ProbeTable(tmp_path), Reaper(), ProbeSettings(str(tmp_path / "nobody"), {}))
    with pytest.raises(Unavailable, match="PROBE_FAILED.*nobody"):
        await probes.probe(KEY)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"v": 2}', '{"v": 1, "base": [], "imports": []}', "\x00\xff"])
def test_table_file_that_is_damaged_counts_as_none(tmp_path: Path, content: str) -> None:
    ProbeTable(tmp_path).add(ProbeResult(KEY, Verdict.CLEAN))
    [path] = tmp_path.glob("e1/*.json")
    assert ProbeTable(tmp_path).get(KEY) == ProbeResult(KEY, Verdict.CLEAN)
    path.write_bytes(content.encode("latin-1"))
    assert ProbeTable(tmp_path).get(KEY) is None


def test_table_keeps_the_newest_sets_and_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looseleaf.services.worker_daemon.probe_table.ROWS_MAX", 3)
    table = ProbeTable(tmp_path)
    for number in range(5):
        table.add(ProbeResult(ProbeKey("e1", frozenset(), (str(number),)), Verdict.CLEAN))
        for path in tmp_path.glob("e1/*.json"):
            # As if each was written a second before the next.
            os.utime(path, (path.stat().st_mtime - 1, path.stat().st_mtime - 1))
    fresh = ProbeTable(tmp_path)
    known = [number for number in range(5) if fresh.get(ProbeKey("e1", frozenset(), (str(number),))) is not None]
    assert known == [2, 3, 4]
    for number in range(ENVIRONMENTS_MAX + 2):
        table.add(ProbeResult(ProbeKey(f"f{number}", frozenset(), ("x",)), Verdict.CLEAN))
    assert len(list(tmp_path.iterdir())) == ENVIRONMENTS_MAX


def test_table_on_a_disk_that_cannot_be_written_still_remembers(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    table = ProbeTable(blocked / "probes")
    table.add(ProbeResult(KEY, Verdict.CLEAN))
    assert table.get(KEY) == ProbeResult(KEY, Verdict.CLEAN)
