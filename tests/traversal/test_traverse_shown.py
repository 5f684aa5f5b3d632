"""What `mgg traverse` shows of a run: each number under its own label, times of the slowest rank, sums of all ranks."""

from __future__ import annotations

from types import SimpleNamespace

import h5py
import numpy as np
import pytest

from mgg_hpc.tools import traverse
from mgg_hpc.traversal import runs
from mgg_hpc.traversal.runs import Run


class Ranks:
    """Three ranks, of which this is the second."""

    rank, size = 1, 3

    def __init__(self, first, last):
        self.others = first, last

    def Barrier(self):  # noqa: N802 - mpi4py's name
        pass

    def allgather(self, mine):
        first, last = (each(mine) for each in self.others)
        return [first, mine, last]


def run_of(source=9):
    return Run(source, {}, seconds=0.25, edges=3_000_000, moved=5 << 20, reached=77, steps=8)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_line_for_each_run(ranks):
    part = SimpleNamespace(nodes=1234, comm=SimpleNamespace(size=ranks))
    crossed = ", 5.00 MiB crossed" if ranks > 1 else ""
    took = "250.000 ms, 12.0 million edges/s"
    assert traverse._line(part, run_of()) == f"source 9: {took}, 77 of 1,234 nodes reached, 8 steps{crossed}"
    assert traverse._line(part, run_of(-1)) == f"{took}, 8 steps{crossed}"


def test_a_document_of_all_runs():
    part = SimpleNamespace(name="g", nodes=11, edges=22, directed=True, comm=SimpleNamespace(size=33))
    told = traverse._document(part, "bfs", True, [run_of(), run_of(-1)], threads=44)
    numbers = {"seconds": 0.25, "edges": 3_000_000, "reached": 77, "steps": 8, "bytes": 5 << 20}
    assert told == {
        "format": "mgg-traversal",
        "version": 1,
        "traversal": "bfs",
        "graph": "g",
        "nodes": 11,
        "edges": 22,
        "directed": True,
        "ranks": 33,
        "threads": 44,
        "checked": True,
        "runs": [{"source": 9} | numbers, {"source": None} | numbers],
    }


def test_a_file_has_a_column_and_a_time_for_each_source(tmp_path, rng):
    """In the user's numbering, each array under its name."""
    ids, comm = rng.permutation(5), SimpleNamespace(rank=0, size=1)
    part = SimpleNamespace(comm=comm, ids=ids, bounds=np.array([0, 5]), name="g", graph_uuid="u", uuid="u")
    done = [
        Run(
            source,
            {"parent": 10 * source + np.arange(5), "depth": 100 * source + np.arange(5)},
            source / 8,
            0,
            0,
            0,
            0,
        )
        for source in (3, 4)
    ]
    traverse._write(part, "bfs", tmp_path / "out.h5", done)
    with h5py.File(tmp_path / "out.h5") as file:
        assert file.attrs["source"].tolist() == [3, 4] and file.attrs["seconds"].tolist() == [0.375, 0.5]
        for name in ("parent", "depth"):
            for column, run in enumerate(done):
                assert np.array_equal(file[name][:][ids, column], run.arrays[name])


@pytest.mark.parametrize("mine", [0.5, 2.0, 9.0])
def test_times_are_of_the_slowest_rank_and_bytes_of_all(monkeypatch, mine):
    """Ranks with made-up clocks: the others take 1 and 4 s, and what this one took before does not count."""
    clock = iter([100.0, 100.0 + mine])
    monkeypatch.setattr(runs, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    engine = SimpleNamespace(moved=1000)
    comm = Ranks(lambda given: 1.0 if given == mine else 20, lambda given: 4.0 if given == mine else 300)

    def call():
        engine.moved += 7
        return "found"

    found = runs._timed(SimpleNamespace(engine=engine, comm=comm), call)
    assert found == (max(mine, 4.0), 327, "found")


def test_what_was_reached_is_of_all_ranks():
    part = SimpleNamespace(
        graph=SimpleNamespace(out_degree=np.array([1, 10, 100])),
        comm=Ranks(lambda n: n + 1000, lambda n: n + 20000),
    )
    found = runs._run(part, 5, {"a": 1}, np.array([True, False, True]), 0.5, 6, 7)
    assert found == Run(5, {"a": 1}, 0.5, 3 * 101 + 21000, 6, 3 * 2 + 21000, 7)
