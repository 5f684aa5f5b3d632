"""The study of scaling: the transfers on more and more ranks of this machine, each number started by `mgg launch`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...runtime import mpi
from ..bench.harness import timing, watch
from . import plot, table
from .cpu import Request
from .table import Table

SHOWN = (
    "ranks",
    "threads_per_rank",
    "width_values",
    "variant",
    "median_ms",
    "min_ms",
    "max_ms",
    "times_first",
)


def run(request: Request, ranks: Sequence[int]) -> int:
    """Measure on each number of ranks, print and write. Raises InputError under a launcher, and where a run fails."""
    if mpi.launched():
        raise InputError("mgg study scaling starts its ranks itself, without a launcher")
    made = Table("scaling", {})
    with timing.workspace() as folder:
        for count in ranks:
            with watch.cell("scaling", f"{count} ranks"):
                made.rows += measured(request, count, folder)
    alone: dict[tuple[Any, Any], float] = {}
    for row in made.rows:
        row["study"] = made.study
        first = alone.setdefault((row["width_values"], row["variant"]), row["median_ms"])
        row["times_first"] = round(row["median_ms"] / first, 4)
    shared = ("graph", "nodes", "edges", "device")
    made.same = {name: made.rows[0][name] for name in shared}
    made.finish(request.files, plot.DRAWN["scaling"], SHOWN)
    return 0


def measured(request: Request, ranks: int, folder: Path) -> list[table.Row]:
    """Return the rows of `mgg study transfers` on so many ranks."""
    written = folder / f"{ranks}.csv"
    words = ["study", "transfers", request.graph, "--ranks", str(ranks), "--turns", str(request.turns)]
    words += ["--widths", ",".join(map(str, request.widths)), "--backend", request.backend]
    words += ["--csv", str(written), "--plot", "none"]
    words += [] if request.threads is None else ["--threads", str(request.threads)]
    done = subprocess.run(
        [sys.executable, "-m", "mgg_hpc", *words], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise InputError(f"{ranks} ranks: {' '.join(done.stderr.split()) or done.returncode}")
    return table.read(written)
