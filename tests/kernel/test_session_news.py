"""What is told of a session, once."""

from __future__ import annotations

from looseleaf.kernel.session_news import PROBLEMS_TOLD_MAX, SessionNews


def test_news_are_told_once_and_a_problem_only_ever_once() -> None:
    news = SessionNews()
    news.checked_out(3, 9)
    news.not_followed(["no folder /x", "no folder /x"])
    text = news.take()
    assert "back to version 3" in text and "checkout 8`" in text and text.count("no folder /x") == 1
    assert news.take() == ""
    news.not_followed(["no folder /x"])
    assert news.take() == ""


def test_problems_are_bounded() -> None:
    news = SessionNews()
    news.not_followed(f"problem {number}" for number in range(PROBLEMS_TOLD_MAX + 5))
    assert len(news.take().splitlines()) == PROBLEMS_TOLD_MAX


def test_newest_move_counts() -> None:
    news = SessionNews()
    news.checked_out(3, 9)
    news.fell_back(4, 2, ["x = 1"])
    text = news.take()
    assert "version 4" in text and "x = 1" in text and "version 3" not in text
