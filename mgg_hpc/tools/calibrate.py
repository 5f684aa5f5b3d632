"""`mgg doctor --calibrate`: measure this host with several numbers of ranks, for predictions of `mgg model`.

Short trainings of several shapes are timed, by each transfer. A prediction is linear in the costs of a system, so
non-negative least squares of relative errors give the costs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.table import Table

from ..config import ModelSettings
from ..data import generate, store, writer
from ..errors import DONE, InputError
from ..plan.cost_model import TRANSFERS, RowCost, System
from ..runtime import calibration, cores
from ..sizes import counted, numbers_of
from ..training.screen import console
from . import estimate
from .doctor import LAUNCH
from .terminal import waiting

SECONDS = 600  # after which a measurement has hung
LAYERS, CLASSES, EPOCHS = 3, 8, 12
# Rows of each rank, their mean number of edges, and columns: little of anything; rows that a cache holds; and others.
SHAPES = (
    (64, 4, 16),
    (1 << 11, 32, 128),
    (1 << 12, 16, 64),
    (1 << 13, 32, 32),
    (1 << 15, 4, 16),
    (1 << 15, 32, 16),
    (1 << 15, 4, 128),
    (1 << 15, 16, 128),
    (1 << 16, 8, 64),
    (1 << 18, 4, 16),
)
WORKS = ("edge", "miss", "segment", *TRANSFERS)  # whose costs are of rows and bytes
COSTS = [
    *(f"ns, {name}, {what}" for name in WORKS for what in ("a row", "a byte")),
    *(f"ns, empty aggregation, {name}" for name in TRANSFERS),
    "ns, operation",
    "ns, byte of a pass",
]

TRAIN = """
import sys
from mgg_hpc.__main__ import main
sys.exit(max(main(["train", job, "--no-progress"]) for job in sys.argv[1:]))
"""

# Seconds that a training takes for a second of each cost, and that it took.
Observed = tuple[list[float], float]


def process_calibrate(ranks: str) -> int:
    """Measure with each number of ranks, keep what was found in the user's cache folder, and print it."""
    began, found, columns = time.perf_counter(), [], []
    numbers = sorted({*numbers_of("ranks", ranks)})
    calibration.check_folder()
    with tempfile.TemporaryDirectory(prefix="mgg-calibrate-") as folder:
        for number in numbers:
            with waiting(f"measuring with {counted(number, 'rank')}"):
                costs, error = fit(observe(number, Path(folder), SHAPES))
            found.append(system(costs, number))
            columns.append([*(f"{1e9 * each:.3g}" for each in costs), f"{100 * error:.0f} %"])
    path = calibration.save(found)
    table = Table("this host", *(counted(number, "rank") for number in numbers))
    for row in zip([*COSTS, "median error of an epoch"], *columns, strict=True):
        table.add_row(*row)
    console().print(table)
    console().print(f"calibrated in {time.perf_counter() - began:.0f} s; kept in {path}", soft_wrap=True)
    return DONE


def system(costs: Sequence[float], ranks: int) -> System:
    """Return the system of these COSTS in seconds."""
    rows = [RowCost(*pair) for pair in zip(costs[0:12:2], costs[1:12:2], strict=True)]
    return System(
        "this",
        ranks,
        edge=rows[0],
        miss=rows[1],
        segment=rows[2],
        within=dict(zip(TRANSFERS, rows[3:], strict=True)),
        fixed=dict(zip(TRANSFERS, costs[12:15], strict=True)),
        operation=costs[15],
        byte=costs[16],
        cache_bytes=cores.cache_bytes() // 4,  # as HostBackend has it
    )


def fit(observed: Sequence[Observed]) -> tuple[list[float], float]:
    """Return the COSTS in seconds, none negative, and the median relative error that they leave."""
    from scipy.optimize import nnls  # only a calibration needs it

    relative = np.array([np.array(factors) / seconds for factors, seconds in observed])
    scale = np.linalg.norm(relative, axis=0)
    scale[scale == 0] = 1.0  # a cost that nothing depends on stays 0
    costs = nnls(relative / scale, np.ones(len(observed)))[0] / scale
    return costs.tolist(), float(np.median(np.abs(relative @ costs - 1)))


def observe(ranks: int, folder: Path, shapes: Sequence[tuple[int, int, int]]) -> list[Observed]:
    """Observe the fastest epochs of models of LAYERS layers on random graphs of these shapes, by each transfer."""
    units, found = [system(unit, ranks) for unit in np.eye(len(COSTS)).tolist()], {}
    for rows, degree, width in shapes:
        path = folder / f"{ranks}-{rows}-{degree}-{width}.h5"
        graph = generate.sbm(
            rows * ranks, classes=CLASSES, features=width, degree=degree, homophily=0.5, seed=0
        )
        writer.write(path, graph)
        with store.open_graph(path) as file:
            shape = estimate.shape_of(file, ModelSettings(layers=LAYERS, hidden=width), None, None)
            traffic = estimate.count(file, estimate.bounds_of(file, ranks), shape, None)
        predicted = [estimate.predicted(unit, shape, *traffic) for unit in units]
        for transfer in TRANSFERS if ranks > 1 else TRANSFERS[:1]:
            job = path.with_name(f"{path.stem}-{transfer}.toml")
            job.write_text(
                f'[graph]\nfile = "{path.name}"\n[model]\nlayers = {LAYERS}\nhidden = {width}\n[train]\nepochs = '
                f'{EPOCHS}\n[run]\nfolder = "{job.with_suffix("")}"\n[plan]\ntransfer = "{transfer}"\n'
            )
            found[job] = [each.epoch(transfer) for each in predicted]
    output(ranks, "-c", TRAIN, *map(str, found))
    summaries = [next(job.with_suffix("").glob("**/summary.json")) for job in found]
    seconds = [json.loads(each.read_text())["epoch_ms"]["min"] / 1e3 for each in summaries]
    return list(zip(found.values(), seconds, strict=True))


def output(ranks: int, *arguments: str) -> str:
    """Return what Python prints on so many ranks. Raises InputError where it fails."""
    command = [sys.executable, "-c", LAUNCH, str(ranks), *arguments]
    try:
        ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired as error:
        raise InputError(f"measuring with {counted(ranks, 'rank')} did not end in {SECONDS} s") from error
    if ended.returncode:
        reason = next(
            (line for line in ended.stderr.splitlines() if "mgg: error" in line), ended.stderr.strip()[-200:]
        )
        raise InputError(
            f"measuring with {counted(ranks, 'rank')} failed: {reason}; does 'mgg doctor' find something?"
        )
    return ended.stdout
