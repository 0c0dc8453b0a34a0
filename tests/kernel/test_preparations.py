"""Answers to the page's edit signals."""

from __future__ import annotations

import asyncio
from typing import Any

from looseleaf.kernel.preparations import Preparations


def test_answer_to_a_fault_of_ours_is_a_reply_all_the_same() -> None:
    def broken(_message: Any) -> dict[str, Any]:
        raise UnicodeError("ours")

    content = asyncio.run(Preparations(broken).answer({"source": "x"}))
    assert (content["status"], content["ename"]) == ("error", "BUG")
