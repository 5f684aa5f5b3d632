"""Times of a batch's phases on this machine, measured by steps of a job, and kept in the user's cache folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import cast

import msgspec
import numpy as np
import torch
import xxhash

from ... import __version__
from ...data import user_cache
from ...nn.graph.handle import GraphHandle
from ...nn.inputs.tiered import TieredFeatures
from ...plan import hybrid
from ...plan.hybrid import Overlap, Phases, Plan
from ...runtime import cores
from ..job import Job, watchdog
from ..trainer import Trainer
from .executor import OF_PHASE, Hybrid, Run
from .operators import OPERATORS

STEPS, WARM_UP = 20, 2  # batches of each phase that are measured, and those before them
# Keys of [train] that change what a batch or a step on one takes.
TRAIN_KEYS = ("dtype", "recompute", "fanouts", "batch_size", "optimizer", "clip_norm")
FORMAT, VERSION = "mgg-phases", 2


@dataclass(frozen=True)
class Measured:
    """Phases of a batch of the slowest rank, their coefficients of variation by name, and where they were measured."""

    phases: Phases
    spread: dict[str, float]
    machine: dict[str, str | int]
    format: str = FORMAT
    version: int = VERSION


def prepare(job: Job) -> None:
    """Choose how the batches of a job are prepared, if its settings ask for more than the CPU. Collective.

    Phases are those that are kept for this machine and job, else they are measured now.
    """
    sampled, train = job.sampled, job.settings.train
    if sampled is None or train.prepare == "cpu":
        return
    job.phases.skip()
    kept, note = job.comm.bcast(_kept(job) if job.comm.rank == 0 else (None, ""), root=0)
    with watchdog(job.settings, job.comm) as dog:
        found = kept or measure(job, lambda: dog.step("measuring how batches are prepared"))
    if kept is None and job.comm.rank == 0:
        user_cache.write(_name(job), msgspec.to_builtins(found))
    made = Hybrid(train.prepare, found.phases, found.spread, note, train.buffer)
    if made.name == "auto":
        made.name = hybrid.choose(made.plans(sampled.steps)).name
    job.sampled = replace(sampled, hybrid=made)
    job.phases.end("measure")


def measure(job: Job, progress: Callable[[], None] = lambda: None) -> Measured:
    """Take steps on the first batches, on a copy of the model, in overlaps of one batch of each side. Collective.

    progress: called before each step.
    """
    sampled, comm = job.sampled, job.comm
    assert sampled is not None
    workers = min(comm.allgather(job.backend.options.threads))
    # Nothing of the whole graph is used.
    trainer = Trainer(replace(job, model=deepcopy(job.model)), cast(GraphHandle, None), records=False)
    epoch, spent = 0, {name: list[float]() for name in OF_PHASE.values()}
    wanted = WARM_UP + min(STEPS, 2 * sampled.steps)
    while min(map(len, spent.values())) < wanted:
        epoch += 1
        both, alone = Overlap(1, 1), Overlap(epoch % 2, 1 - epoch % 2)  # where an epoch has one batch only
        overlaps = ((min(sampled.steps // 2, wanted), both) if sampled.steps > 1 else (1, alone),)
        plan = Plan("measured", Phases(1, 1, 1, 1, workers), overlaps, (1, 1), 0)
        run = Run(sampled.source, sampled.batches, plan, epoch)
        with contextlib.closing(run.batches()) as batches:
            for batch in batches:
                progress()
                trainer.take(batch)
        job.backend.stream.finish()
        for name, seconds in run.spent().items():
            spent[name].extend(seconds)
    job.backend.stream.meter.taken()
    if isinstance(job.x, TieredFeatures):
        job.x.taken()
    mine = {name: np.array(each[WARM_UP:]) for name, each in spent.items()}
    each = comm.allgather([(times.mean(), times.std() / (times.mean() or 1)) for times in mine.values()])
    means, spread = (dict(zip(mine, most, strict=True)) for most in np.max(each, axis=0).T.tolist())
    return Measured(Phases(**means, workers=workers), spread, _machine(job))


def _machine(job: Job) -> dict[str, str | int]:
    """Return what must be equal for kept times to hold."""
    here: dict[str, str | int] = {
        "cpu": cores.processor(),
        "cores": cores.available(),
        "threads": job.backend.options.threads,
    }
    by = {
        f"{phase}.{hardware}": f"{operator.__module__}.{getattr(operator, '__qualname__', type(operator).__qualname__)}"
        for phase, known in OPERATORS.items()
        for hardware, operator in known.items()
    }
    gpu = {} if job.backend.capabilities.device == "cpu" else {"GPU": torch.cuda.get_device_name()}
    return here | gpu | by | {"mgg": __version__}


def _name(job: Job) -> str:
    """Return the file name, in the user's cache folder, of the times of jobs with batches like this job's."""
    settings = job.settings
    of = [
        *(job.part.uuid, job.comm.size, job.backend.capabilities.name),
        *(settings.model, settings.features, settings.run.features),
        *(getattr(settings.train, name) for name in TRAIN_KEYS),
    ]
    return f"phases-{xxhash.xxh3_64_hexdigest(msgspec.json.encode(of))}.json"


def _kept(job: Job) -> tuple[Measured | None, str]:
    """Return the times that are kept for a job, or None, and a note on where its times come from."""
    document, wrong = user_cache.read(_name(job), FORMAT, VERSION)
    if document is not None:
        try:
            found, here = msgspec.convert(document, Measured), _machine(job)
            if found.spread.keys() != set(OF_PHASE.values()):
                raise msgspec.ValidationError(f"spread of {', '.join(sorted(found.spread)) or 'nothing'}")
            changed = [name for name in here if found.machine.get(name) != here[name]]
            if not changed:
                return found, "kept from an earlier run"
            name = changed[0]
            wrong = f"the kept ones are of {name} {found.machine.get(name)}, and here it is {here[name]}"
        except msgspec.ValidationError as error:
            wrong = f"{user_cache.folder() / _name(job)}: ignored, since it is damaged: {error}"
    return None, f"measured now{wrong and f' ({wrong})'}"
