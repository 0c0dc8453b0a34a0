from __future__ import annotations

from dataclasses import replace

import pytest

from looseleaf.errors import Unavailable
from looseleaf.ids import Version
from looseleaf.services.worker_daemon.execution_losses import FailedCell

LOST = Unavailable("WORKER_LOST", "its process ended")
BEFORE = FailedCell(Version(4), Version(0), unanswered=False, handed_over=False, ended=False)
RAN = replace(BEFORE, handed_over=True)


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        (BEFORE, "(before the cell ran); nothing was run, the variables are those of version 4; run the cell again"),
        (RAN, "(while the cell ran); this cell's changes are lost, the variables are those of version 4"),
        (replace(RAN, ended=True), "(while its changes were being saved); this cell's changes are lost, the variables"),
        (replace(RAN, ended=True, unanswered=True), "the next cell sees them if so, else the variables are those of"),
        (replace(RAN, ended=True, committed=Version(5)), "its changes had been saved already (version 5)"),
    ],
)
def test_loss_tells_what_happened_and_which_state_is_valid(cell: FailedCell, told: str) -> None:
    text = cell.loss(LOST)
    assert text.startswith("its process ended") and told in text
    assert ("lost" in text) == (cell.handed_over and not cell.committed and not cell.unanswered)
