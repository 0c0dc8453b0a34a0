"""Answers to the page's edit signals."""

from __future__ import annotations

import asyncio
from typing import Any

from looseleaf.kernel.preparations import SUPERSEDED, Preparations


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
