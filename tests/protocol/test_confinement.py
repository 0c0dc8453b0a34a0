from __future__ import annotations

import pytest

from looseleaf.errors import InvalidArgument
from looseleaf.protocol.confinement import Confinement


@pytest.mark.parametrize(
    "wanted", [Confinement(), Confinement(1000, 100, (100, 4), "/home/é", "é", 64, 9, "/sys/fs/cgroup/x/cgroup.procs")]
)
def test_confinement_is_read_as_it_was_written(wanted: Confinement) -> None:
    assert Confinement.parse(wanted.text()) == wanted


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", Confinement().text().replace('"uid": 0', '"uid": "root"')])
def test_confinement_that_is_not_understood_confines_nobody(text: str) -> None:
    with pytest.raises(InvalidArgument, match="FIELD_MALFORMED"):
        Confinement.parse(text)
