"""How many threads a rank takes: what was asked, else the first of OMP_NUM_THREADS, else its share of the cores."""

from __future__ import annotations

import pytest
from mpi4py import MPI

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import mpi


@pytest.mark.parametrize(
    ("given", "asked", "wanted"),
    [("3", 0, 3), ("3", 5, 5), (" 2 ,4", 0, 2), ("", 0, None), (None, 0, None), ("", 7, 7)],
)
def test_threads_are_those_asked_or_set_or_the_share(monkeypatch, given, asked, wanted):
    if given is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    assert mpi.threads(MPI.COMM_SELF, asked) == (wanted or mpi.threads_share(MPI.COMM_SELF))


@pytest.mark.parametrize("given", ["0", "-1", "two", "1.5", "0,4"])
@pytest.mark.parametrize("asked", [0, 2])
def test_what_is_no_number_of_threads_is_named(monkeypatch, given, asked):
    monkeypatch.setenv("OMP_NUM_THREADS", given)
    with pytest.raises(
        InputError, match=f"OMP_NUM_THREADS='{given.partition(',')[0]}' is not a number of threads"
    ):
        mpi.threads(MPI.COMM_SELF, asked)
