"""Tests of what runs on several ranks, with any MPI."""

# ruff: noqa: F811 - fixtures that take a fixture which is imported

from __future__ import annotations

import dataclasses
import functools
import signal
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from exchanged import GEOMETRY
from ranks import (  # noqa: F401
    comm,
    no_segments_left,
    pytest_collection_modifyitems,
    pytest_runtest_logreport,
    pytest_sessionfinish,
    pytest_sessionstart,
)

from mgg_hpc.__main__ import main
from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.runtime import row_costs, signals
from mgg_hpc.runtime.backends.arguments import Options
from mgg_hpc.runtime.backends.host.kernels import SharedBackend


@dataclasses.dataclass
class Outcome:
    """Exit codes and texts of all ranks."""

    codes: set[int]
    out: list[str]
    err: list[str]

    def refused(self) -> str:
        """Check that all ranks ended with 2 and the first alone wrote one line; returns the line without its prefix."""
        assert self.codes == {2}
        assert self.err[1:] == [""] * (len(self.err) - 1)
        assert self.err[0].startswith("mgg: error: ") and self.err[0].count("\n") == 1
        return self.err[0].removeprefix("mgg: error: ").strip()


@pytest.fixture(scope="session", autouse=True)
def one_measurement():
    """Choose all transfers of a backend by the first costs that were measured, so that runs can be compared."""
    measure, kept = row_costs.measure, {}

    def measured(comm, backend):
        return kept.setdefault((type(backend), comm.size), measure(comm, backend))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_costs, "measure", measured)
        yield


def new_folder(comm, tmp_path_factory) -> Path:
    """Make a folder that all ranks see."""
    return Path(comm.bcast(str(tmp_path_factory.mktemp("job")) if comm.rank == 0 else None))


@pytest.fixture
def folder(comm, tmp_path_factory) -> Path:
    """A new folder that all ranks see; the ranks leave it together."""
    yield new_folder(comm, tmp_path_factory)
    comm.Barrier()


@pytest.fixture(scope="module")
def stored(comm, tmp_path_factory) -> Callable[[str, Graph], Path]:
    """Write a graph under a name, once for all ranks and tests of a module; returns its path."""
    folder = new_folder(comm, tmp_path_factory)

    def stored(name: str, graph: Graph) -> Path:
        arrays = (each for each in vars(graph).values() if isinstance(each, np.ndarray))
        drawn = functools.reduce(lambda mark, each: zlib.crc32(each.tobytes(), mark), arrays, 0)
        path = folder / str(drawn) / f"{name}.h5"  # a test may run again with another seed
        if comm.rank == 0 and not path.exists():
            path.parent.mkdir(exist_ok=True)
            writer.write(path, graph)
        comm.Barrier()
        return path

    return stored


@pytest.fixture
def backend(comm):
    """The ranks' backend over shared memory."""
    made = SharedBackend(comm, Options(GEOMETRY, threads=1))
    yield made
    made.memory.close()


@pytest.fixture
def first(comm):
    """Do something on rank 0 only, after all ranks have come and before any goes on."""

    def first(action: Callable[[], object]) -> None:
        comm.Barrier()
        if comm.rank == 0:
            action()
        comm.Barrier()

    return first


@pytest.fixture
def listening(monkeypatch):
    """Handlers of signals are as before when the test has ended, and no signal has come."""
    monkeypatch.setattr(signals, "_first", [])
    before = {number: signal.getsignal(number) for number in signals.ASKING}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def mgg(comm, capsys, listening):
    """Run a command on all ranks."""

    def mgg(*arguments: object) -> Outcome:
        capsys.readouterr()
        comm.Barrier()
        code = main([str(argument) for argument in arguments])
        comm.Barrier()
        out, err = capsys.readouterr()
        return Outcome(set(comm.allgather(code)), comm.allgather(out), comm.allgather(err))

    return mgg
