"""`mgg doctor --calibrate`: measure this host with several numbers of ranks, for predictions of `mgg model`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
from rich.table import Table

from ..data import generate, store
from ..errors import DONE, InputError
from ..runtime import calibration
from ..runtime.calibration import Measured
from ..training.report import console
from .doctor import LAUNCH
from .model import numbers_of_ranks
from .terminal import waiting

SECONDS = 300  # after which a measurement has hung
TINY = {"nodes": 64, "classes": 4, "features": 16}
LAYERS, EPOCHS = 2, 40

MEASURE = "from mgg_hpc.runtime import calibration; calibration.main()"
TRAIN = "import sys; from mgg_hpc.__main__ import main; sys.exit(main(sys.argv[1:]))"


def process_calibrate(ranks: str) -> int:
    """Measure with each number of ranks, keep what was found in the user's cache folder, and print it."""
    began, found = time.perf_counter(), []
    with tempfile.TemporaryDirectory(prefix="mgg-calibrate-") as folder:
        for number in numbers_of_ranks(ranks):
            with waiting(f"measuring with {number} ranks"):
                found.append(_measured(number, Path(folder)))
    path = calibration.save(found)
    _show(found)
    console().print(f"calibrated in {time.perf_counter() - began:.0f} s; kept in {path}", soft_wrap=True)
    return DONE


def _measured(ranks: int, folder: Path) -> Measured:
    """Return what so many ranks measured: kernels and transfers, and a layer of a tiny job."""
    text = output(ranks, "-c", MEASURE)
    measured = msgspec.json.decode(text.strip().splitlines()[-1], type=Measured)
    return calibration.with_layers(measured, _tiny_epoch(ranks, folder) / LAYERS)


def _tiny_epoch(ranks: int, folder: Path) -> float:
    """Return the seconds of the fastest epoch that has next to nothing to sum."""
    graph, job, run = folder / "tiny.h5", folder / "tiny.toml", folder / f"run{ranks}"
    if not graph.exists():
        store.write(graph, generate.sbm(**TINY, degree=4.0, homophily=0.8, seed=0))
    job.write_text(
        f'[graph]\nfile = "tiny.h5"\n[model]\nlayers = {LAYERS}\n[train]\nepochs = {EPOCHS}\n'
        f'[run]\nbackend = "auto"\n[plan]\ntransfer = "direct"\n'
    )
    output(ranks, "-c", TRAIN, "train", str(job), "--no-progress", "--set", f"run.folder={run}")
    (summary,) = run.glob("**/summary.json")
    return float(json.loads(summary.read_text())["epoch_ms"]["min"]) / 1e3


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
    reach = [f"up to {size / 2**20:g} MiB" for size in found[0].gather.reach]
    for level, where in enumerate([*reach, f"beyond {found[0].gather.reach[-1] / 2**20:g} MiB"]):
        for width, size in enumerate(found[0].gather.row_bytes):
            cells = [f"{1e9 * each.gather.seconds[width][level]:.1f}" for each in found]
            rows.append((f"ns an edge, {size} B, read {where} ago", cells))
    for width, (k, _) in enumerate(found[0].dense):
        cells = [f"{each.dense[width][1] / 1e9:.1f}" for each in found]
        rows.append((f"Gflop/s of products, {k} columns", cells))
    rows.append(("GB/s in order", [f"{each.stream / 1e9:.1f}" for each in found]))
    rows.append(("ns a value of dropout", [f"{1e9 * each.draw:.2f}" for each in found]))
    for name in ("direct", "get", "halo"):
        costs = [each.within.get(name) for each in found]
        cells = [
            "" if cost is None else f"{1e9 * cost.row:.1f} + {1e9 * cost.byte:.3f} a B" for cost in costs
        ]
        rows.append((f"ns a remote row more, {name}", cells))
    for name in ("direct", "halo"):
        rows.append(
            (f"us of an empty aggregation, {name}", [f"{1e6 * each.fixed[name]:.1f}" for each in found])
        )
    rows.append(("us of a layer's calls", [f"{1e6 * each.layer:.1f}" for each in found]))
    for heading, cells in rows:
        table.add_row(heading, *cells)
    console().print(table)
