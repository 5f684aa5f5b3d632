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

With --device cuda rows lie on GPUs, and NCCL exchanges for the others instead of MPI.

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
from collections.abc import Callable, Iterator, Sequence
from functools import partial, wraps
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from harness import options, run, shown
from harness.processes import peak_from_now, status
from harness.results import TIMES, Results, output_files
from harness.workers import workspace
from numpy.typing import NDArray
from torch import Tensor, distributed
from torch.nn.functional import binary_cross_entropy_with_logits as bce
from torch.nn.functional import embedding_bag

from mgg_hpc import sizes
from mgg_hpc.__main__ import SETTINGS
from mgg_hpc.cli.options import together
from mgg_hpc.data.clicks.criteo import WORDS, read_criteo
from mgg_hpc.data.clicks.generate import draw_clicks, write_text, zipf
from mgg_hpc.errors import InputError
from mgg_hpc.nn.embedding.collection import ShardedEmbeddingBagCollection, TableConfig
from mgg_hpc.nn.embedding.optimizers import SGD, RowWiseAdagrad
from mgg_hpc.runtime import launch, mpi
from mgg_hpc.runtime.backends.cuda.collectives import NcclSums
from mgg_hpc.runtime.exchange import sent
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


class Exchange:
    """Exchanges of the baselines, by MPI or torch.distributed; counts the ``bytes`` that leave this rank."""

    def __init__(self, comm: Any, *, by_torch: bool) -> None:
        self.comm, self.by_torch, self.bytes, self.messages = comm, by_torch, 0, 0

    def send(self, values: Tensor, counts: Sequence[int], arriving: Sequence[int]) -> Tensor:
        """Send values, cut by counts, to ranks 0, 1, ...; return those that arrive, in rank order."""
        self._count(values[: len(values) - counts[self.comm.rank]])
        if not self.by_torch:
            return torch.from_numpy(sent(self.comm, values.numpy(), np.array(counts), np.array(arriving)))
        out = values.new_empty(sum(arriving), *values.shape[1:])
        distributed.all_to_all_single(out, values, list(arriving), list(counts))
        return out

    def add_up(self, values: Tensor) -> Tensor:
        """Return the sums over all ranks of this rank's share of values [ranks * n, dim]."""
        out = values.new_empty(len(values) // self.comm.size, *values.shape[1:])
        self._count(values[len(out) :])
        if self.by_torch:
            new = getattr(distributed, "reduce_scatter_single", None)  # torch 2.13's name
            (new or distributed.reduce_scatter_tensor)(out, values)
        else:
            self.comm.Reduce_scatter_block(values.numpy(), out.numpy())
        return out

    def _count(self, others: Tensor) -> None:
        self.bytes += others.nbytes
        self.messages += self.comm.size - 1


class Baselines:
    """Look-ups by torch's kernels and an `Exchange`."""

    def __init__(self, exchange: Exchange, tables: ShardedEmbeddingBagCollection, rows: int) -> None:
        self.exchange, comm = exchange, exchange.comm
        (sharded,) = tables.rows.values()
        self.own = sharded.weight.detach().clone(memory_format=torch.contiguous_format)
        every = [sharded.whole(table * rows, (table + 1) * rows) for table in range(WORDS)]
        held = np.arange(WORDS) * comm.size // WORDS  # rank of each table
        self.tables = np.bincount(held, minlength=comm.size)  # of each rank
        mine = [each for each, rank in zip(every, held, strict=True) if rank == comm.rank]
        self.whole = torch.cat(mine).to(self.own.device)
        self.starts = torch.arange(WORDS, device=self.own.device)[:, None] * rows
        self.bounds = torch.from_numpy(sharded.bounds).to(self.own.device)

    def by_tables(self, ids: NDArray[np.int64]) -> Tensor:
        """Return pooled vectors [26, b, dim]: indices to the tables' ranks, and pooled vectors back."""
        size, (_, bags), mine = self.exchange.comm.size, ids.shape, int(self.tables[self.exchange.comm.rank])
        theirs, every = (self.tables * bags).tolist(), [mine * bags] * size
        came = self.exchange.send(torch.from_numpy(ids).to(self.own.device).reshape(-1), theirs, every)
        local = (came.reshape(size, mine, bags) + self.starts[:mine]).reshape(-1)
        found = embedding_bag(local, self.whole, torch.arange(len(local), device=local.device), mode="sum")
        return self.exchange.send(found, every, theirs).reshape(WORDS, bags, -1)

    def by_rows(self, ids: NDArray[np.int64]) -> Tensor:
        """Return pooled vectors [26, b, dim]: indices to the rows' owners, whose partial sums are added."""
        exchange, bounds = self.exchange, self.bounds
        rows = (torch.from_numpy(ids).to(self.own.device) + self.starts).reshape(-1)
        owned = (rows >= bounds[:-1, None]) & (rows < bounds[1:, None])  # [ranks, bags]
        lengths, every = owned.long(), [len(rows)] * len(owned)
        many = exchange.send(lengths.reshape(-1), every, every)
        counts, arriving = lengths.sum(1).tolist(), many.reshape(len(owned), -1).sum(1).tolist()
        came = exchange.send(rows[owned.nonzero()[:, 1]], counts, arriving) - bounds[exchange.comm.rank]
        partial_sums = embedding_bag(came, self.own, many.cumsum(0) - many, mode="sum")
        return exchange.add_up(partial_sums).reshape(WORDS, -1, self.own.shape[1])


@click.group(help=shown(__doc__), context_settings=SETTINGS)
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
        if given.get("batch", 0) % comm.size:
            raise InputError(f"--batch {given['batch']} on {comm.size} ranks; give a multiple of {comm.size}")
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
@click.option("--gloo", is_flag=True, help="Exchange by torch.distributed over gloo, in place of MPI.")
def lookup(comm: Any, dims: list[int], turns: int, gloo: bool, files: tuple[Path, ...], **how: Any) -> None:
    """Time look-ups on several ranks."""
    on_gpus = how["device"] == "cuda"
    if gloo and on_gpus:
        raise InputError("--gloo has no meaning with --device cuda, where NCCL exchanges")
    via, group = "nccl" if on_gpus else "gloo" if gloo else "MPI", None
    results = Results("dlrm lookup", ranks=comm.size, **how, exponent=EXPONENT, exchange=via)
    for dim in dims:
        tables = collection(how["rows"], dim, device=how["device"], comm=comm)
        if via != "MPI" and group is None:  # tables choose the GPU
            group = NcclSums(comm, via)
        _lookup(results, Exchange(comm, by_torch=via != "MPI"), tables, dim, turns)
        tables.close()
    if group is not None:
        group.close()
    if comm.rank == 0:
        results.write(files)
        results.show("dim", *TIMES, "crossing_bytes", "messages")


@torch.no_grad()
def _lookup(
    results: Results, exchange: Exchange, tables: ShardedEmbeddingBagCollection, dim: int, turns: int
) -> None:
    comm, rows, bags = exchange.comm, results.same["rows"], results.same["batch"] // exchange.comm.size
    baselines = Baselines(exchange, tables, rows)
    (sharded,) = tables.rows.values()
    meter, finish = sharded.backend.stream.meter, sharded.backend.stream.finish
    calls: dict[str, Callable[[NDArray[np.int64]], Tensor]] = {
        OURS: lambda ids: tables.stacked(features(ids)),
        ROWS: baselines.by_rows,
        TABLES: baselines.by_tables,
    }
    drawn = batches(bags, rows, comm.rank)
    for call in calls.values():
        call(next(drawn))
    meter.taken()
    ids, found, more = next(drawn), list[Tensor](), dict[str, dict[str, int]]()
    for name, call in calls.items():
        exchange.bytes = exchange.messages = 0
        found.append(call(ids))
        finish()
        more[name] = {"crossing_bytes": exchange.bytes, "messages": exchange.messages}
    assert all(torch.equal(each, found[0]) for each in found)
    meter.settle()
    others = 0 if sharded.pointers else comm.size - 1  # to which counts, numbers and rows are sent
    numbers = 8 * (others + meter.remote_rows) if others else 0
    more[OURS] = {"crossing_bytes": numbers + meter.remote_bytes, "messages": 3 * others}
    every = {name: {what: comm.allreduce(one) for what, one in each.items()} for name, each in more.items()}
    upcoming = {name: batches(bags, rows, 100 + comm.rank) for name in calls}  # the same for all variants

    def timed(name: str) -> float:
        mine = next(upcoming[name])
        mpi.barrier(comm)
        began = time.perf_counter()
        calls[name](mine)
        finish()
        return float(max(comm.allgather(1e3 * (time.perf_counter() - began))))

    results.compare(interleaved({name: partial(timed, name) for name in calls}, turns), every, dim=dim)


@main.command()
@TABLE_OPTIONS
@options.threads()
def alone(dims: list[int], turns: int, threads: int | None, files: tuple[Path, ...], **how: Any) -> None:
    """Time one process: look-ups, and look-ups with their backward and update."""
    torch.set_num_threads(threads or torch.get_num_threads())
    results = Results("dlrm alone", **how, exponent=EXPONENT, threads=torch.get_num_threads())
    for dim in dims:
        tables = collection(how["rows"], dim, optimizer=SGD(0.01), device=how["device"])
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
