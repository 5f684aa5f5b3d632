"""Training epochs by each transfer, on CPUs: GCN and GIN of the sizes in the paper (OSDI '23, figures 7 to 9).

An epoch is what `mgg bench epoch` times: forward with dropout, loss, backward, Adam. All jobs of a model begin with the
same weights and draw the same dropout, so that their first losses must be the same; then they take turns. The systems
that MGG is compared with have stand-ins as far as a training on CPUs can have them (`stand_ins`).
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ...data import writer
from ...data.graph import Graph
from ...nn.graph.handle import symmetric_bytes
from ...nn.workspace import row_format
from ...runtime import backends, exit_code, mpi
from ...runtime.turns import take_turns
from ...training.job import Job
from ...training.trainer import Trainer
from ..bench.epoch import jobs, shape
from ..bench.epoch.shape import MODELS, UNTRAINED_APART, Shape
from ..bench.harness import graphs, machine, timing, watch
from ..bench.overlap.cpu import timed
from . import cpu, names, plot
from .stand_ins import AllGather, Bulk
from .table import Files, Table

FEATURES, CLASSES, DROPOUT = 128, 32, 0.5  # as `mgg bench epoch`
TRAINED = ("gcn", "gin")
# The transfers of the jobs that stand-ins train; other ways have their own names.
TRANSFERS = {"bulk": "halo", "all-gather": "direct"}
SHOWN = ("model", *(column for column in cpu.SHOWN if column != "width_values"))


class Training:
    """A job that trains by a way of exchanging. loss: of the last epoch."""

    def __init__(self, way: str, job: Job) -> None:
        if way == "bulk":
            job = replace(job, backend=Bulk(job.backend))  # type: ignore[arg-type]
        if way == "all-gather":
            job = replace(job, backend=AllGather(job.backend, job.comm))  # type: ignore[arg-type]
        self.job, self.trainer = job, Trainer(job, job.graph())
        self.epochs, self.loss = 0, 0.0

    def epoch(self) -> None:
        """Train for an epoch, and wait for its loss. Collective."""
        self.epochs += 1
        self.trainer.step(self.epochs)
        self.loss = self.trainer.loss()

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


def ways_of(backend: backends.Chosen) -> list[str]:
    """Return the ways of exchanging that a backend of CPUs can train by; the first is MGG's."""
    return list(names.EPOCHS) if backend.name != "shmem" else ["halo", "bulk", "get"]


@contextmanager
def written(comm: Any, graph: Graph, files: Files) -> Iterator[Path]:
    """Write a graph file beside the table, where all ranks find it; it is removed with the context. Collective."""
    with mpi.agree(comm):
        made = (
            tempfile.TemporaryDirectory(prefix="mgg-study-", dir=files.csv.absolute().parent)
            if comm.rank == 0
            else None
        )
        if made is not None:
            writer.write(Path(made.name) / "graph.h5", graph)
    try:
        yield Path(comm.bcast(made and made.name)) / "graph.h5"
    finally:
        mpi.barrier(comm)
        if made is not None:
            made.cleanup()


def trainings(
    comm: Any, file: Path, sizes: Shape, backend: backends.Chosen, threads: int
) -> dict[str, Training]:
    """Return a training by each way. Collective."""
    built = {
        way: jobs.built(
            file, sizes, comm, threads=threads, backend=backend.name, transfer=TRANSFERS.get(way, way)
        )
        for way in ways_of(backend)
    }
    need = 0
    for job in built.values():
        widest = row_format(job.model.widest(job.sparse), job.dtype)
        counts = job.part.bounds[1:] - job.part.bounds[:-1]
        need += symmetric_bytes(job.layers, counts, widest, comm.size)
    built["halo"].backend.memory.reserve(need + (1 << 20))  # of all: some memory does not grow
    return {way: Training(way, job) for way, job in built.items()}


def measure(
    comm: Any, found: Mapping[str, Training], turns: int
) -> tuple[dict[str, list[float]], dict[str, float], dict[str, int]]:
    """Return the slowest rank's ms of each turn, the busiest processors' ms, and the bytes that cross in an epoch.

    Raises AssertionError where a first loss differs. Collective.
    """
    for way, training in found.items():
        training.epoch()
        with mpi.agree(comm):
            first = found["halo"].loss
            if not abs(training.loss - first) <= UNTRAINED_APART * abs(first):
                raise AssertionError(f"{way}: its first loss is {training.loss}, and {first} with a halo")
    crossing = {way: training.crossing_bytes() for way, training in found.items()}
    taken = take_turns({way: partial(timed, comm, training.epoch) for way, training in found.items()}, turns)
    ms = {way: [wall for wall, _ in each] for way, each in taken.items()}
    processor = {way: timing.spread([worked for _, worked in each])["median"] for way, each in taken.items()}
    return ms, processor, crossing


def add(table: Table, sizes: Shape, found: Mapping[str, Training], turns: int) -> None:
    """Measure a model, and add its rows. Collective."""
    halo = found["halo"].job
    ms, processor, crossing = measure(halo.comm, found, turns)
    for way, taken in ms.items():
        table.add(
            names.EPOCHS[way],
            timing.spread(taken),
            len(taken),
            timing.ratios(taken, ms["halo"])["median"],
            model=sizes.model.upper(),
            width_values=sizes.hidden,
            processor_ms=round(processor[way], 4),
            crossing_bytes=crossing[way],
        )


def run(request: cpu.Request) -> int:
    """Measure both models on all ranks, which must all call this; rank 0 prints and writes. Raises InputError."""
    comm = mpi.world()
    with mpi.agree(comm):
        request.files.check()
        graph = graphs.read(request.graph)
    backend = backends.choose_cpu(request.backend, comm)
    threads = request.threads or mpi.threads_share(comm)
    table = Table("epochs", {})
    table.same = {
        "graph": graph.name,
        "nodes": graph.nodes,
        "edges": graph.edges,
        "device": machine.describe()["cpu"],
        "backend": backend.name,
        "ranks": comm.size,
        "threads_per_rank": threads,
    }
    for model in reversed(
        TRAINED
    ):  # the larger first: OpenSHMEM's heap has the size of what is asked for first
        hidden, layers, heads = MODELS[model]
        sizes = Shape(FEATURES, hidden, CLASSES, DROPOUT, model, layers, heads)
        with (
            written(comm, shape.labelled(graph, sizes), request.files) as file,
            watch.cell(graph.name, model),
        ):
            found = trainings(comm, file, sizes, backend, threads)
            add(table, sizes, found, request.turns)
        for training in found.values():
            training.job.backend.memory.close()
    table.rows.sort(key=lambda row: TRAINED.index(row["model"].lower()))
    if comm.rank == 0:
        table.finish(request.files, plot.EPOCHS, SHOWN)
    exit_code.record(0)
    return 0
