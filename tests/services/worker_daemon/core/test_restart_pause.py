from __future__ import annotations

import pytest

from looseleaf.services.worker_daemon.core.restart_pause import RestartPause


@pytest.mark.parametrize("lived_s", [0.0, 0.5])
def test_what_ends_soon_again_and_again_waits_longer_each_time(lived_s: float) -> None:
    pause = RestartPause(0.5, 4.0, lived_s_min=60.0)
    assert [pause.after(lived_s) for _ in range(7)] == [0.0, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


def test_what_lived_well_is_started_at_once() -> None:
    pause = RestartPause(0.5, 4.0, lived_s_min=60.0)
    assert [pause.after(lived_s) for lived_s in (0, 0, 0, 60.0, 0, 99.0)] == [0.0, 0.5, 1.0, 0.0, 0.5, 0.0]
