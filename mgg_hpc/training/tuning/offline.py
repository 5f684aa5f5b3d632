"""`mgg tune`: search for a job's plan, without keeping the weights that are trained meanwhile."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import tomli_w
from rich.table import Table

from ... import config
from ...config import Settings
from ...errors import InputError
from ...plan.cost_model import TRANSFERS, choose_each
from ...runtime import backends, cores, exit_code, leftovers, mpi, signals
from ...runtime.backends.arguments import Geometry
from ...runtime.watchdog import Watchdog
from ...sizes import counted
from .. import memory, report
from ..job import Job, build, watchdog
from ..screen import console
from ..start import PhaseTimer
from ..trainer import Trainer
from .target import Target, shown
from .tuner import LONGEST, Tuner

NOTHING = "there was nothing to save"
UNMEASURED = (
    "nothing was measured, since these aggregations have no knobs (attention and maxima on GPUs); "
    'plan.transfer = "auto" chooses a transfer by what rows cost'
)


@dataclass(frozen=True)
class Found:
    """Result of a search for the aggregations of some layers: ms of an epoch with the default and with ``geometry``."""

    layers: list[tuple[int, str]]
    row_bytes: int
    default_ms: float
    ms: float
    points: int
    geometry: Geometry


def process_tune(path: Path, overrides: tuple[str, ...], transfers: str) -> int:
    """Search with each transfer, and print the settings found; return the exit code. Collective."""
    cores.return_freed_memory()
    leftovers.remove_stale()
    comm = mpi.world()
    with mpi.agree(comm):
        settings = config.load(path, overrides)
        if settings.model.module:
            raise InputError(
                f"{path}: has model.module, and mgg tune searches for the named models (model.name)"
            )
        names = _names(transfers)
    if comm.size == 1:  # no row is remote, so the transfer does not matter
        names = names[:1] if transfers != "all" else ["direct"]
    if len(names) > 1:
        _reserve_for_any(settings, comm)
    found: dict[str, list[Found]] = {}
    for name in names:
        try:
            found[name] = _search(settings, name, comm)
        except InputError as error:
            if not found and (transfers != "all" or "plan.transfer" not in str(error)):
                raise
            if comm.rank == 0:
                report.print_line(f"without {name}: {error}")
    if comm.rank == 0:
        _print(settings, comm.size, found)
    exit_code.record(0)
    return 0


def _names(asked: str) -> list[str]:
    """Return the transfers of --transfers. Raises InputError."""
    names = list(TRANSFERS) if asked == "all" else [name.strip() for name in asked.split(",")]
    for name in names:
        if name not in TRANSFERS:
            raise InputError(f"--transfers: {name!r} is none of {', '.join(TRANSFERS)}")
    return names


def _reserve_for_any(settings: Settings, comm: Any) -> None:
    """Reserve what any transfer needs of a symmetric heap that may not grow, before the first search. Collective.

    A job that chooses its transfer reserves that much.
    """
    asked = settings.run
    if backends.choose(asked.backend, comm, settings.train.dtype, asked.share_gpu).heap_grows:
        return
    with watchdog(settings, comm) as dog:
        _built(settings, "auto", comm, dog).backend.memory.close()


def _built(settings: Settings, transfer: str, comm: Any, dog: Watchdog) -> Job:
    """Build a job that searches all knobs with a transfer, on the whole graph. Collective.

    Aggregations over the whole graph are measured, which jobs on batches have in their evaluation.
    """
    plan = msgspec.structs.replace(settings.plan, transfer=transfer, tune="full")
    train = msgspec.structs.replace(settings.train, mode="full")
    settings = msgspec.structs.replace(settings, plan=plan, train=train)
    return build(settings, comm, phases=PhaseTimer(comm, dog, NOTHING))


def _search(settings: Settings, transfer: str, comm: Any) -> list[Found]:
    """Train until all searches have ended; return their results. Collective."""
    with watchdog(settings, comm) as dog:
        job = _built(settings, transfer, comm, dog)
        with backends.closed_on_error(job.close):
            memory.check(job, memory.estimate(job))
            trainer = Trainer(job, job.graph(), records=False)
            tuner = Tuner(job, LONGEST, trainer.replayed, None, known=False)
            epoch = 0
            while tuner.searching:
                epoch += 1
                dog.step(f"epoch {epoch}", repeats=True)
                tuner.before(epoch)
                for _ in trainer.run(epoch):
                    pass
                job.backend.stream.finish()
                trainer.cost.meter.settle()
                tuner.after(trainer.cost.meter)
                signals.check(comm, NOTHING)
        job.backend.memory.close()
    if comm.rank == 0:
        report.print_line(f"{transfer}: {counted(epoch, 'epoch')}")
    return [_found(target) for target in tuner.targets if target.search is not None]


def _found(target: Target) -> Found:
    assert target.search is not None
    default, best = (1e3 * seconds for seconds in target.search.seconds)
    points = target.search.points
    return Found(target.layers, target.format.row_bytes, default, best, points, target.geometry)


def _print(settings: Settings, ranks: int, found: dict[str, list[Found]]) -> None:
    """Print a table of all settings found and the lines for the job file, or that nothing was measured."""
    if not any(found.values()):
        report.print_line(UNMEASURED)
        return
    table = Table(title="aggregations of an epoch, the slowest rank's time in ms")
    for column in ("transfer", "layers", "row bytes", "default", "found", "gain", "points", "setting"):
        table.add_column(column, justify="left" if column in ("transfer", "layers", "setting") else "right")
    for name, rows in found.items():
        for row in rows:
            table.add_row(
                name if ranks > 1 else "none",
                ", ".join(f"{layer} {direction}" for layer, direction in row.layers),
                str(row.row_bytes),
                f"{row.default_ms:.2f}",
                f"{row.ms:.2f}",
                f"{1 - row.ms / row.default_ms:.0%}",
                str(row.points),
                shown(row.geometry),
            )
    console().print(table)
    if ranks == 1:
        report.print_line("'mgg train' finds these settings by itself")
        return
    each = choose_each({name: _by_layer(rows, settings.model.layers) for name, rows in found.items()})
    transfer = each[0] if len(set(each)) == 1 else each
    report.print_line("for the job file; 'mgg train' finds ps, dist and wpb by itself:\n")
    report.print_line(tomli_w.dumps({"plan": {"transfer": transfer}}))


def _by_layer(rows: list[Found], layers: int) -> list[float]:
    """Return the ms of each layer's aggregations; layers measured together share their time equally."""
    ms = [0.0] * layers
    for row in rows:
        for layer, _ in row.layers:
            ms[layer - 1] += row.ms / len(row.layers)
    return ms
