"""Training: every epoch is a forward and a backward pass over all rows of all ranks, or over each of its batches."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import config
from ..config import CheckpointSettings, Settings
from ..errors import InputError
from ..nn.graph.handle import GraphHandle
from ..nn.spans import span
from ..runtime import backends, cores, exit_code, leftovers, mpi, signals
from ..runtime.watchdog import Watchdog
from . import memory, nonfinite, progress, report, run_folder
from .checkpoints import capture, folders, resume, weights
from .checkpoints.folders import START, Position
from .checkpoints.resume import Resumed
from .checkpoints.saver import Saver
from .checkpoints.state import State
from .history import History
from .job import Job, build, resolved, watchdog
from .metrics import F1, SPLITS, Scores
from .minibatch import footprint
from .minibatch.trainer import SampledTrainer
from .profile import profiler
from .profile.phases import Phases
from .profile.summary import summarise
from .trainer import Trainer
from .tuning import tuner as tuning
from .tuning.kept import TUNING, of_facts

COLUMNS = ["epoch", "loss", *(f"{split}_accuracy" for split in SPLITS), "epoch_ms", "val_loss", "eval_ms"]
MACRO_COLUMNS = [f"{split}_macro_f1" for split in SPLITS]


def fit(
    job: Job,
    graph: GraphHandle,
    folder: Path | None,
    shown: bool | None,
    dog: Watchdog | None = None,
    recorder: profiler.Recorder | None = None,
    resumed: Resumed | None = None,
) -> History:
    """Train until the last epoch, or until patience runs out. Collective.

    folder: rank 0's run folder, None elsewhere; None on all ranks to keep nothing. shown: as in `progress.epochs`.
    recorder: profiles some epochs. resumed: what to go on with; None begins anew. Raises InputError when the loss or a
    weight is no longer finite, after writing the weights chosen so far to the folder; and StoppedBySignal as
    `Saver.after_epoch`.
    """
    trainer, train = trainer_of(job, graph, records=recorder is None), job.settings.train
    done, kept = (resumed.at.epoch, of_facts(resumed.facts)) if resumed else (0, None)
    # No two epochs of batches sum the same edges, so a search could not compare them.
    tuned = 0 if recorder or job.sampled else train.epochs - done
    tuner = tuning.Tuner(job, tuned, trainer.replayed, folder, kept=kept)
    history = _begun(job, trainer, tuner, resumed)
    metrics = None
    with mpi.agree(job.comm):
        if folder:
            columns = COLUMNS + (MACRO_COLUMNS if isinstance(job.metric, F1) else [])
            metrics = run_folder.MetricsFile(folder, columns, resumed.metrics_bytes if resumed else 0)
    sound = resumed.at if resumed else START
    saver = _saver(job, trainer, tuner, history, metrics, folder, sound, dog)
    phases = Phases(job.backend.capabilities.device, sampled=job.sampled is not None)
    with contextlib.closing(trainer.replayed):
        try:
            bar = progress.epochs(train.epochs, shown if job.comm.rank == 0 else False, done)
            with bar as shows, phases.counted():
                between = _between(trainer, saver, shows, dog)
                for epoch in range(done + 1, train.epochs + 1):
                    if _is_over(job, history, epoch - 1):
                        break
                    if dog:
                        dog.step(f"epoch {epoch}", repeats=True)
                    if recorder:
                        with phases.profiling():
                            recorder.begin(epoch)
                    tuner.before(epoch)
                    scores = _epoch(trainer, history, epoch, phases, between)
                    tuner.after(history.moved)
                    if epoch == done + 1:
                        job.phases.end("first epoch", last=True)
                    history.consider(epoch, scores, job.weights(), job.select)
                    if metrics:
                        fractions = (scores.train, scores.val, scores.test)
                        more = (history.epoch_ms[-1], scores.val_loss, history.eval_ms[-1], *scores.macro)
                        metrics.add([epoch, history.loss, *fractions, *more])
                    shows.advance(f"loss {history.loss:.4f}  validation {scores.val:.3f}")
                    last = _is_over(job, history, epoch)
                    if recorder:
                        with phases.profiling():
                            recorder.end(epoch, last=last)
                    with span("checkpoint"):
                        saver.after_epoch(epoch, last=last)
        except InputError:
            if history.state:
                weights.save(job.comm, folder, job.part, history.state)
            raise
        if metrics:
            metrics.close()
        _end(history, trainer, tuner, phases)
    return history


def _end(history: History, trainer: Trainer, tuner: tuning.Tuner, phases: Phases) -> None:
    """Add what is known of all epochs of this process. Collective."""
    history.timed_epochs, history.phases = phases.epochs, phases.seconds()
    history.tuned = tuning.report_found(tuner, trainer.job.comm.rank == 0)
    history.recorded, history.not_recorded = trainer.replayed.recorded, trainer.replayed.failure
    history.batches = trainer.counts


def _between(
    trainer: Trainer, saver: Saver, shows: progress.Shows, dog: Watchdog | None
) -> Callable[[int, int], None]:
    """Return what is done between batches, see `Trainer.run`."""

    def between(epoch: int, batches: int) -> None:
        with span("checkpoint"):
            saver.after_batch(epoch - 1, batches)
        if dog:
            dog.step(f"batch {batches + 1} of epoch {epoch}", repeats=True)
        shows.within(epoch - 1 + batches / trainer.steps)

    return between


def trainer_of(job: Job, graph: GraphHandle, *, records: bool) -> Trainer:
    """Return what trains a job, on the whole graph or on batches."""
    return Trainer(job, graph, records=records) if job.sampled is None else SampledTrainer(job, graph)


def _begun(job: Job, trainer: Trainer, tuner: tuning.Tuner, resumed: Resumed | None) -> History:
    """Return the history of the epochs that are done, the trainer being where they ended. Collective."""
    if resumed is None or resumed.at == START:
        return History()
    with mpi.agree(job.comm):
        history = capture.restore(resumed.checkpoint, resumed.facts, resumed.tensors, job, trainer)
    now = capture.environment(job) | tuner.environment
    if job.comm.rank == 0:
        report.print_line(f"going on after {resumed.at} of {resumed.run}")
        if others := capture.differences(resumed.facts["environment"], now):
            report.print_line(f"equal to rounding, not bit by bit: {'; '.join(others)}")
        for name, value in tuner.environment.items():
            report.print_line(f"{name}: {value}")
    return history


def _is_over(job: Job, history: History, epoch: int) -> bool:
    """Whether training ends after this epoch."""
    train = job.settings.train
    waited = epoch - history.best_epoch if job.select == "best" else 0
    return epoch >= train.epochs or 0 < train.patience <= waited


def _saver(
    job: Job,
    trainer: Trainer,
    tuner: tuning.Tuner,
    history: History,
    metrics: run_folder.MetricsFile | None,
    folder: Path | None,
    sound: Position,
    dog: Watchdog | None,
) -> Saver:
    """Return what writes this run's checkpoints. Collective. folder: of the run, on rank 0. sound: see Saver."""
    same = capture.environment(job)
    kept = job.comm.bcast(folder is not None, root=0)
    settings = job.settings.checkpoint if kept else CheckpointSettings(every_epochs=0, every_minutes=0)

    def captured(at: Position) -> State:
        here, bytes_of_metrics = same | tuner.environment, metrics.bytes if metrics else 0
        found = capture.capture(job, trainer, history, at, bytes_of_metrics, here)
        return replace(found, facts={**found.facts, TUNING: tuner.documents()})

    return Saver(
        job.comm,
        settings,
        folder and folder / run_folder.CHECKPOINTS,
        captured,
        before=metrics.sync if metrics else lambda: None,
        apart=job.learned is not None,
        sound=sound,
        again=f"mgg resume {folder}",
        waits=dog.step if dog else lambda what: None,
    )


def _epoch(
    trainer: Trainer, history: History, epoch: int, phases: Phases, between: Callable[[int, int], None]
) -> Scores:
    """Train for an epoch and evaluate; add loss, times and bytes to the history. Raises InputError as `fit` does.

    between: see `Trainer.run`.
    """
    backend = trainer.job.backend
    with span(f"epoch {epoch}"):
        ran = trainer.run(epoch, between)
        began = backend.stream.stamp()
        trainer.evaluate()
        eval_seconds = backend.stream.since(began)
        # Here the host waits for the epoch.
        history.loss, scores = trainer.loss(), trainer.scores()
    if not trainer.finite():
        happened = f"the loss of {trainer.where}epoch {epoch} is {history.loss}"
        if np.isfinite(history.loss):
            happened = f"weights are no longer finite after {trainer.where}epoch {epoch}"
        kept = f"; the weights of epoch {history.best_epoch} are kept" if history.state else ""
        raise InputError(
            f"{happened}; first {nonfinite.first(trainer, epoch)}: lower train.learning_rate (it is "
            f"{trainer.job.settings.train.learning_rate}) or scale the features (train.normalize_features){kept}"
        )
    ran.meter.settle()
    history.add(ran.meter, ran.seconds(), eval_seconds(), trainer.replayed.recorded)
    phases.add(ran.meter, ran.seconds() - ran.before, eval_seconds())
    return scores


def process_train(
    path: Path, overrides: tuple[str, ...], dry_run: bool, shown: bool | None, profile: bool = False
) -> int:
    """`mgg train`: train the job file's model on all ranks of the world; return the exit code.

    profile: trace a few epochs; no epoch is recorded as a CUDA graph then.
    """
    cores.return_freed_memory()
    leftovers.remove_stale()
    comm = mpi.world()
    with mpi.agree(comm):
        settings = config.load(path, overrides)
        goes_on = settings.run.resume == "auto" and not dry_run
        run = run_folder.latest(Path(settings.run.folder)) if goes_on and comm.rank == 0 else None
    run = comm.bcast(run, root=0)  # other nodes may see an older state of the folder
    if run is None:
        return _train(settings, comm, None, Shown(dry_run, shown, profile))
    return _go_on(settings, comm, run, Shown(dry_run, shown, profile))


def process_resume(run: Path, overrides: tuple[str, ...], shown: bool | None) -> int:
    """`mgg resume`: go on with a run from its newest sound checkpoint; return the exit code."""
    cores.return_freed_memory()
    leftovers.remove_stale()
    comm = mpi.world()
    with mpi.agree(comm):
        folder = run_folder.find(run)
        settings = config.load(folder / run_folder.JOB, overrides)
    return _go_on(settings, comm, folder, Shown(False, shown, False))


@dataclass(frozen=True)
class Shown:
    """What a training prints beside its result. dry_run: it ends before it begins. bar: see `progress.epochs`."""

    dry_run: bool
    bar: bool | None
    profile: bool


def _go_on(settings: Settings, comm: Any, run: Path, shown: Shown) -> int:
    """Go on with a run, if there is something left to do. Within it no other job trains in the run. Collective."""
    with contextlib.ExitStack() as held:
        finished, epochs = False, 0
        with mpi.agree(comm):
            if comm.rank == 0:
                held.enter_context(run_folder.claimed(run))
                finished = resume.is_finished(run)
                epochs = config.load(run / run_folder.JOB).train.epochs
        finished, epochs = comm.bcast((finished, epochs), root=0)
        if finished and settings.train.epochs <= epochs:
            if comm.rank == 0:
                report.print_line(f"{run} has finished; to train on, raise train.epochs (it was {epochs})")
            exit_code.record(0)
            return 0
        resumed, settings = resume.load(comm, run, settings)
        return _train(settings, comm, resumed, shown)


def _train(settings: Settings, comm: Any, resumed: Resumed | None, shown: Shown) -> int:
    """Build the job, train, and write what was found. Collective."""
    saved = resumed.saved if resumed else "there was nothing to save"
    with watchdog(settings, comm) as dog:

        def between() -> None:
            dog.step("the start")
            signals.check(comm, saved)

        job = build(settings, comm, between=between)
    with backends.closed_on_error(job.close):
        with mpi.agree(comm):
            if resumed:
                resume.check_graph(resumed, job.part)
        _run(job, resumed, shown)
    job.close()
    exit_code.record(0)
    return 0


def _run(job: Job, resumed: Resumed | None, shown: Shown) -> None:
    """Run a job from its plan to its summary. Collective."""
    comm, settings, root = job.comm, job.settings, job.comm.rank == 0
    if root:
        report.print_start(job)
    if shown.dry_run:
        report.print_plan(job)
    job.phases.skip()
    need = memory.estimate(job, trains=job.sampled is None)
    if job.sampled is not None:
        # Before a batch is run. Rows are kept for the next batch, and those of evaluation for the next one: both count.
        memory.check(job, need)
        need = memory.estimate(job, batches=footprint.measure(job))
    job.phases.end("estimate")
    report.print_memory(job, need)
    memory.check(job, need)
    if shown.dry_run:
        return
    peak = memory.Peak()
    with _folder(job, resumed) as folder, watchdog(settings, comm) as dog:
        dog.step("allocating symmetric memory")
        job.phases.skip()
        graph = job.graph()
        job.phases.end("symmetric memory")
        recorder = profiler.Recorder(job) if shown.profile else None
        with contextlib.closing(recorder) if recorder else contextlib.nullcontext():
            history = fit(job, graph, folder, shown.bar, dog, recorder, resumed)
        dog.step("writing what was found")
        weights.save(comm, folder, job.part, history.state)
        summary = summarise(job, graph, history, need, peak)
        if comm.size > report.MANY:
            report.print_memory(job, need, summary["peak_rss_bytes"][comm.rank])
        if folder is not None:
            report.print_phases(summary)
            report.print_result(summary, run_folder.write_summary(folder, summary), folder)
            if history.not_recorded:
                report.print_line(f"epochs were not recorded as a CUDA graph: {history.not_recorded}")
        if recorder:
            profiler.finish(job, graph, recorder, folder, dog.step)
        mpi.barrier(comm)  # no rank ends while another still writes


@contextlib.contextmanager
def _folder(job: Job, resumed: Resumed | None) -> Iterator[Path | None]:
    """Yield the run's folder on rank 0, with its job as it was resolved; None elsewhere. Collective.

    Within ``with`` no other job trains in it.
    """
    folder = None
    with contextlib.ExitStack() as held:
        with mpi.agree(job.comm):
            if job.comm.rank == 0:
                folder = resumed.run if resumed else run_folder.create(Path(job.settings.run.folder))
                if not resumed:  # `_go_on` holds the others
                    held.enter_context(run_folder.claimed(folder))
                for path in folders.drafts(folder / run_folder.CHECKPOINTS):  # of a job that was killed
                    folders.discard(path)
                if resumed:
                    (folder / run_folder.SUMMARY).unlink(missing_ok=True)
                run_folder.write_whole(folder / run_folder.JOB, config.dumps(resolved(job)).encode())
        yield folder
