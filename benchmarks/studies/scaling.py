"""The transfers on more and more ranks of this machine (OSDI '23, figures 7 to 9).

    python benchmarks/studies/scaling.py rmat:17 --ranks 1,2,4 --threads 1 --widths 16,64 -o scaling.csv -o scaling.png

Each number of ranks is a run of transfers.py, one after the other: variants take turns within a run only.
``times_first`` is the median's ratio to the same variant's on the first number of ranks.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import children, command, run
from harness.plots import lines_by

from mgg_hpc.errors import InputError
from mgg_hpc.runtime import mpi
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.results import Results, numbers_of, output_files

TRANSFERS = Path(__file__).with_name("transfers.py")
SHOWN = ("width", "variant", "ranks", "median_ms", "min_ms", "max_ms", "times_first")
DRAW = lines_by("ranks", "width")


@command(__doc__)
@click.argument("graph", default="rmat:17:16")
@click.option("--ranks", default="1,2,4", show_default=True, help="Numbers of ranks, separated by commas.")
@click.option("--widths", default="64", show_default=True, help="Columns of rows, separated by commas.")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, help="Of each rank.")
@click.option("--backend", default="auto", help="auto, serial, shm or shmem.")
@click.option("--turns", type=click.IntRange(1), default=9, help="Measurements of each variant.")
@output_files()
def main(graph: str, ranks: str, widths: str, files: tuple[Path, ...], **options: Any) -> None:
    if mpi.launched():
        raise InputError("this study starts its ranks itself, without a launcher")
    graphs.check(graph)
    numbers_of("widths", widths)
    results, alone = Results("scaling"), {}
    for count in numbers_of("ranks", ranks):
        found = measured(count, graph, widths=widths, **options)
        results.same = {name: found[name] for name in ("graph", "nodes", "edges", "threads_per_rank")}
        for row in found["rows"]:
            first = alone.setdefault((row["width"], row["variant"]), row["median_ms"])
            results.rows.append(
                {"ranks": count, "backend": found["backend"]}
                | row
                | {"times_first": round(row["median_ms"] / first, 4)}
            )
        results.write(files, DRAW)  # what is measured stays, whatever ends the rest
    results.show(*SHOWN)


def measured(ranks: int, graph: str, **options: Any) -> dict[str, Any]:
    """Return the results of transfers.py on so many ranks. Raises InputError where it fails."""
    with tempfile.TemporaryDirectory(prefix="mgg-bench-") as folder:
        written = Path(folder) / "transfers.json"
        words = [f"--{name}={value}" for name, value in options.items()]
        program = [sys.executable, TRANSFERS, graph, f"--ranks={ranks}", *words, "-o", written]
        children.output(program, f"{ranks} ranks")
        return json.loads(written.read_text())


if __name__ == "__main__":
    run(main)
