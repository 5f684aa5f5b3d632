"""Tests of what runs on several ranks, with any MPI."""

# ruff: noqa: F811 - fixtures that take a fixture which is imported

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest
from ranks import (  # noqa: F401
    comm,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_sessionstart,
)

from mgg_hpc.__main__ import main


@dataclasses.dataclass
class Outcome:
    """Exit codes and texts of all ranks."""

    codes: set[int]
    out: list[str]
    err: list[str]


@pytest.fixture
def folder(comm, tmp_path_factory) -> Path:
    """A new folder that all ranks see; the ranks leave it together."""
    yield Path(comm.bcast(str(tmp_path_factory.mktemp("job")) if comm.rank == 0 else None))
    comm.Barrier()


@pytest.fixture
def first(comm):
    """Do something on rank 0 only, before any rank goes on."""

    def first(action: Callable[[], object]) -> None:
        if comm.rank == 0:
            action()
        comm.Barrier()

    return first


@pytest.fixture
def mgg(comm, capsys):
    """Run a command on all ranks."""

    def mgg(*arguments: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        comm.Barrier()
        out, err = capsys.readouterr()
        return Outcome(set(comm.allgather(code)), comm.allgather(out), comm.allgather(err))

    return mgg
