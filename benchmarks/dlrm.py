"""Embedding look-ups of DLRM, against what DLRM, TorchRec and torch do (OSDI '23, section 7.3).

    python benchmarks/dlrm.py lookup --dims 16,64,128
    python benchmarks/two_hosts.py --rate 1gbit benchmarks/dlrm.py lookup
    python benchmarks/dlrm.py alone
    python benchmarks/dlrm.py read --rows 10000000
    python benchmarks/dlrm.py large --size 20G --memory 2G --folder /scratch

lookup: 26 features of a batch, one index each, drawn by Zipf's law, over tables of all ranks. "whole tables" has each
table on one rank and sends pooled vectors (DLRM); "rows, sums" sends indices to the owners of rows and adds
partial sums (TorchRec's row-wise sharding). Both pool all of a rank's tables by one `torch.embedding_bag`. Results are
compared. ``crossing_bytes`` and ``messages`` are of all ranks together, in a call.

With --device cuda rows lie on GPUs, and lookup times mgg alone.

alone: one process against 26 torch.nn.EmbeddingBag(sparse=True) and SGD. read: rows of generated logs that a rank
parses in a second, and how much its memory grows. large: steps of training a table that is larger than memory, whose
rows of the most reads in other batches are near; ``peak_mib`` is the peak of the largest rank, all of Python included,
``hit_rate`` the share of the rows read that were in memory. Other rows are read from a file, which the page cache may
hold.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from harness import options, run
from harness.processes import peak_from_now, status
from harness.results import TIMES, Results, output_files
from harness.workers import workspace
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from mgg_hpc import sizes
from mgg_hpc.cli.options import together
from mgg_hpc.data.clicks.criteo import WORDS, read_criteo
from mgg_hpc.data.clicks.generate import draw_clicks, write_text, zipf
from mgg_hpc.errors import InputError
from mgg_hpc.nn.embedding.collection import ShardedEmbeddingBagCollection, TableConfig
from mgg_hpc.nn.embedding.optimizers import SGD, RowWiseAdagrad
from mgg_hpc.runtime import launch, mpi
from mgg_hpc.runtime.exchange import send
from mgg_hpc.runtime.timing import interleaved

OURS, TABLES, ROWS = "mgg", "whole tables (DLRM)", "rows, sums (TorchRec)"
EXPONENT = 1.05  # of Zipf's law
FACTOR = 1_000_003  # a prime: the places of Zipf's law times it, modulo the rows, are a permutation
COUNTED = 200  # batches whose reads are the scores of rows


def batches(bags: int, rows: int, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield indices [26, bags], others each time."""
    rng = np.random.default_rng(seed)
    while True:
        yield zipf(rng.random((WORDS, bags)), np.full(bags, rows), EXPONENT) * FACTOR % rows


def collection(rows: int, dim: int, **how: Any) -> ShardedEmbeddingBagCollection:
    """Return the tables."""
    return ShardedEmbeddingBagCollection(
        [TableConfig(f"t{each}", rows, dim, [f"f{each}"]) for each in range(WORDS)], **how
    )


def features(ids: NDArray[np.int64]) -> dict[str, tuple[Tensor, Tensor]]:
    """Return a batch of a collection."""
    one = torch.ones(ids.shape[1], dtype=torch.int64)
    return {f"f{table}": (torch.from_numpy(each), one) for table, each in enumerate(ids)}


class Baselines:
    """Look-ups over MPI with torch's kernels, and what crosses between ranks in a call."""

    def __init__(self, comm: Any, tables: ShardedEmbeddingBagCollection, rows: int, dim: int) -> None:
        self.comm, self.rows, self.dim = comm, rows, dim
        (self.sharded,) = tables.rows.values()
        self.own = self.sharded.weight.detach().cpu().clone().contiguous()
        every = [self.sharded.whole(table * rows, (table + 1) * rows) for table in range(WORDS)]
        self.held = np.arange(WORDS) * comm.size // WORDS  # rank of each table
        self.whole = torch.cat(
            [each for each, rank in zip(every, self.held, strict=True) if rank == comm.rank]
        )
        self.crossing = {TABLES: 0, ROWS: 0}

    def by_tables(self, ids: NDArray[np.int64]) -> Tensor:
        """Return pooled vectors [26, b, dim]: indices to the tables' ranks, and pooled vectors back."""
        size, bags = self.comm.size, ids.shape[1]
        tables = np.bincount(self.held, minlength=size)
        mine = int(tables[self.comm.rank])
        came = send(self.comm, ids.reshape(-1), tables * bags).reshape(size, mine, bags)
        local = came + (np.arange(mine) * self.rows)[:, None]
        out = torch.nn.functional.embedding_bag(
            torch.from_numpy(local.reshape(-1)), self.whole, torch.arange(local.size), mode="sum"
        )
        back = send(self.comm, out.numpy(), np.full(size, mine * bags))
        self.crossing[TABLES] = (WORDS - mine) * bags * (8 + 4 * self.dim)
        return torch.from_numpy(back).reshape(WORDS, bags, self.dim)

    def by_rows(self, ids: NDArray[np.int64]) -> Tensor:
        """Return pooled vectors [26, b, dim]: indices to the rows' owners, whose partial sums are added."""
        from mpi4py import MPI

        comm, bounds, bags = self.comm, self.sharded.bounds, ids.size
        rows = (ids + (np.arange(WORDS) * self.rows)[:, None]).reshape(-1)
        owner = np.searchsorted(bounds, rows, side="right") - 1
        order, counts = np.argsort(owner, kind="stable"), np.bincount(owner, minlength=comm.size)
        lengths = np.zeros((comm.size, bags), np.int64)
        lengths[owner, np.arange(bags)] = 1
        came = send(comm, rows[order], counts) - bounds[comm.rank]
        many = send(comm, lengths.reshape(-1), np.full(comm.size, bags))
        offsets = torch.from_numpy(np.cumsum(many) - many)
        partial_sums = torch.nn.functional.embedding_bag(
            torch.from_numpy(came), self.own, offsets, mode="sum"
        ).numpy()
        out = np.empty((bags, self.dim), np.float32)
        comm.Reduce_scatter_block(partial_sums, out, MPI.SUM)
        others = comm.size - 1
        self.crossing[ROWS] = int(counts.sum() - counts[comm.rank]) * 8 + others * bags * (8 + 4 * self.dim)
        return torch.from_numpy(out).reshape(WORDS, -1, self.dim)


@click.group(help=__doc__)
def main() -> None: ...


def on_ranks(function: Callable[..., None]) -> Any:
    """Make a command of a function of a communicator, which starts its ranks where no launcher has."""

    @main.command()
    @click.option("--ranks", type=click.IntRange(1), default=2, help="Ranks to start without a launcher.")
    @wraps(function)
    def started(ranks: int, **given: Any) -> None:
        if ranks > 1 and not mpi.launched():
            sys.exit(launch.process_launch(ranks, sys.argv))
        comm = mpi.world()
        torch.set_num_threads(mpi.threads(comm))
        function(comm, **given)

    return started


BATCH = click.option(
    "--batch", type=click.IntRange(1), default=2048, help="Rows of a batch, on all ranks together."
)
TABLE_OPTIONS = together(
    options.numbers("dims", "16,64,128", "Columns of the tables."),
    click.option("--rows", type=click.IntRange(2), default=50_000, help="Of each of 26 tables."),
    BATCH,
    options.turns(15),
    click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", help="cuda: a GPU a rank."),
    output_files(pictures=False),
)


@on_ranks
@TABLE_OPTIONS
def lookup(
    comm: Any, dims: list[int], rows: int, batch: int, turns: int, device: str, files: tuple[Path, ...]
) -> None:
    """Time look-ups on several ranks."""
    results = Results(
        "dlrm lookup", device=device, ranks=comm.size, rows=rows, batch=batch, exponent=EXPONENT
    )
    for dim in dims:
        tables = collection(rows, dim, device=device, comm=comm)
        _lookup(comm, results, tables, dim, turns)
        tables.close()
    if comm.rank == 0:
        results.write(files)
        results.show("dim", *TIMES, "crossing_bytes", "messages")


def _lookup(comm: Any, results: Results, tables: ShardedEmbeddingBagCollection, dim: int, turns: int) -> None:
    rows, bags = results.same["rows"], results.same["batch"] // comm.size
    baselines = Baselines(comm, tables, rows, dim)
    sharded, meter = baselines.sharded, baselines.sharded.backend.stream.meter

    @torch.no_grad()
    def ours(ids: NDArray[np.int64]) -> Tensor:
        found: Tensor = tables.stacked(features(ids))
        sharded.backend.stream.finish()
        return found

    calls = {OURS: ours, ROWS: baselines.by_rows, TABLES: baselines.by_tables}
    drawn = batches(bags, rows, comm.rank)
    ids = next(drawn)
    found = [call(ids).cpu() for call in calls.values()]
    assert all(torch.equal(each, found[0]) for each in found)
    for call in calls.values():
        call(next(drawn))
    if results.same["device"] != "cpu":
        calls = {OURS: ours}
    meter.taken()
    ours(ids)
    meter.settle()
    distinct = np.unique(ids + (np.arange(WORDS) * rows)[:, None])
    remote = int(((distinct < sharded.first) | (distinct >= sharded.last)).sum())
    mine = meter.remote_bytes if sharded.pointers else remote * (8 + 4 * dim)
    crossing, others = {**baselines.crossing, OURS: mine}, comm.size * (comm.size - 1)
    messages = {OURS: 0 if sharded.pointers else 2 * others, ROWS: 3 * others, TABLES: 2 * others}
    more = {
        name: {"crossing_bytes": comm.allreduce(crossing[name]), "messages": messages[name]} for name in calls
    }
    upcoming = {name: batches(bags, rows, 100 + comm.rank) for name in calls}  # the same for all variants

    def timed(name: str) -> float:
        mine = next(upcoming[name])
        mpi.barrier(comm)
        began = time.perf_counter()
        calls[name](mine)
        return float(max(comm.allgather(1e3 * (time.perf_counter() - began))))

    results.compare(interleaved({name: partial(timed, name) for name in calls}, turns), more, dim=dim)


@main.command()
@TABLE_OPTIONS
@options.threads()
def alone(
    dims: list[int],
    rows: int,
    batch: int,
    turns: int,
    device: str,
    threads: int | None,
    files: tuple[Path, ...],
) -> None:
    """Time one process: look-ups, and look-ups with their backward and update."""
    torch.set_num_threads(threads or torch.get_num_threads())
    how = {"device": device, "rows": rows, "batch": batch, "exponent": EXPONENT}
    results = Results("dlrm alone", **how, threads=torch.get_num_threads())
    for dim in dims:
        tables = collection(rows, dim, optimizer=SGD(0.01), device=device)
        _alone(results, tables, dim, turns)
        tables.close()
    results.write(files)
    results.show("dim", *TIMES)


def _alone(results: Results, tables: ShardedEmbeddingBagCollection, dim: int, turns: int) -> None:
    device, rows, batch = (results.same[name] for name in ("device", "rows", "batch"))
    finish = next(iter(tables.rows.values())).backend.stream.finish
    theirs = [torch.nn.EmbeddingBag(rows, dim, mode="sum", sparse=True, device=device) for _ in range(WORDS)]
    for table, weight in zip(theirs, tables.gathered().values(), strict=True):
        table.load_state_dict({"weight": weight})
    optimizer = torch.optim.SGD([each.weight for each in theirs], lr=0.01)
    offsets = torch.arange(batch, device=device)
    gradient = torch.randn(WORDS, batch, dim, device=device)

    def torch_forward(given: Any) -> list[Tensor]:
        return [each(ids.to(device), offsets) for each, (ids, _) in zip(theirs, given.values(), strict=True)]

    def torch_step(given: Any) -> None:
        optimizer.zero_grad()
        torch.autograd.backward(torch_forward(given), list(gradient))
        optimizer.step()

    calls: dict[str, Callable[[Any], object]] = {
        "forward: mgg": torch.no_grad()(tables.forward),
        "forward: torch": torch.no_grad()(torch_forward),
        "step: mgg": lambda given: tables.stacked(given).backward(gradient),
        "step: torch": torch_step,
    }
    drawn = {name: batches(batch, rows, 5) for name in calls}

    def timed(name: str) -> float:
        given = features(next(drawn[name]))
        began = time.perf_counter()
        calls[name](given)
        finish()
        return 1e3 * (time.perf_counter() - began)

    for name in (*calls, *calls):
        timed(name)
    taken = interleaved({name: partial(timed, name) for name in calls}, turns)
    for part in ("forward", "step"):
        results.compare({name: ms for name, ms in taken.items() if name.startswith(part)}, dim=dim)
    for mine, table in zip(tables.gathered().values(), theirs, strict=True):
        torch.testing.assert_close(mine, table.weight.cpu(), rtol=1e-4, atol=1e-5)


@on_ranks
@click.option("--rows", type=click.IntRange(1), default=10_000_000, help="Of all ranks' logs together.")
@output_files(pictures=False)
def read(comm: Any, rows: int, files: tuple[Path, ...]) -> None:
    """Time the reader; each rank reads a log of its own."""
    mine = rows // comm.size
    with workspace() as folder:
        path = folder / "day"
        write_text(path, draw_clicks(mine, seed=comm.rank))
        size = path.stat().st_size
        for _ in zip(read_criteo(path), range(2), strict=False):
            pass
        mpi.barrier(comm)
        peak_from_now()
        before, began = status("VmHWM"), time.perf_counter()
        found = sum(len(block.label) for block in read_criteo(path))
        seconds = max(comm.allgather(time.perf_counter() - began))
        grown = max(comm.allgather(status("VmHWM") - before))
    assert found == mine
    results = Results("dlrm read", ranks=comm.size, rows=rows)
    shown = {"rows_per_s": round(mine * comm.size / seconds), "mib": size >> 20, "grown_mib": grown >> 20}
    results.add("read", [1e3 * seconds], **shown)
    if comm.rank == 0:
        results.write(files)
        results.show(*shown)


@on_ranks
@click.option("--size", default="20G", help="Of the table.")
@click.option("--memory", default="2G", help="Memory of each rank: of the process, and of rows of the table.")
@click.option("--dim", type=click.IntRange(1), default=128, help="Columns of the table.")
@BATCH
@click.option("--folder", default=tempfile.gettempdir(), help="For the scratch files.", show_default=True)
@options.turns(200)
@output_files(pictures=False)
def large(
    comm: Any, size: str, memory: str, dim: int, batch: int, folder: str, turns: int, files: tuple[Path, ...]
) -> None:
    """Train a table whose rows are on disk, but for those that are read most often."""
    rows, room = sizes.parse(size) // (4 * dim), sizes.parse(memory)
    bags, mine = batch // comm.size, slice(rows * comm.rank // comm.size, rows * (comm.rank + 1) // comm.size)
    # Counts of reads and slots of all rows; distinct rows of a batch, in several places; what came before.
    near = room - status("VmRSS") - 8 * (mine.stop - mine.start) - 10 * bags * WORDS * 4 * dim
    if near <= 0:
        raise InputError(f"--memory {memory} is too little: the process alone takes that much")
    counts = np.zeros(mine.stop - mine.start, np.int32)
    for other in range(comm.size):
        for _, ids in zip(range(COUNTED), batches(bags, rows, 100 + other), strict=False):
            own = ids[(ids >= mine.start) & (ids < mine.stop)] - mine.start
            np.add.at(counts, own, 1)
    began = time.perf_counter()
    tables = ShardedEmbeddingBagCollection(
        [TableConfig("t", rows, dim, [f"f{each}" for each in range(WORDS)])],
        optimizer=RowWiseAdagrad(0.1),
        near=min(comm.allgather(near)),
        folder=folder,
        score={"t": lambda first, last: counts[first - mine.start : last - mine.start]},
        comm=comm,
    )
    made = max(comm.allgather(time.perf_counter() - began))
    (sharded,) = tables.rows.values()
    upcoming, losses, taken = batches(bags, rows, comm.rank), list[float](), list[float]()
    for _ in range(turns):
        ids = next(upcoming)
        y = torch.from_numpy((ids * 2654435761 >> 9 & 1).sum(0) * 2 > WORDS).float()  # by bits of the indices
        mpi.barrier(comm)
        began = time.perf_counter()
        loss = bce(tables.stacked(features(ids)).mean(2).sum(0), y, reduction="sum") / batch
        loss.backward()
        taken.append(float(max(comm.allgather(1e3 * (time.perf_counter() - began)))))
        losses.append(float(sum(comm.allgather(float(loss.detach())))))
    read = [sum(comm.allgather(each["rows"])) for each in sharded.tiers.stats().values()]
    peak, tenth = max(comm.allgather(status("VmHWM"))), max(1, turns // 10)
    how = {"rows": rows, "dim": dim, "batch": batch, "exponent": EXPONENT, "counted": COUNTED}
    results = Results("dlrm large", ranks=comm.size, **how)
    shown = {
        "size_mib": 4 * rows * dim >> 20,
        "memory_mib": room >> 20,
        "peak_mib": peak >> 20,
        "hit_rate": read[0] / sum(read),
        "file_rows": round(sum(read[1:]) / turns),
        "first_loss": float(np.mean(losses[:tenth])),
        "last_loss": float(np.mean(losses[-tenth:])),
        "made_s": made,
    }
    results.add("steps", taken, **shown)
    tables.close()
    if comm.rank == 0:
        results.write(files)
        results.show(*TIMES, *shown)


if __name__ == "__main__":
    run(main)
