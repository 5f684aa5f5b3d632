"""Data tiering: which rows mini-batches read, by scores that are computed before training.

    python benchmarks/tiers.py hits                                # rmat20, and cnr_2000 and gowalla of MGG_DATA
    python benchmarks/tiers.py hits rmat:16 cnr_2000:directed --shares 1,5,10,25,50 -o hits.png
    python benchmarks/tiers.py hits --fanouts 10,10 --fanouts 10,10,10 --fanouts 10,10,10,10
    python benchmarks/tiers.py traffic gowalla_bipartite --row-bytes 1028
    python benchmarks/tiers.py gather --threads 1
    python benchmarks/tiers.py disk --scale 0.1 --columns 1024
    python benchmarks/tiers.py requests
    python benchmarks/tiers.py link                                # on a GPU
    python benchmarks/tiers.py reorder --folder /data/scratch

hits: ``hit_rate`` is the share of a batch's rows that it finds in the nearest memory, if that holds the given percent
of all rows, those of the highest scores. Training nodes are a random percent. The sampler draws the batches of --epochs
epochs; "oracle" scores rows by the reads of as many other epochs. Caches of the same size replay twice --replayed
batches, row by row: the first half fills them, and the hits of the second half count. Graphs of the data folder are
symmetric, or have their own edges with ":directed".

traffic: the bytes of requests of 128 for rows in the host's memory, and which share of them goes where each rank has
the given percent of the rows in GPU memory: on one rank; on --ranks ranks, which replicate half or none of it and put
the rest into a peers' tier, where each row is on one rank. Modelled from the same batches, not measured.

gather: milliseconds in which torch.index_select, a TieredTensor with a tenth of the rows in its nearest tier, and
`Backend.gather` of the same rows as those of four ranks copy rows of --mib MiB by number: random ones, or those of
sampled batches of an R-MAT graph, of which the nearest tier has the highest degrees.

disk: an epoch begins with no page of the file in memory. "reads that miss" are as many random rows as an epoch reads
from the file, alone. processor_ms: of all cores, least of the turns.

requests: requests of a GPU that gathers rows of the host's memory, counted: "lines" of 128 bytes that a row touches;
"unshifted", rows are read from where they begin; "shifted", from their first whole line on, as the kernel does.

link: times of such gathers, and of a copy of as many bytes; "of copy" is the share of its speed.

reorder: `mgg partition --order visits` on a drawn graph of about --edges edges. floor_seconds are those in which the
file's bytes are read and written once.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
import real_graphs
import torch
from harness import options, run, shown
from harness.processes import output
from harness.results import TIMES, Results, output_files
from numpy.typing import NDArray
from real_size import Folder, mgg, rmat_file
from studies.tiering import BATCH, hits, traffic
from studies.zero_copy import link, requests
from torch import Tensor

from mgg_hpc import config
from mgg_hpc.__main__ import SETTINGS
from mgg_hpc.data.graph import Graph
from mgg_hpc.nn.tiered import TieredTensor
from mgg_hpc.plan.layout import RowFormat
from mgg_hpc.runtime import backends, cores
from mgg_hpc.runtime.backends.arguments import Options, Rows, TieredRows
from mgg_hpc.runtime.backends.host.kernels import SerialBackend
from mgg_hpc.runtime.backends.simulated import World
from mgg_hpc.runtime.sampler import Sampler
from mgg_hpc.runtime.timing import interleaved
from mgg_hpc.training.job import build
from mgg_hpc.training.trainer import Trainer

LARGEST = 20  # scale of the graphs from which gathered rows are sampled


@click.group(help=shown(__doc__), context_settings=SETTINGS)
def main() -> None: ...


main.add_command(hits)
main.add_command(traffic)
main.add_command(requests)
main.add_command(link)


@main.command()
@options.numbers("sizes", "64,128,256,512,1024,2048,4096", "Bytes of a row.")
@click.option("--mib", type=click.IntRange(1), default=512, help="Size of all rows.")
@click.option("--count", type=click.IntRange(1), default=50_000, help="Rows of a gather, at most.")
@options.threads()
@options.turns(9)
@output_files(pictures=False)
def gather(
    sizes: list[int], mib: int, count: int, threads: int | None, turns: int, files: tuple[Path, ...]
) -> None:
    """Time copies of rows by number."""
    torch.set_num_threads(threads or cores.available())
    results = Results("tiers gather", mib=mib, count=count, threads=torch.get_num_threads())
    rng, ranks = np.random.default_rng(0), 4
    backend = SerialBackend(0, World(ranks), Options(backends.DEFAULT_GEOMETRY, torch.get_num_threads()))

    def timed(run: Callable[[Tensor, Tensor], object], draw: Callable[[], Any], out: Tensor) -> float:
        ids = torch.from_numpy(draw())  # others each time, which no cache has
        to = out[: len(ids)]
        began = time.perf_counter()
        run(ids, to)
        return 1e3 * (time.perf_counter() - began)

    def sampled(graph: Graph, sampler: Sampler) -> NDArray[np.int64]:
        seeds = rng.choice(graph.nodes, BATCH, replace=False)
        return sampler.sample(seeds, [15, 10], seed=0, step=0).nodes[:count]

    for size in sizes:
        rows = (mib << 20) // size
        graph = real_graphs.structure(f"rmat:{min(LARGEST, rows.bit_length() - 1)}:16")
        batches, each = partial(sampled, graph, Sampler(graph.indptr, graph.indices)), rows // graph.nodes
        x, out = torch.randn(rows, size // 4), torch.empty(count, size // 4)
        format, bounds = RowFormat(np.dtype(np.float32), size // 4), np.arange(ranks + 1) * rows // ranks
        addresses = x.data_ptr() + bounds[:-1].astype(np.uint64) * np.uint64(size)
        table = TieredRows.of_ranks(Rows(format, addresses, np.diff(bounds), x, 0, symmetric=False), bounds)
        score = np.zeros(rows)
        score[: each * graph.nodes : each] = np.bincount(graph.indices, minlength=graph.nodes)
        with TieredTensor.from_torch(x, near=x.nbytes // 10, score=score) as tensor:
            runs: dict[str, Callable[[Tensor, Tensor], object]] = {
                "torch.index_select": lambda ids, to, x=x: torch.index_select(x, 0, ids, out=to),
                "TieredTensor": tensor.gather,
                "Rows": lambda ids, to, table=table: backend.gather(table, ids.numpy(), to.numpy()),
            }
            for name, draw in {
                "random": partial(rng.integers, 0, rows, count),
                "sampled": lambda batches=batches, each=each: each * batches(),
            }.items():
                calls = {variant: partial(timed, call, draw, out) for variant, call in runs.items()}
                results.compare(interleaved(calls, turns), row_bytes=size, ids=name)
    for variant in list(runs)[1:]:
        faster = [1 / row["relative_time"] for row in results.rows if row["variant"] == variant]
        mean = float(np.exp(np.mean(np.log(faster))))
        results.notes.append(
            f"{variant}: {mean:.2f} times as fast (geometric mean), {min(faster):.2f} at least"
        )
    results.write(files)
    results.show("row_bytes", "ids", *TIMES)


@main.command()
@click.option("--scale", type=click.FloatRange(0, 1), default=0.1, help="Of a graph like ogbn-products.")
@click.option("--columns", type=options.WIDTH, default=1024, help="Of its features.")
@click.option(
    "--times", type=click.FloatRange(1), default=4, help="Features are so many times the nearest tier."
)
@options.threads()
@options.turns(5)
@output_files(pictures=False)
def disk(
    scale: float, columns: int, times: float, threads: int | None, turns: int, files: tuple[Path, ...]
) -> None:
    """Time epochs of GraphSAGE on batches, with all features in memory or most of them in the file."""
    from mpi4py import MPI

    results = Results("tiers disk", scale=scale, columns=columns, times=times)
    with tempfile.TemporaryDirectory(dir=".") as folder, contextlib.ExitStack() as ends:
        path = Path(folder) / "products.h5"
        how = [f"--scale={scale}", f"--features={columns}", "-o", path]
        output([sys.executable, "-m", "mgg_hpc", "generate", "like", "products", *how], "mgg generate")
        file = os.open(path, os.O_RDONLY)
        ends.callback(os.close, file)
        os.fsync(file)
        trainers, number = {}, itertools.count(1)
        for name in ("memory", "tiers"):
            train = {"mode": "sampled", "fanouts": [15, 10], "batch_size": 1024}
            tree = {"graph": {"file": str(path)}, "model": {"name": "sage", "hidden": 128}, "train": train}
            tree["run"] = {"threads": threads or 0}
            if name == "tiers":
                tree["features"] = {"near": int(4 * columns * trainers["memory"].job.part.nodes / times)}
            job = build(config.from_tree(tree, name), MPI.COMM_SELF)
            ends.callback(job.close)
            trainers[name] = Trainer(job, job.graph())

        busy = {name: list[float]() for name in (*trainers, "reads that miss")}

        def cold(name: str, run: Callable[[], object]) -> float:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)  # no page of it is cached now
            began, used = time.perf_counter(), time.process_time()
            run()
            busy[name].append(1e3 * (time.process_time() - used))
            return 1e3 * (time.perf_counter() - began)

        def epoch(trainer: Trainer) -> None:
            for _ in trainer.run(next(number)):
                pass

        runs = {name: partial(cold, name, partial(epoch, trainer)) for name, trainer in trainers.items()}
        counts = trainers["tiers"].counts
        with TieredTensor.open(path) as tensor:
            rng, nodes, steps = np.random.default_rng(0), len(tensor), trainers["tiers"].steps

            def misses() -> None:
                missed = round(counts.tiers[-1]["file"] * counts.rows / counts.batches)  # of a batch
                for _ in range(steps):
                    tensor[rng.choice(nodes, missed, replace=False)]

            reads = {"reads that miss": partial(cold, "reads that miss", misses)}
            taken = interleaved(runs | reads, turns)
        found = {name: {"processor_ms": round(min(each))} for name, each in busy.items()}
        found["tiers"]["hit_rate"] = round(1 - counts.tiers[-1]["file"], 4)
        results.compare(taken, found, steps=steps)
    memory, tiers, missed = (row["median_ms"] for row in results.rows)
    results.notes.append(
        f"tiers: {tiers / memory:.2f} times the time in memory, {tiers / max(memory, missed):.2f} times the larger of "
        "that and the time of the reads that miss"
    )
    results.write(files)
    results.show(*TIMES, "processor_ms", "hit_rate")


@main.command()
@click.option("--edges", type=click.FloatRange(100), default=1.05e8, help="Edges that are stored, about.")
@options.folder()
@options.turns(3)
@output_files(pictures=False)
def reorder(edges: float, folder: Path | None, turns: int, files: tuple[Path, ...]) -> None:
    """Time `mgg partition --order visits`, and measure the peak of its memory."""
    with tempfile.TemporaryDirectory(prefix="mgg-bench-", dir=folder) as made:
        place = Folder(Path(made))
        source, (_, case) = place.path / "rmat.h5", rmat_file(place.path / "rmat.h5", edges, "--classes=2")
        results, found = Results("tiers reorder", case=case), []
        for _ in range(turns):
            copy = Path(shutil.copy(source, place.path / "ordered.h5"))
            found.append(mgg("partition --order visits --fanouts 12,12,12 --memory 4G", copy))
        size = source.stat().st_size
        peak = {"peak_mib": max(each["peak_mib"] for each in found), **place.floor(size, size)}
        results.add("mgg partition", [1e3 * each["seconds"] for each in found], **peak)
    results.write(files)
    results.show()


if __name__ == "__main__":
    run(main)
