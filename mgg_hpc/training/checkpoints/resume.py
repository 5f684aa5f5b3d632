"""Go on with a run: which one, from which checkpoint, and what may have changed since."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from ... import config
from ...config import PlanSettings, Settings
from ...data.readers.limits import shown
from ...errors import InputError
from ...nn.graph.loading import Part
from ...runtime import mpi
from ...runtime.exit_code import write
from .. import run_folder
from ..metrics import Scores
from ..tuning.kept import Kept
from . import folders, state
from .capture import TIMES
from .folders import START, Position

# Keys that may be others than when the run began; the graph is known by its contents, not by its path.
FREE = {"train.epochs", "train.patience", "train.prefetch"}
FREE_SECTIONS = {"graph", "run", "plan", "checkpoint"}


Whole = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _SoFar(msgspec.Struct):
    """Types of `Trainer.under_way`: the summed loss, and the seconds, of the batches of an epoch that are done."""

    loss: float
    seconds: Annotated[float, msgspec.Meta(ge=0)]


class _Facts(msgspec.Struct):
    """The types of what `capture.capture` writes; a checkpoint's digests do not prove who wrote it."""

    epoch: Whole
    metrics_bytes: Whole
    loss: float
    best_epoch: Whole
    best: tuple[float, float]
    scores: Scores
    moved: Annotated[list[Whole], msgspec.Meta(min_length=3, max_length=4)]  # older ones lack messages
    graph: str
    job: str
    environment: dict[str, int | str | list[int]]
    tuning: list[Kept] = []  # checkpoints of earlier versions have none, as of the next two
    batch: Whole = 0
    so_far: _SoFar | None = None


@dataclass(frozen=True)
class Resumed:
    """A run to go on with. at: where its newest sound checkpoint was written; START where there is none."""

    run: Path
    at: Position = START
    checkpoint: Path = Path()
    facts: Mapping[str, Any] = field(default_factory=dict)
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def metrics_bytes(self) -> int:
        """Length of metrics.csv there."""
        return int(self.facts.get("metrics_bytes", 0))

    @property
    def saved(self) -> str:
        """What there is to go on with, for messages."""
        return f"{self.at} is saved" if self.at != START else "there was nothing to save"


def is_finished(run: Path) -> bool:
    """Return whether a run has ended and written its summary."""
    return (run / run_folder.SUMMARY).is_file()


def load(comm: Any, run: Path, settings: Settings) -> tuple[Resumed, Settings]:
    """Return a run's newest sound checkpoint, and the settings to go on with. Collective. Raises InputError.

    settings: those of now. Damaged checkpoints are named on stderr, and the ones before them are tried.
    """
    with mpi.agree(comm):
        found = None
        if comm.rank == 0:
            found = folders.newest(run / run_folder.CHECKPOINTS)
            for line in found.skipped if found else ():
                write(f"mgg: warning: {line}")
    found = comm.bcast(found, root=0)
    with mpi.agree(comm):
        before = config.load(run / run_folder.JOB)
        check_settings(run, before, settings)
        if found is None:
            if is_finished(run):
                raise InputError(
                    f"{run}: has finished without a checkpoint ([checkpoint]); train anew, in another run"
                )
            return Resumed(run), settings
        facts, tensors = state.read(found.folder)
        check_facts(found.folder, found.at, facts, tensors)
        ranks = facts["environment"].get("ranks")
        kept = (
            config.parse(facts["job"], str(found.folder / state.FACTS)).plan if ranks == comm.size else None
        )
        settings = msgspec.structs.replace(settings, plan=plan_of(kept, before.plan, settings.plan))
        return Resumed(run, found.at, found.folder, facts, tensors), settings


def check_facts(folder: Path, at: Position, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Raise InputError for a checkpoint that lacks something, or has it in another type, or of another place."""
    try:
        told = msgspec.convert(facts, _Facts)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{folder}: {state.FACTS} is not of a run of mgg ({str(error)[:200]}); remove this checkpoint to resume "
            "from the one before"
        ) from error
    wrong, of, epoch = "", Position(told.epoch, told.batch), at.epoch
    if of != at or told.best_epoch > epoch or bool(told.batch) != (told.so_far is not None):
        wrong = f"{state.FACTS} is of {of}, the best epoch of them {told.best_epoch}"
    for name, at_most in (("epoch_ms", False), ("eval_ms", False), ("aggregate_ms", True)):
        times = tensors.get(TIMES + name)
        count = -1 if times is None or times.ndim != 1 or times.dtype != torch.float64 else len(times)
        if count < 0 or count > epoch or (count < epoch and not at_most):
            wrong = wrong or f"{state.TENSORS} has no times of {epoch} epochs ({TIMES}{name})"
    if wrong:
        raise InputError(f"{folder}: {wrong}; remove this checkpoint to resume from the one before")


def check_settings(run: Path, before: Settings, now: Settings) -> None:
    """Raise InputError for a key that must not change while a run goes on."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(now)
    for section, keys in old.items():
        if section in FREE_SECTIONS:
            continue
        for key, value in keys.items():
            name = f"{section}.{key}"
            if name not in FREE and new[section][key] != value:
                raise InputError(
                    f"{run}: was started with {name} = {value!r}, and now it is {new[section][key]!r}; "
                    'put it back, or begin another run (mgg train, run.resume = "never")'
                )


def plan_of(kept: PlanSettings | None, before: PlanSettings, now: PlanSettings) -> PlanSettings:
    """Return [plan] to go on with.

    kept: as it was resolved for the checkpoint, if there are as many ranks now; else None. before: of the run's job
    file. now: of the job; a key that differs from ``before`` and is not "auto" is asked for. Others are as they were
    kept, or "auto"; how a graph is streamed is never chosen.
    """
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(now)
    others = msgspec.to_builtins(kept) if kept else dict.fromkeys(new, "auto")
    others |= {key: new[key] for key in ("memory", "scratch")}
    taken = {key: others[key] if new[key] in ("auto", old[key]) else new[key] for key in new}
    return msgspec.convert(taken, PlanSettings)


def check_graph(resumed: Resumed, part: Part) -> None:
    """Raise InputError for another graph than the run was training on."""
    wanted = resumed.facts.get("graph", part.uuid)
    if part.uuid != wanted:
        raise InputError(
            f"{part.path}: is graph {part.uuid}, but {resumed.run} was training on {shown(wanted)[1:-1]}; "
            "put that one back, or name its file by --set graph.file=FILE"
        )
