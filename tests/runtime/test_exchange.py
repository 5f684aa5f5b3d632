"""The protocol of halos between ranks that are out of each other's reach."""

from __future__ import annotations

import programs
import pytest
from builds import made


@pytest.mark.slow
def test_no_acknowledgement_is_lost():
    """Rows that arrive while nobody calls the transport are acknowledged all the same."""
    ended = programs.run(made("acknowledged") / "acknowledged")
    assert (ended.returncode, ended.stdout) == (0, "done\n")
