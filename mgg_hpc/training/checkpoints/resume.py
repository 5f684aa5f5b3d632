"""Copy the state of a training for a checkpoint, and restore it in a resumed run.

On the same number of ranks, a resumed run gives the same bits as one that was not interrupted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from ... import __version__, config
from ...config import PlanSettings, Settings
from ...errors import InputError, shown
from ...nn.graph.loading import Part
from ...nn.workspace import as_array
from ...runtime import mpi
from ...runtime.backends.native import instruction_set
from .. import run_folder
from ..history import History
from ..job import Job, resolved
from ..metrics import Scores
from ..optimizers import TorchOptimizer
from ..trainer import Trainer
from ..tuning.target import TunedRow
from ..tuning.tuner import Tuner
from . import folders, state
from .folders import START, Position
from .state import State, on_host
from .weights import LEARNED

# Keys that a resumed run may change. Graphs and click files are identified by content, not by path.
FREE = {f"train.{key}" for key in ("epochs", "patience", "prefetch", "prepare", "buffer")}
FREE |= {"dlrm.data", "dlrm.memory", "dlrm.scratch"}  # where rows lie changes no bit
FREE_SECTIONS = {"graph", "run", "plan", "checkpoint", "features"}

ADVICE = 'put it back, or begin another run (mgg train, run.resume = "never")'

MODEL, ADAM, CHOSEN, TIMES = "model.", "adam.", "chosen.", "times."  # prefixes of tensors' names
ROWS, CHOSEN_ROWS = "rows", "chosen"  # files of learned rows; the optimiser's are named as in `Adam.slots`
SOURCE = "model.module"  # entry of `environment`: a digest of the file of the user's model
_TIMES = ("epoch_ms", "eval_ms", "aggregate_ms")
_MOVED = ("local_bytes", "remote_bytes", "remote_rows", "messages")

Whole = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]


class _SoFar(msgspec.Struct):
    """Summed loss and seconds of the complete batches of an epoch."""

    loss: float
    seconds: Annotated[float, msgspec.Meta(ge=0)]


class Facts(msgspec.Struct, kw_only=True):
    """Content of state.json. Types are checked on reading, as a checkpoint's digests do not prove who wrote it."""

    epoch: Whole
    metrics_bytes: Whole
    loss: float
    best_epoch: Whole
    best: tuple[float, float]
    scores: Scores
    moved: Annotated[list[Whole], msgspec.Meta(min_length=3, max_length=4)]  # older checkpoints lack messages
    graph: str
    job: str
    environment: dict[str, int | str | list[int]]
    # Checkpoints of earlier versions lack the rest.
    tuning: list[TunedRow] = []
    batch: Whole = 0
    so_far: _SoFar | None = None
    optimizer: dict[str, Any] = {}  # `TorchOptimizer.facts`


@dataclass(frozen=True)
class Resumed:
    """A run to resume, and the content of its newest undamaged checkpoint.

    at: position of the checkpoint. If there is none, ``at`` is START and ``facts`` None. checkpoint: its
    folder.
    """

    run: Path
    at: Position = START
    checkpoint: Path = Path()
    facts: Facts | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)

    @property
    def saved(self) -> str:
        """Which position is saved, as a phrase for messages."""
        return f"{self.at} is saved" if self.at != START else "there was nothing to save"


def environment(job: Job) -> dict[str, Any]:
    """Return the properties of ranks, machine and libraries on which the bits of the results depend.

    Collective.
    """
    return {
        "ranks": job.comm.size,
        "threads": job.comm.allgather(job.backend.options.threads),
        "backend": job.backend.capabilities.name,
        "instruction set": instruction_set(),
        "torch's instruction set": torch.backends.cpu.get_cpu_capability(),
        "torch": str(torch.__version__),
        "mgg": __version__,
        **({SOURCE: job.model.digest} if job.opened is not None else {}),
    }


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return a phrase, for messages, for each entry of `environment` that differs between runs."""
    return [
        f"{name} {_short(now.get(name))} in place of {_short(value)}"
        for name, value in before.items()
        if name != SOURCE
        and now.get(name) != value
        and not (name == "threads" and before.get("ranks") != now.get("ranks"))
    ]


def _short(value: Any) -> str:
    return str(value[0] if isinstance(value, list) and len(set(value)) == 1 else value)


def _trained(job: Job, trainer: Trainer) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return the tensors that training changes, by their names in a checkpoint, as two dictionaries.

    The first has the parameters, buffers and optimiser state that are the same on all ranks; the second has
    this rank's learned input rows with their optimiser state.
    """
    names = {id(parameter): name for name, parameter in job.model.named_parameters()}
    tensors = {MODEL + name: value for name, value in job.model.state_dict().items()}
    rows = {} if job.learned is None else {ROWS: job.learned.detach()}
    for parameter, slots in trainer.optimizer.slots():
        for slot, value in slots.items():
            if parameter is job.learned and value.shape == parameter.shape:
                rows[slot] = value
            else:
                tensors[f"{ADAM}{slot}.{names.get(id(parameter), LEARNED)}"] = value
    return tensors, rows


def capture(
    job: Job,
    trainer: Trainer,
    tuner: Tuner,
    history: History,
    *,
    at: Position,
    metrics_bytes: int,
    same: Mapping[str, Any],
) -> State:
    """Return a copy of this rank's training state, in the host's memory. Waits for the device.

    at: number of complete epochs and batches. metrics_bytes: length of metrics.csv on rank 0. same: the job's
    `environment`.
    """
    so_far = trainer.so_far
    facts = Facts(
        epoch=at.epoch,
        batch=at.batch,
        so_far=_SoFar(so_far.loss, so_far.seconds) if at.batch else None,
        metrics_bytes=metrics_bytes,
        loss=history.loss,
        best_epoch=history.best_epoch,
        best=history.best,
        scores=history.scores,
        moved=[getattr(history.moved, name) for name in _MOVED],
        graph=job.part.uuid,
        job=config.dumps(resolved(job)),
        environment={**same, **tuner.environment},
        tuning=tuner.rows(),
        optimizer=trainer.optimizer.facts() if isinstance(trainer.optimizer, TorchOptimizer) else {},
    )
    tensors, rows = _trained(job, trainer)
    if job.learned is not None:
        rows[CHOSEN_ROWS] = history.state[LEARNED]
    tensors |= {CHOSEN + name: value for name, value in history.state.items() if name != LEARNED}
    tensors |= {TIMES + name: torch.tensor(getattr(history, name), dtype=torch.float64) for name in _TIMES}
    return State(
        msgspec.to_builtins(facts),
        {name: on_host(value) for name, value in tensors.items()} if job.comm.rank == 0 else {},
        job.part.slice.ids if rows else None,
        {name: as_array(on_host(value)) for name, value in rows.items()},
    )


def restore(resumed: Resumed, job: Job, trainer: Trainer) -> History:
    """Copy a checkpoint into the model and optimiser of a new job, and return the history up to the checkpoint.

    The optimiser must not have taken a step. Not collective, but all ranks must call it: each reads the learned
    rows of its own nodes. Raises InputError if the checkpoint does not fit the job.
    """
    facts, tensors, where = resumed.facts, resumed.tensors, str(resumed.checkpoint)
    assert facts is not None
    if isinstance(trainer.optimizer, TorchOptimizer):
        _allocate(resumed, job, trainer.optimizer)
        trainer.optimizer.restore(facts.optimizer)
    trained, rows = _trained(job, trainer)
    state.copy_into(where, tensors, (MODEL, ADAM), trained)
    chosen: dict[str, Tensor] = {}
    if facts.best_epoch:  # within the first epoch nothing is chosen
        chosen = {CHOSEN + name: torch.empty_like(value) for name, value in job.model.state_dict().items()}
        state.copy_into(where, tensors, CHOSEN, chosen)
        chosen = {name.removeprefix(CHOSEN): value for name, value in chosen.items()}
    if job.learned is not None:
        rows[CHOSEN_ROWS] = chosen[LEARNED] = torch.empty_like(job.learned)
        found = state.read_rows(resumed.checkpoint, rows, job.part.slice.ids)
        state.copy_into(where, {name: torch.from_numpy(array) for name, array in found.items()}, "", rows)
    if facts.so_far is not None:
        trainer.skip(facts.epoch + 1, facts.batch, loss=facts.so_far.loss, seconds=facts.so_far.seconds)
    epoch_ms, eval_ms, aggregate_ms = (tensors[TIMES + name].tolist() for name in _TIMES)
    history = History(
        epoch_ms=epoch_ms,
        eval_ms=eval_ms,
        aggregate_ms=aggregate_ms,
        best_epoch=facts.best_epoch,
        best=facts.best,
        scores=facts.scores,
        state=chosen,
        loss=facts.loss,
    )
    if job.comm.rank == 0:  # the counts are rank 0's; the next epoch counts anew
        for name, count in zip(_MOVED, facts.moved, strict=False):
            setattr(history.moved, name, count)
    return history


def _allocate(resumed: Resumed, job: Job, optimizer: TorchOptimizer) -> None:
    """Allocate all state tensors that a checkpoint has for an optimiser which has not taken a step yet."""
    named = {name: each for name, each in job.model.named_parameters() if each.requires_grad}
    if job.learned is not None:
        named[LEARNED] = job.learned
        for path in resumed.checkpoint.glob("rows.0.*.npy"):
            slot = path.name.split(".")[2]
            if slot not in (state.IDS, ROWS, CHOSEN_ROWS):
                optimizer.allocate(job.learned, slot, job.learned)
    for name, value in resumed.tensors.items():
        slot, _, parameter = name.removeprefix(ADAM).partition(".")
        if name.startswith(ADAM) and parameter in named:  # others are refused with what is missing
            optimizer.allocate(named[parameter], slot, value)


def is_finished(run: Path) -> bool:
    """Return whether a run has ended and written its summary."""
    return (run / run_folder.SUMMARY).is_file()


def load(comm: Any, run: Path, settings: Settings) -> tuple[Resumed, Settings]:
    """Return a run's newest undamaged checkpoint, and the settings to continue with. Collective.

    run: run folder. settings: settings of the present job. Damaged checkpoints are named on stderr. Raises
    InputError as `newest` does, and if the checkpoint is not of such a run.
    """
    found, before = newest(comm, run, settings)
    if found is None:
        return Resumed(run), settings
    with mpi.agree(comm):
        given, tensors = state.read(found.folder)
        facts = _checked(found.folder, found.at, given, tensors)
        kept = None
        if facts.environment.get("ranks") == comm.size:
            kept = config.parse(facts.job, str(found.folder / state.FACTS)).plan
        settings = msgspec.structs.replace(settings, plan=plan_of(kept, before.plan, settings.plan))
        return Resumed(run, found.at, found.folder, facts, tensors), settings


def newest(comm: Any, run: Path, settings: Settings) -> tuple[folders.Found | None, Settings]:
    """Find a run's newest undamaged checkpoint. Returns it, or None, and the settings of the run. Collective.

    run: run folder. settings: settings of the present job. Raises InputError if ``settings`` changes a key that
    a resumed run must keep (`check_settings`), if all checkpoints are damaged, and if the run has finished
    without writing one.
    """
    with mpi.agree(comm):
        found = folders.newest(run / run_folder.CHECKPOINTS) if comm.rank == 0 else None
    found = comm.bcast(found, root=0)
    with mpi.agree(comm):
        before = config.load(run / run_folder.JOB, of_run=True, clicks=True)
        check_settings(run, before, settings)
        if found is None and is_finished(run):
            raise InputError(
                f"{run}: has finished without a checkpoint ([checkpoint]); train anew, in another run"
            )
    return found, before


@contextmanager
def opened_folder(comm: Any, run: Path | None, settings: Settings) -> Iterator[Path | None]:
    """Yield the run folder on rank 0, with ``settings`` written as its job file; None on other ranks.

    Collective. run: folder of a resumed run, which `train` has locked. [default: create a new one, and lock it
    within ``with`` against other jobs]
    """
    folder = None
    with ExitStack() as held:
        with mpi.agree(comm):
            if comm.rank == 0:
                folder = run or run_folder.create(Path(settings.run.folder))
                if run is None:
                    held.enter_context(run_folder.claimed(folder))
                for path in folders.drafts(folder / run_folder.CHECKPOINTS):  # of a killed job
                    folders.discard(path)
                (folder / run_folder.SUMMARY).unlink(missing_ok=True)
                run_folder.write_whole(folder / run_folder.JOB, config.dumps(settings).encode())
        yield folder


def _checked(folder: Path, at: Position, given: Any, tensors: Mapping[str, Tensor]) -> Facts:
    """Return the content of a checkpoint's state.json, checked.

    given: the parsed JSON. at: position in the folder's name. Raises InputError for a missing entry, a wrong
    type, another position than ``at``, or tensors of times that do not have one per epoch.
    """
    wrong = ""
    try:
        facts = msgspec.convert(given, Facts)
    except msgspec.ValidationError as error:
        wrong = f"{state.FACTS} is not of a run of mgg ({str(error)[:200]})"
    else:
        found, epoch = Position(facts.epoch, facts.batch), at.epoch
        if found != at or facts.best_epoch > epoch or bool(facts.batch) != (facts.so_far is not None):
            wrong = f"{state.FACTS} is of {found}, the best epoch of them {facts.best_epoch}"
        for name in _TIMES:
            times = tensors.get(TIMES + name)
            count = -1 if times is None or times.ndim != 1 or times.dtype != torch.float64 else len(times)
            # Epochs that replayed a CUDA graph have no times of aggregations.
            if count != epoch and not (name == "aggregate_ms" and 0 <= count < epoch):
                wrong = wrong or f"{state.TENSORS} has no times of {epoch} epochs ({TIMES}{name})"
    if wrong:
        raise InputError(f"{folder}: {wrong}; remove this checkpoint to resume from the one before")
    return facts


def check_settings(run: Path, before: Settings, now: Settings, advice: str = ADVICE) -> None:
    """Raise InputError if a key differs that must stay the same in a resumed run.

    before, now: settings of the run, and of the present job. advice: end of the error message, what to do about
    it.
    """
    kinds = ["clicks" if each.dlrm.data else "graphs" for each in (before, now)]
    if kinds[0] != kinds[1]:
        raise InputError(f"{run}: is a run of {kinds[0]}, and the job is one of {kinds[1]}; {advice}")
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(now)
    for section, keys in old.items():
        for key, value in keys.items():
            name = f"{section}.{key}"
            if section not in FREE_SECTIONS and name not in FREE and new[section][key] != value:
                raise InputError(
                    f"{run}: was started with {name} = {value!r}, and now it is {new[section][key]!r}; {advice}"
                )


def plan_of(kept: PlanSettings | None, before: PlanSettings, now: PlanSettings) -> PlanSettings:
    """Return the section [plan] of the settings to continue with.

    A key is taken from ``now`` if it differs from ``before`` and is not "auto"; memory and scratch always are.
    All other keys are taken from ``kept``, or are "auto" without it.

    Args:
        kept: the section with all choices made, from the checkpoint; None on another number of ranks.
        before: the section in the run's job file.
        now: the section in the present job.
    """
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(now)
    others = msgspec.to_builtins(kept) if kept else dict.fromkeys(new, "auto")
    others |= {key: new[key] for key in ("memory", "scratch")}
    taken = {key: others[key] if new[key] in ("auto", old[key]) else new[key] for key in new}
    return msgspec.convert(taken, PlanSettings)


def check_graph(resumed: Resumed, part: Part) -> None:
    """Raise InputError unless the graph is the one that the run was training on."""
    if resumed.facts is not None:
        check_uuid(part.path, "graph", part.uuid, resumed.run, resumed.facts.graph, "graph.file")


def check_uuid(path: object, what: str, mine: str, run: Path, before: object, key: str) -> None:
    """Raise InputError unless a file is the one that a run was training on.

    what: kind of file, for the message. mine, before: uuids of the file and of the run's file. key: key of the
    file in job files, such as graph.file.
    """
    if mine != before:
        raise InputError(
            f"{path}: is {what} {mine}, but {run} was training on {shown(before)[1:-1]}; "
            f"put that one back, or name its file by --set {key}=FILE"
        )
