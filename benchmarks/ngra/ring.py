"""Ranks that pass the chunks of a streamed graph on, and ranks that each load for themselves (NGra, section 4.2).

`main` is what each rank runs, and rank 0 writes the row.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from mgg_hpc.errors import InputError
from mgg_hpc.nn.streaming.graph import Streaming
from mgg_hpc.runtime import launch, mpi
from mgg_hpc.runtime.turns import take_turns
from mgg_hpc.tools.bench.harness import document, timing
from mgg_hpc.tools.bench.harness.document import Sheet

from .schedules import WARM_UP, step_ms, times_first
from .streaming import Case

CHAINS, ALONE = "chains", "each for itself"
RATE = 0.5  # GB/s of each loader's store
RANKS = (2, 4)
CHILD = (
    f"import sys; sys.path.insert(0, {str(Path(__file__).parents[1])!r}); from ngra import ring; ring.main()"
)


def over_ranks(case: Case, turns: int, rate: float) -> dict[str, Any]:
    """Return the row of both ways on all ranks of the job, which must all call this. rate: GB/s, or 0 for RATE."""
    comm, rate = mpi.world(), rate or RATE
    chosen = Streaming(case.limit // comm.size, copies=True, rate=rate * 1e9, chains="measured")
    ways = {CHAINS: chosen, ALONE: replace(chosen, chains="none")}
    with case.all_opened(ways) as nets:
        runs = {name: partial(_slowest_ms, comm, net) for name, net in nets.items()}
        take_turns(runs, WARM_UP)
        ms = take_turns(runs, turns)
        loaded = {name: comm.allreduce(net.moved().chunks) for name, net in nets.items()}
    row = {"program": case.program, "width": case.hidden, "rate": rate, "ranks": comm.size, "loaded": loaded}
    return case.graph | row | timing.compared(ms, ours=CHAINS)


def _slowest_ms(comm: Any, net: Any) -> float:
    comm.Barrier()
    return max(comm.allgather(step_ms(net)))


def started(case: Case, turns: int, rate: float, ranks: int) -> dict[str, Any]:
    """Return the row of so many ranks, which are started on this machine. Raises InputError where they fail."""
    with timing.workspace() as folder:
        request, row = folder / "request.json", folder / "row.json"
        said = asdict(case) | {"path": str(case.path)}
        request.write_text(json.dumps({"case": said, "turns": turns, "rate": rate}))
        code = launch.run([sys.executable, "-c", CHILD, str(request), str(row)], ranks)
        if code or not row.is_file():
            raise InputError(f"{ranks} ranks: they ended with exit code {code}")
        return dict(json.loads(row.read_text()))


def sheet(rows: Sequence[dict[str, Any]]) -> Sheet:
    """Return the table of bytes and times."""
    columns = ["", "ranks", "ms a step", "of the first's", "MB read, all ranks", "times fewer"]
    cells = []
    for row in rows:
        for name, spread in row["ms"].items():
            line = [f"{row['graph']}, {row['program']}, {name}", str(row["ranks"]), document.cell(spread, 0)]
            fewer = row["loaded"][ALONE] / max(1, row["loaded"][name])
            cells.append(
                [*line, f"{times_first(row, name):.2f}", f"{row['loaded'][name] / 1e6:,.0f}", f"{fewer:.2f}"]
            )
    return Sheet(f"chains of ranks, a store of {rows[0]['rate']:g} GB/s for each loader", columns, cells)


def main() -> None:
    """Measure what a file asks for on all ranks; rank 0 writes the row."""
    request, row = map(Path, sys.argv[1:])
    asked = json.loads(request.read_text())
    case = Case(**asked["case"] | {"path": Path(asked["case"]["path"])})
    found = over_ranks(case, asked["turns"], asked["rate"])
    if mpi.world().rank == 0:
        row.write_text(json.dumps(found))
