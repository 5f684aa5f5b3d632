"""`mgg doctor --calibrate`: measure this host with several numbers of ranks, for predictions of `mgg model`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from rich.table import Table

from ..config import ModelSettings
from ..data import generate, store, writer
from ..errors import DONE, InputError
from ..plan.cost_model import Gather, RowCost
from ..runtime import calibration
from ..runtime.calibration import Measured
from ..training.report import console
from . import model
from .doctor import LAUNCH
from .model import numbers_of_ranks
from .terminal import waiting

SECONDS = 300  # after which a measurement has hung
LAYERS, CLASSES, EPOCHS = 2, 8, 40
FEW = 64  # rows of a training that takes no time but its fixed one
ROWS, WIDTHS = 1 << 15, (16, 128)  # of each rank, where the time of rows counts

MEASURE = "from mgg_hpc.runtime import kernel_costs; kernel_costs.main()"
TRAIN = "import sys; from mgg_hpc.__main__ import main; sys.exit(main(sys.argv[1:]))"


def process_calibrate(ranks: str) -> int:
    """Measure with each number of ranks, keep what was found in the user's cache folder, and print it."""
    began, found = time.perf_counter(), []
    numbers = numbers_of_ranks(ranks)
    calibration.check_folder()
    with tempfile.TemporaryDirectory(prefix="mgg-calibrate-") as folder:
        for number in numbers:
            with waiting(f"measuring with {number} ranks"):
                found.append(_measured(number, Path(folder)))
    _show(found)
    path = calibration.save(found)
    console().print(f"calibrated in {time.perf_counter() - began:.0f} s; kept in {path}", soft_wrap=True)
    return DONE


def _measured(ranks: int, folder: Path) -> Measured:
    """Return what so many ranks measured: kernels and transfers, and what trainings take beside them."""
    text = output(ranks, "-c", MEASURE)
    found = msgspec.json.decode(text.strip().splitlines()[-1], type=Measured)
    tiny = _training(ranks, folder, nodes=FEW, width=16)
    found = replace(found, layer=max(0.0, tiny["seconds"] / LAYERS - 2 * found.fixed["direct"]))
    return replace(found, stream=_stream(ranks, found, folder))


def _stream(ranks: int, found: Measured, folder: Path) -> RowCost:
    """Return what a row of a layer takes beside what was measured so far, from the epochs of two trainings.

    An epoch's prediction is linear in both parts of the cost, so two epochs give them.
    """
    from scipy.optimize import nnls  # only a calibration needs it

    factors, left = [], []
    for width in WIDTHS:
        job = _training(ranks, folder, nodes=ROWS * ranks, width=width)

        def predicted(stream: RowCost, job: dict[str, Any] = job) -> float:
            system = calibration.of_host([replace(found, stream=stream)]).system(ranks)
            return model.predicted(system, job["shape"], *job["traffic"]).epoch("direct")

        nothing = predicted(RowCost(0.0, 0.0))
        factors.append([predicted(cost) - nothing for cost in (RowCost(1.0, 0.0), RowCost(0.0, 1.0))])
        left.append(max(0.0, job["seconds"] - nothing))
    row, byte = nnls(np.array(factors), np.array(left))[0]
    return RowCost(float(row), float(byte))


def _training(ranks: int, folder: Path, *, nodes: int, width: int) -> dict[str, Any]:
    """Train a model of LAYERS layers of a width; return the seconds of its fastest epoch, its shape and traffic."""
    name = f"{nodes}-{width}"
    path, job, run = folder / f"{name}.h5", folder / "job.toml", folder / f"run{ranks}-{name}"
    graph = generate.sbm(nodes, classes=CLASSES, features=width, degree=4.0, homophily=0.8, seed=0)
    writer.write(path, graph, force=True)
    job.write_text(
        f'[graph]\nfile = "{path.name}"\n[model]\nlayers = {LAYERS}\nhidden = {width}\n[train]\nepochs = {EPOCHS}\n'
        f'[run]\nbackend = "auto"\nfolder = "{run}"\n[plan]\ntransfer = "direct"\n'
    )
    output(ranks, "-c", TRAIN, "train", str(job), "--no-progress")
    (summary,) = run.glob("**/summary.json")
    with store.open_graph(path) as file:
        shape = model.shape_of(file, ModelSettings(layers=LAYERS, hidden=width), None, None)
        traffic = model.count(file, model.bounds_of(file, ranks), shape.made().kind, None)
    return {
        "seconds": float(json.loads(summary.read_text())["epoch_ms"]["min"]) / 1e3,
        "shape": shape,
        "traffic": traffic,
    }


def output(ranks: int, *arguments: str) -> str:
    """Return what Python prints on so many ranks. Raises InputError where it fails."""
    command = [sys.executable, "-c", LAUNCH, str(ranks), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise InputError(f"measuring with {ranks} ranks did not end in {SECONDS} s") from error
    if ended.returncode:
        reason = next(
            (line for line in ended.stderr.splitlines() if "mgg: error" in line), ended.stderr.strip()[-200:]
        )
        raise InputError(f"measuring with {ranks} ranks failed: {reason}; does 'mgg doctor' find something?")
    return ended.stdout


def _show(found: Sequence[Measured]) -> None:
    """Print the measurements, a column for each number of ranks."""
    table = Table(title="this host, for each of so many ranks")
    table.add_column("")
    for each in found:
        table.add_column(f"{each.ranks} x {each.threads} threads", justify="right")
    rows: list[tuple[str, list[str]]] = []
    for name in ("own", "direct", "get"):
        tables = [each.gather if name == "own" else each.mixed.get(name) for each in found]
        what = "of its own rows" if name == "own" else f"of all ranks' rows, {name}"
        for level, where in enumerate(_reach(found[0].gather)):
            for width, size in enumerate(found[0].gather.row_bytes):
                cells = [
                    "" if table is None else f"{1e9 * table.seconds[width][level]:.1f}" for table in tables
                ]
                rows.append((f"ns an edge {what}, {size} B, read {where}", cells))
    for width, (k, _) in enumerate(found[0].dense):
        cells = [f"{each.dense[width][1] / 1e9:.1f}" for each in found]
        rows.append((f"Gflop/s of products, {k} columns", cells))
    rows.append(("ns a value of dropout", [f"{1e9 * each.draw:.2f}" for each in found]))
    lines: dict[str, list[RowCost | None]] = {
        "ns a destination": [each.destination for each in found],
        "ns a segment": [each.segment for each in found],
        "ns a row of a layer": [each.stream for each in found],
        "ns a row of a halo": [each.within.get("halo") for each in found],
    }
    for heading, costs in lines.items():
        cells = [
            "" if cost is None else f"{1e9 * cost.row:.1f} + {1e9 * cost.byte:.3f} a B" for cost in costs
        ]
        rows.append((heading, cells))
    for name in ("direct", "halo"):
        rows.append(
            (f"us of an empty aggregation, {name}", [f"{1e6 * each.fixed[name]:.1f}" for each in found])
        )
    rows.append(("us of a layer's calls", [f"{1e6 * each.layer:.1f}" for each in found]))
    for heading, cells in rows:
        table.add_row(heading, *cells)
    console().print(table)


def _reach(gather: Gather) -> list[str]:
    """Return how long ago a row was read, for each class of a table."""
    sizes = [f"{size / 2**20:g} MiB" for size in gather.reach]
    return [*(f"up to {size} ago" for size in sizes), f"beyond {sizes[-1]} ago"]
