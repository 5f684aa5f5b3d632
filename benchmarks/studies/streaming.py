"""Steps on graphs that stream from stores of a rate (NGra): by schedules of sums, with loads ahead, in chains of ranks.

    python benchmarks/studies/streaming.py schedules rmat:15 -o docs/studies/streaming-schedules.png
    python benchmarks/studies/streaming.py overlap rmat:15 -o docs/studies/streaming-overlap.png
    python benchmarks/studies/streaming.py ring rmat:15 -o docs/studies/streaming-ring.png
    mgg launch -n 2 benchmarks/studies/streaming.py ring rmat:15

GCN and a gated GCN, 128 columns, two layers, in memory for a quarter of the rows. schedules: NGra's order of sums, by
stages, and by destinations (figure 14). overlap: chunks that load ahead, and when they are wanted, at the rate at which
all bytes take as long as the rest of a step; both alone stand below them. ring: ranks that pass chunks on, and ranks
that each load for themselves (figure 16), GCN alone. ``moved_mb`` is what all ranks move between stores and memory in a
step, of which ``chunks_mb`` are sources, and ``sums_mb`` sums that leave memory and return.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))
from harness import command, run, streamed, workers
from harness.plots import bars_by
from harness.streamed import Case

from mgg_hpc.nn.streaming.graph import SCHEDULES, Streaming
from mgg_hpc.runtime import cores, exit_code, mpi
from mgg_hpc.runtime.launch import process_launch
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.results import Results, numbers_of, output_files

RATES = {"schedules": 1.0, "ring": 0.5}  # GB/s of the stores of each rank
CASE, TIMES = ("graph", "program", "gb_per_s"), ("variant", "median_ms", "times_first")
SHOWN = {
    "schedules": (*CASE, *TIMES, "moved_mb", "moved_times_first", "chunks_mb", "sums_mb"),
    "overlap": (*CASE, *TIMES, "moved_mb"),
    "ring": (*CASE, "ranks", *TIMES, "chunks_mb", "chunks_times_first"),
}
DRAW = {
    "schedules": bars_by(*CASE, values=("median_ms", "moved_mb")),
    "overlap": bars_by(*CASE),
    "ring": bars_by(*CASE, "ranks", values=("median_ms", "chunks_mb")),
}


@command(__doc__)
@click.argument("part", type=click.Choice(list(DRAW)))
@click.argument("names", nargs=-1, metavar="[GRAPH]...")
@click.option(
    "--rate", type=click.FloatRange(1e-3), help="GB/s of each rank's stores. [default: each part's]"
)
@click.option("--ranks", default="2,4", show_default=True, help="Of the part ring, on this machine.")
@click.option("--threads", type=click.IntRange(1), help="Of each rank. [default: all cores; 1 in a ring]")
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True)
@output_files()
def main(
    part: str,
    names: tuple[str, ...],
    rate: float | None,
    ranks: str,
    threads: int | None,
    turns: int,
    files: tuple[Path, ...],
) -> int:
    numbers = numbers_of("ranks", ranks)
    for name in names:
        graphs.check(name)
    threads = threads or (1 if part == "ring" else cores.available())
    results = Results(f"streaming, {part}", threads=threads)
    if part == "ring" and not mpi.launched():
        words = [*names, f"--threads={threads}", f"--turns={turns}", *([f"--rate={rate}"] if rate else [])]
        return launched(results, numbers, words, files)
    first = exit_code.is_first()
    for name in names or ("rmat:15",):
        with written(name, threads) as case:
            for program in ["gcn"] if part == "ring" else streamed.PROGRAMS:
                measure(results, part, replace(case, program=program), rate, turns)
                if first:
                    results.write(files, DRAW[part])  # what is measured stays, whatever ends the rest
    if first:
        results.show(*SHOWN[part])
    return 0


def launched(results: Results, numbers: list[int], words: list[str], files: tuple[Path, ...]) -> int:
    """Run the part ring on each number of ranks, which print their tables; write all rows. Return the exit code.

    words: of its command line, but for the user's files, which only this process writes.
    """
    with workers.workspace() as folder:
        for number in numbers:
            code = process_launch(number, [__file__, "ring", *words, "-o", str(folder / "rows.json")])
            if code:
                return code
            results.rows += json.loads((folder / "rows.json").read_text())["rows"]
            results.write(files, DRAW["ring"])
    return 0


@contextmanager
def written(name: str, threads: int) -> Iterator[Case]:
    """Write a named graph with features and labels for all ranks, and yield its case. Collective."""
    comm, case = mpi.world(), None
    with ExitStack() as stack:
        with mpi.agree(comm):
            if comm.Get_rank() == 0:
                folder = stack.enter_context(workers.workspace())
                case = streamed.write(graphs.read(name), folder / "graph.h5", threads)
        yield comm.bcast(case)
        comm.Barrier()  # all have closed it


def measure(results: Results, part: str, case: Case, rate: float | None, turns: int) -> None:
    """Add the rows of a part's variants. Collective. rate: GB/s, or None for the part's."""
    size, alone = mpi.world().Get_size(), {}
    how = Streaming(case.limit // size, copies=True)
    if part == "overlap":
        with case.opened(replace(how, ahead=False)) as net:
            computing = streamed.in_turns({part: net}, turns)[part]
            moved_mb = net.moved()["moved_mb"] / size
        rate = rate or moved_mb / statistics.median(computing)
        alone = {"bytes alone": [moved_mb / rate], "all else alone": computing}
    rate = rate or RATES[part]
    how = replace(how, rate=rate * 1e9)
    variants = {
        "schedules": {name: replace(how, schedule=name) for name in SCHEDULES},
        "overlap": {"ahead": how, "when wanted": replace(how, ahead=False)},
        "ring": {"chains": how, "each for itself": replace(how, chains="none")},
    }[part]
    with case.all_opened(variants) as nets:
        ms = streamed.in_turns(nets, turns)
        more = {name: net.moved() for name, net in nets.items()}
    first = next(iter(more.values()))
    for kind in ("moved", "chunks"):
        least = first[f"{kind}_mb"] or 1.0
        for row in more.values():
            row[f"{kind}_times_first"] = row[f"{kind}_mb"] / least
    columns = {"graph": case.graph, "program": case.program, "ranks": size, "gb_per_s": round(rate, 3)}
    results.compare(ms, more, **columns, edges=case.edges)
    for name, taken in alone.items():
        results.add(name, taken, **columns, edges=case.edges)


if __name__ == "__main__":
    run(main)
