"""Training epochs by each transfer: GCN and GIN of the papers' sizes (OSDI '23, figures 7 to 9).

    python benchmarks/studies/epochs.py rmat:17 --ranks 2 --threads 1 -o epochs.csv -o epochs.png

An epoch is forward with dropout, loss, backward and Adam, as `mgg bench epoch` has it. The systems that MGG is compared
with have stand-ins as far as a training on CPUs can have them: all remote rows of a halo arrive, then all are summed;
and an all-gather by MPI before each sum. All jobs of a model begin with the same weights and draw the same dropout, so
that their first losses must be the same.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import command, run
from harness.plots import bars_by
from harness.ranks import timed
from harness.study import ALL_GATHER, BULK, DIRECT, GET, HALO, ON_CPU, SHOWN, finish, on_ranks, read, start

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph
from mgg_hpc.nn.graph.handle import symmetric_bytes
from mgg_hpc.nn.workspace import row_format
from mgg_hpc.plan.workload import Plan
from mgg_hpc.runtime import backends, mpi
from mgg_hpc.runtime.backends.arguments import Rows
from mgg_hpc.runtime.backends.host.components import aligned_zeros
from mgg_hpc.runtime.backends.host.kernels import HostBackend
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.epoch import Epochs, Shape, job_of, labelled
from mgg_hpc.tools.bench.results import Results
from mgg_hpc.training.job import Job

MODELS = ("gin", "gcn")  # the larger first: OpenSHMEM's heap has the size of the first reservation
FEATURES, CLASSES, DROPOUT = 128, 32, 0.5
APART = 1e-4  # how far first losses may lie apart, relative
WAYS = {"halo": HALO, "bulk": BULK, "direct": DIRECT, "get": GET, "all-gather": ALL_GATHER}
TRANSFERS = {"bulk": "halo", "all-gather": "direct"}  # of the jobs that stand-ins train


class StandIn:
    """A backend that aggregates in another way than the one which does all else."""

    def __init__(self, backend: HostBackend) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)


class Bulk(StandIn):
    """All remote rows of a halo arrive, then all are summed (ROC, DGCL)."""

    def aggregate(self, plan: Plan, op: str, reduce: str, src: Rows, out: Any, **more: Any) -> None:
        self._backend.transfer_only(plan, src)
        self._backend.aggregate(plan, op, reduce, src, out, arrived=True, **more)


class AllGather(StandIn):
    """Every rank gets the rows of all others by MPI, and sums then (NCCL's whole partitions).

    received_bytes: of other ranks' rows, since the beginning.
    """

    def __init__(self, backend: HostBackend, comm: Any) -> None:
        super().__init__(backend)
        self._comm, self._all = comm, aligned_zeros(0)
        self.received_bytes = 0

    def publish(self, rows: Rows) -> None:
        """Do nothing: no rank reads another's rows."""

    def aggregate(self, plan: Plan, op: str, reduce: str, src: Rows, out: Any, **more: Any) -> None:
        """Aggregate over a plan that reads rows through pointers, which lead to the copies."""
        sizes = src.counts * src.format.row_bytes
        if len(self._all) < sizes.sum():
            self._all = aligned_zeros(int(sizes.sum()))
        buffer = sys.modules["mpi4py.MPI"].buffer
        mine = buffer.fromaddress(int(src.addresses[src.rank]), int(sizes[src.rank]))
        self._comm.Allgatherv(mine, [self._all, sizes, sys.modules["mpi4py.MPI"].BYTE])
        self.received_bytes += int(sizes.sum() - sizes[src.rank])
        first = np.cumsum(sizes) - sizes
        copies = replace(src, addresses=(self._all.ctypes.data + first).astype(np.uint64))
        self._backend.aggregate(plan, op, reduce, copies, out, **more)


class Training(Epochs):
    """A job that trains by a way of exchanging. loss: of the last epoch."""

    def __init__(self, way: str, job: Job) -> None:
        made: Any = {"bulk": Bulk, "all-gather": partial(AllGather, comm=job.comm)}.get(way)
        super().__init__(replace(job, backend=made(job.backend)) if made else job)
        self.loss = 0.0

    def epoch(self) -> None:
        """Train for an epoch, and wait for its loss. Collective."""
        self.loss = self.step()

    def crossing_bytes(self) -> int:
        """Train for an epoch, and return the bytes of rows that cross between ranks in it, of all ranks. Collective."""
        backend: Any = self.job.backend
        backend.stream.meter.taken()
        before = getattr(backend, "received_bytes", 0)
        self.epoch()
        moved = backend.stream.meter.taken().remote_bytes
        if isinstance(backend, AllGather):
            moved = backend.received_bytes - before
        return sum(self.job.comm.allgather(moved))


@contextmanager
def written(comm: Any, graph: Graph, folder: Path) -> Iterator[Path]:
    """Write a graph file for all ranks into this folder; it is removed with the context. Collective."""
    made = None
    with mpi.agree(comm):
        if comm.rank == 0:
            made = tempfile.TemporaryDirectory(prefix="mgg-bench-", dir=folder)
            writer.write(Path(made.name) / "graph.h5", graph)
    try:
        yield Path(comm.bcast(made and made.name)) / "graph.h5"
        mpi.barrier(comm)  # after an error another rank may never come
    finally:
        if made is not None:
            made.cleanup()


def trainings(comm: Any, file: Path, shape: Shape, backend: str, threads: int) -> dict[str, Training]:
    """Return a training by each way that a backend of CPUs has. Collective."""
    made = partial(job_of, file, shape, comm, threads=threads, backend=backend)
    jobs = {"halo": made(transfer="halo")}
    pointers = jobs["halo"].backend.capabilities.reaches_peers
    transfers = {way: TRANSFERS.get(way, way) for way in WAYS if way != "halo"}
    jobs |= {way: made(transfer=by) for way, by in transfers.items() if pointers or by != "direct"}
    need = 0
    for job in jobs.values():
        widest = row_format(job.model.widest(job.sparse), job.dtype)
        need += symmetric_bytes(job.layers, np.diff(job.part.bounds), widest, comm.size)
    jobs["halo"].backend.memory.reserve(need + (1 << 20))  # of all: some memory does not grow
    return {way: Training(way, job) for way, job in jobs.items()}


def measure(results: Results, shape: Shape, found: Mapping[str, Training], turns: int) -> None:
    """Add the rows of a model. Raises AssertionError where a first loss differs. Collective."""
    comm = found["halo"].job.comm
    for way, training in found.items():
        training.epoch()
        with mpi.agree(comm):
            if not abs(training.loss - found["halo"].loss) <= APART * abs(found["halo"].loss):
                raise AssertionError(f"{way}: a first loss of {training.loss}, not {found['halo'].loss}")
    crossing = {way: training.crossing_bytes() for way, training in found.items()}
    taken = take_turns({way: partial(timed, comm, training.epoch) for way, training in found.items()}, turns)
    more = {
        WAYS[way]: {
            "cpu_ms": round(median(cpu for _, cpu in each), 4),
            "crossing_bytes": crossing[way],
        }
        for way, each in taken.items()
    }
    ms = {WAYS[way]: [wall for wall, _ in each] for way, each in taken.items()}
    results.compare(ms, more, model=shape.model.upper(), width=shape.hidden)


@command(__doc__)
@click.argument("graph", default=ON_CPU)
@on_ranks()
def main(
    graph: str,
    ranks: int,
    threads: int | None,
    backend: str,
    turns: int,
    files: Sequence[Path],
) -> int | None:
    graphs.check(graph)
    if (code := start(ranks)) is not None:
        return code
    comm, whole = mpi.world(), read(graph)
    chosen, threads = backends.choose_cpu(backend, comm).name, threads or mpi.threads_share(comm)
    results = Results("epochs", graph=whole.name, nodes=whole.nodes, edges=whole.edges)
    results.same |= {"backend": chosen, "ranks": comm.size, "threads_per_rank": threads}
    for model in MODELS:
        shape = Shape.of(model, FEATURES, None, CLASSES, DROPOUT)
        folder = files[0].absolute().parent if files else Path.cwd()
        with written(comm, labelled(whole, shape), folder) as file:
            found = trainings(comm, file, shape, chosen, threads)
            measure(results, shape, found, turns)
        for training in found.values():
            training.job.backend.memory.close()
    results.rows.sort(key=lambda row: row["model"])
    finish(results, files, bars_by("model"), ("model", *SHOWN[1:]))
    return None


if __name__ == "__main__":
    run(main)
