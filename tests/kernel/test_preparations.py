"""Answers to the page's edit signals."""

from __future__ import annotations

import asyncio
from typing import Any

from looseleaf.kernel.pages import Pages
from looseleaf.kernel.preparations import LEFT, SUPERSEDED, Preparations


async def _nothing(_content: Any) -> None:
    """Nothing waits to be committed."""


def test_answer_to_a_fault_of_ours_is_a_reply_all_the_same() -> None:
    def broken(_message: Any) -> dict[str, Any]:
        raise UnicodeError("ours")

    content = asyncio.run(Preparations(broken, _nothing).answer({"source": "x"}))
    assert (content["status"], content["ename"]) == ("error", "BUG")


def test_text_that_waits_behind_a_commit_gives_way_to_a_newer_one() -> None:
    async def main() -> list[Any]:
        committed = asyncio.Event()
        looked_at: list[str] = []

        def prepare(message: Any) -> dict[str, Any]:
            looked_at.append(message["source"])
            return {"skipped_reason": ""}

        async def commit(_content: Any) -> None:
            await committed.wait()

        preparations = Preparations(prepare, commit)
        answers = [asyncio.create_task(preparations.answer({"source": text})) for text in "abc"]
        await asyncio.sleep(0)
        committed.set()
        reasons = [(await answer)["skipped_reason"] for answer in answers]
        return [looked_at, reasons]

    looked_at, reasons = asyncio.run(main())
    assert looked_at == ["a", "c"]
    assert reasons == ["", SUPERSEDED, ""]


def test_cell_that_is_left_is_not_prepared_any_more() -> None:
    async def main() -> list[Any]:
        committed = asyncio.Event()

        async def commit(_content: Any) -> None:
            await committed.wait()

        preparations = Preparations(lambda _message: {"skipped_reason": ""}, commit)
        answers = [asyncio.create_task(preparations.answer({"source": text})) for text in "ab"]
        await asyncio.sleep(0)
        left = await preparations.answer({"kind": "blur"})
        committed.set()
        return [left["skipped_reason"], *[(await answer)["skipped_reason"] for answer in answers]]

    assert asyncio.run(main()) == [LEFT, "", SUPERSEDED]


def test_answer_and_page_have_the_state_of_the_preparation() -> None:
    pushed: list[Any] = []
    pages = Pages(lambda page, state: pushed.append((page, state["state"])))
    told = {"worker_id": "w", "prepare_ms": 3.0, "recipe": {"label": "gpu"}}
    preparations = Preparations(lambda _message: told, _nothing, pages)
    reply = asyncio.run(preparations.answer({"source": "x", "cell_id": "c", "page": "p"}))
    assert reply["state"] == {"state": "ready", "cell_id": "c", "prepare_ms": 3.0, "change": 2}
    assert pushed == [("p", "preparing"), ("p", "ready")]
    # Asking changes nothing.
    assert asyncio.run(preparations.answer({"kind": "idle", "page": "p"}))["state"] == reply["state"]
    refused = asyncio.run(preparations.answer({"source": 1}))
    assert (refused["ename"], refused["state"]) == ("FIELD_MALFORMED", reply["state"])
    assert len(pushed) == 2
    left = asyncio.run(preparations.answer({"kind": "blur", "cell_id": "c", "page": "p"}))
    assert left["state"]["state"] == "released" and pushed[2:] == [("p", "released")]
