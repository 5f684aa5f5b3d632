"""Traversals, for the table of cases: against those of CPUs."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import cases
import numpy as np
from mpi4py import MPI

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.runtime import backends, mpi
from mgg_hpc.runtime.backends.cuda.traversal import PLACES
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.traversal import part as parts
from mgg_hpc.traversal import runs
from mgg_hpc.traversal.part import Part
from mgg_hpc.traversal.runs import Run

from .engine import Engine

TOLERANCE = 1e-6  # at which PageRank's iterations end; float32 ranks need not come nearer than some 1e-7
RANK_BOUND = 2e-6  # of the sum of all ranks, which is 1


@contextmanager
def loaded(engine: Engine, graph: Graph) -> Iterator[tuple[Part, Part]]:
    """Yield a graph on a CPU and on the device."""
    mpi.world()
    comm = MPI.COMM_SELF
    host = backends.make(backends.choose_cpu("serial", comm), comm)
    (device,) = engine.backends(World(1))
    with tempfile.TemporaryDirectory(prefix="mgg-traversals-") as folder:
        path = Path(folder) / "graph.h5"
        writer.write(path, graph)
        yield tuple(parts.load(path, comm, each, weights=True) for each in (host, device))
    host.memory.close()


def read_as(engine: Engine, part: Part, **options: Any) -> Part:
    """Return the part on the device with other options of DeviceTraversal.bind."""
    (device,) = engine.backends(World(1))
    return replace(part, engine=device.traversal.bind(part.graph, **options))


def same(found: Iterable[Run], wanted: Iterable[Run]) -> float:
    """Compare results, bit by bit, but for ranks; return their error as a share of the bound."""
    worst = 0.0
    for one, other in zip(found, wanted, strict=True):
        assert one.source == other.source and one.reached == other.reached
        for name, array in other.arrays.items():
            if name == "rank":
                worst = max(worst, float(np.abs(one.arrays[name] - array).sum()) / RANK_BOUND)
                assert worst <= 1, f"ranks are apart by {worst:.3g} times the bound"
            else:
                assert np.array_equal(one.arrays[name], array), f"another {name} from node {one.source}"
    return worst


def ranked(one: Part, other: Part) -> float:
    """Compare PageRank, see `same`."""
    return same(*(runs.pagerank(each, tolerance=TOLERANCE) for each in (one, other)))


def traversals(engine: Engine, case: cases.Case, entry: object, rng: np.random.Generator) -> float:
    """All four over a case, with edges in a drawn place; components of the case with all edges both ways."""
    if not case.nodes:
        return 0.0  # files have a node at least
    engine.seed(int(rng.integers(1 << 60)))
    way = {
        "bottom_up": bool(rng.random() < 0.5),
        "edges": str(rng.choice(PLACES)),
    }
    nodes = rng.permutation(case.nodes)[:2].tolist()
    with loaded(engine, Graph("case", case.indptr, case.indices)) as (host, device):
        other = read_as(engine, device, **way)
        same(runs.bfs(other, nodes), runs.bfs(host, nodes))
        same(runs.sssp(other, nodes), runs.sssp(host, nodes))
        worst = ranked(other, host)
    source, destination = case.edge_list
    ends = np.stack([np.append(source, destination), np.append(destination, source)])
    both = cases.csr(*np.unique(ends, axis=1), case.nodes, case.bounds)
    with loaded(engine, Graph("case", both.indptr, both.indices, directed=False)) as (host, device):
        other = read_as(engine, device, **way)
        same(runs.components(other), runs.components(host))
    return worst
