"""`mgg tune`: search for a job's plan without keeping what is trained meanwhile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import tomli_w
from rich.table import Table

from ... import config
from ...config import Settings
from ...errors import InputError
from ...plan.cost_model import TRANSFERS, choose_each
from ...runtime import backends, exit_code, mpi, signals
from .. import memory, report
from ..job import build, watchdog
from ..trainer import Trainer
from .tuner import LONGEST, Target, Tuner, shown

NOTHING = "there was nothing to save"


def process_tune(path: Path, overrides: tuple[str, ...], transfers: str) -> int:
    """Search with each transfer, and print what was found; return the exit code. Collective."""
    memory.return_freed_memory()
    comm = mpi.world()
    with mpi.agree(comm):
        settings = config.load(path, overrides)
        names = _names(transfers)
    if comm.size == 1:
        names = ["direct"]  # no row is remote
    found: dict[str, list[Target]] = {}
    for name in names:
        plan = msgspec.structs.replace(settings.plan, transfer=name, tune="full")
        try:
            found[name] = _search(msgspec.structs.replace(settings, plan=plan), comm)
        except InputError as error:
            if transfers != "all" or "plan.transfer" not in str(error):
                raise
            if comm.rank == 0:
                report.print_line(f"without {name}: {error}")
    if comm.rank == 0:
        _print(settings, found)
    exit_code.record(0)
    return 0


def _names(asked: str) -> list[str]:
    """Return the transfers of --transfers. Raises InputError."""
    names = list(TRANSFERS) if asked == "all" else [name.strip() for name in asked.split(",")]
    for name in names:
        if name not in TRANSFERS:
            raise InputError(f"--transfers: {name!r} is none of {', '.join(TRANSFERS)}")
    return names


def _search(settings: Settings, comm: Any) -> list[Target]:
    """Train until the search has ended; return its targets. Collective."""
    with watchdog(settings, comm) as dog:

        def between() -> None:
            dog.step("the start")
            signals.check(comm, NOTHING)

        job = build(settings, comm, between=between)
        with backends.closed_on_error(job.backend):
            memory.check(job, memory.estimate(job))
            trainer = Trainer(job, job.graph(), records=False)
            tuner = Tuner(job, LONGEST, trainer.replayed, None, known=False)
            meter, epoch = job.backend.stream.meter, 0
            while tuner.searching:
                epoch += 1
                dog.step(f"epoch {epoch}", repeats=True)
                tuner.before(epoch)
                meter.taken()
                trainer.step(epoch)
                job.backend.stream.finish()
                taken = meter.taken()
                taken.settle()
                tuner.after(taken)
                signals.check(comm, NOTHING)
        job.backend.memory.close()
    if comm.rank == 0:
        report.print_line(f"{settings.plan.transfer}: {epoch} epochs")
    return tuner.targets


def _print(settings: Settings, found: dict[str, list[Target]]) -> None:
    """Print a table of all settings that were found, and the lines for the job file."""
    table = Table(title="aggregations of an epoch, the slowest rank's time in ms")
    for column in ("transfer", "layers", "row bytes", "default", "found", "gain", "points", "setting"):
        table.add_column(column, justify="left" if column in ("transfer", "layers", "setting") else "right")
    for name, targets in found.items():
        for target in targets:
            if target.search is None:
                continue
            start, best = (1e3 * seconds for seconds in target.search.seconds)
            layers = ", ".join(f"{layer} {direction}" for layer, direction in target.layers)
            table.add_row(
                name,
                layers,
                str(target.format.row_bytes),
                f"{start:.2f}",
                f"{best:.2f}",
                f"{target.gain:.0%}",
                str(target.search.points),
                shown(target.geometry),
            )
    report.console().print(table)
    each = choose_each({name: _by_layer(targets, settings.model.layers) for name, targets in found.items()})
    transfer = each[0] if len(set(each)) == 1 else each
    report.print_line("for the job file; 'mgg train' finds ps, dist and wpb by itself:\n")
    report.print_line(tomli_w.dumps({"plan": {"transfer": transfer}}))


def _by_layer(targets: list[Target], layers: int) -> list[float]:
    """Return the seconds of each layer's aggregations."""
    seconds = [0.0] * layers
    for target in targets:
        for layer, _ in target.layers:
            if target.search is not None:
                seconds[layer - 1] += target.search.seconds[1] / len(target.layers)
    return seconds
