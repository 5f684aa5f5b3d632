"""`mgg train` and `mgg resume`: build a job, train it epoch by epoch, and write the run folder."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import config
from ..config import CheckpointSettings, Settings
from ..errors import InputError
from ..nn.graph.handle import GraphHandle
from ..nn.inputs.tiered import TieredFeatures
from ..nn.spans import span
from ..runtime import backends, cores, exit_code, leftovers, mpi
from ..runtime.watchdog import Watchdog
from . import footprint, memory, nonfinite, report, run_folder
from .checkpoints import resume, weights
from .checkpoints.folders import START, Position
from .checkpoints.resume import Resumed
from .checkpoints.saver import Saver
from .history import History
from .job import Job, build, resolved, watchdog
from .metrics import F1, SPLITS
from .minibatch import measured
from .profile import profiler
from .profile.phases import Phases
from .screen import Screen
from .start import PhaseTimer
from .summary import summarise
from .trainer import Trainer
from .tuning import tuner as tuning

COLUMNS = ["epoch", "loss", *(f"{split}_accuracy" for split in SPLITS), "epoch_ms", "val_loss", "eval_ms"]
MACRO_COLUMNS = [f"{split}_macro_f1" for split in SPLITS]


def fit(
    job: Job,
    graph: GraphHandle,
    folder: Path | None,
    options: Shown | None = None,
    dog: Watchdog | None = None,
    recorder: profiler.Recorder | None = None,
    resumed: Resumed | None = None,
) -> History:
    """Train until the last epoch, or until patience runs out. Collective.

    Args:
        folder: rank 0's run folder, None on other ranks; None on all ranks to write nothing.
        options: how to show epochs. [default: not]
        dog: watchdog to report progress to.
        recorder: profiles some epochs.
        resumed: run to continue; None begins anew.

    Raises InputError if the loss or a weight is no longer finite, after writing the weights chosen so far, and
    StoppedBySignal as `Saver.save` does.
    """
    options = options or Shown(Screen(False))
    training = _Training(job, graph, folder, dog, recorder, resumed)
    epochs, done, history = job.settings.train.epochs, training.done, training.history
    with contextlib.closing(training.trainer.replayed):
        try:
            bar = options.screen.epochs(epochs, done, options.label, stays=options.whole)
            with bar as show, training.phases.counted():
                for epoch in range(done + 1, epochs + 1):
                    if _is_over(job, history, epoch - 1):
                        break
                    training.run(epoch, show)
        except InputError:
            if history.state:
                weights.save(job.comm, folder, job.part, history.state)
            raise
        return training.end(verbose=options.verbose)


class _Training:
    """A training in progress. Arguments as for `fit`. done: number of epochs that an earlier process has completed."""

    def __init__(
        self,
        job: Job,
        graph: GraphHandle,
        folder: Path | None,
        dog: Watchdog | None,
        recorder: profiler.Recorder | None,
        resumed: Resumed | None,
    ) -> None:
        facts = resumed.facts if resumed else None
        self.job, self.dog, self.recorder, self.done = job, dog, recorder, facts.epoch if facts else 0
        self.trainer = Trainer(job, graph, records=recorder is None)
        # No two epochs of batches sum the same edges, so a search could not compare them.
        left = 0 if recorder or job.sampled else job.settings.train.epochs - self.done
        kept = facts.tuning if facts else []
        self.tuner = tuning.Tuner(job, left, self.trainer.replayed, folder, kept=kept)
        self.history = _begun(self.trainer, self.tuner, resumed)
        self.metrics = None
        with mpi.agree(job.comm):
            if folder:
                columns = COLUMNS + (MACRO_COLUMNS if isinstance(job.metric, F1) else [])
                self.metrics = run_folder.MetricsFile(folder, columns, facts.metrics_bytes if facts else 0)
        self.same = resume.environment(job)
        writes = job.comm.bcast(folder is not None, root=0)
        self.saver = Saver(
            job.comm,
            job.settings.checkpoint if writes else CheckpointSettings(every_epochs=0, every_minutes=0),
            folder and folder / run_folder.CHECKPOINTS,
            all_write=job.learned is not None,
            newest=resumed.at if resumed else START,
            command=report.command("resume {}", folder, job.comm.size) if folder else "",
            metrics=self.metrics,
            dog=dog,
        )
        self.phases = Phases(job.backend.capabilities.device, sampled=job.sampled is not None)

    def run(self, epoch: int, show: Callable[..., None]) -> None:
        """Train for an epoch, evaluate, and record both. Collective. show: as yielded by `Screen.epochs`."""
        trainer, history, recorder = self.trainer, self.history, self.recorder
        if self.dog:
            self.dog.step(f"epoch {epoch}", repeats=True)
        if recorder:
            with self.phases.profiling():
                recorder.begin(epoch)
        self.tuner.before(epoch)
        with span(f"epoch {epoch}"):
            with contextlib.closing(trainer.run(epoch)) as batches:
                for done in batches:
                    self.checkpoint(Position(epoch - 1, done))
                    if self.dog:
                        self.dog.step(f"batch {done + 1} of epoch {epoch}", repeats=True)
                    show(completed=epoch - 1 + done / trainer.steps)
            stream = self.job.backend.stream
            began = stream.stamp()
            trainer.evaluate()
            evaluated = stream.since(began)
            history.loss, scores = trainer.loss(), trainer.scores()  # the host waits for the epoch here
        _check_finite(trainer, history, epoch)
        trainer.end_epoch(scores, history.loss)
        cost, seconds, eval_seconds = trainer.cost, trainer.cost.seconds(), evaluated()
        cost.meter.settle()
        history.add(cost.meter, seconds, eval_seconds, trainer.replayed.recorded)
        self.phases.add(cost.meter, seconds - cost.before, eval_seconds)
        self.tuner.after(history.moved)
        if epoch == self.done + 1:
            self.job.phases.end("first epoch", last=True)
        history.consider(epoch, scores, self.job.weights(), self.job.select)
        if self.metrics:
            fractions = (scores.train, scores.val, scores.test)
            more = (history.epoch_ms[-1], scores.val_loss, history.eval_ms[-1], *scores.macro)
            self.metrics.add([epoch, history.loss, *fractions, *more])
        validation = f"  validation {scores.val:.4f}" if self.job.labels.totals["val"] else ""
        note = f"loss {history.loss:.4f}{validation}"
        x = self.job.x
        if isinstance(x, TieredFeatures) and trainer.counts and trainer.counts.tiers:
            note += f"  {report.hits(trainer.counts.tiers[-1], x.expected)}"
        show(completed=epoch, note=note)
        last = _is_over(self.job, history, epoch)
        if recorder:
            with self.phases.profiling():
                recorder.end(epoch, last=last)
        self.checkpoint(Position(epoch), last=last)

    def checkpoint(self, at: Position, *, last: bool = False) -> None:
        """Write a checkpoint if one is due, or a signal came. Collective."""
        with span("checkpoint"):
            if self.saver.wants(at, last=last):
                training = self.job, self.trainer, self.tuner, self.history
                size = self.metrics.bytes if self.metrics else 0
                state = resume.capture(*training, at=at, metrics_bytes=size, same=self.same)
                self.saver.save(at, state)

    def end(self, *, verbose: bool) -> History:
        """Return the history with the facts of all epochs of this process. Collective.

        verbose: print what the search for parameters has found.
        """
        if self.metrics:
            self.metrics.close()
        history, replayed = self.history, self.trainer.replayed
        history.timed_epochs, history.phases = self.phases.epochs, self.phases.seconds()
        history.tuned = tuning.report_found(self.tuner, first=self.job.comm.rank == 0, verbose=verbose)
        history.recorded, history.not_recorded = replayed.recorded, replayed.failure
        history.batches = self.trainer.counts
        return history


def _begun(trainer: Trainer, tuner: tuning.Tuner, resumed: Resumed | None) -> History:
    """Return the history of the complete epochs, after restoring the trainer to their end. Collective."""
    if resumed is None or resumed.facts is None:
        return History()
    job = trainer.job
    with mpi.agree(job.comm):
        history = resume.restore(resumed, job, trainer)
    now = resume.environment(job) | tuner.environment
    if job.comm.rank == 0:
        report.print_line(f"going on after {resumed.at} of {resumed.run}")
        if (was := resumed.facts.environment.get(resume.SOURCE)) and was != now[resume.SOURCE]:
            report.print_line(
                f"{job.settings.model.module}: its file has changed since {resumed.at} was saved; what follows is "
                "computed by the new one"
            )
        if others := resume.differences(resumed.facts.environment, now):
            report.print_line(f"equal to rounding, not bit by bit: {'; '.join(others)}")
        for name, value in tuner.environment.items():
            report.print_line(f"{name}: {value}")
        report.print_line("")
    return history


def _is_over(job: Job, history: History, epoch: int) -> bool:
    """Return whether training ends after this epoch."""
    train = job.settings.train
    waited = epoch - history.best_epoch if job.select == "best" else 0
    return epoch >= train.epochs or 0 < train.patience <= waited


def _check_finite(trainer: Trainer, history: History, epoch: int) -> None:
    """Raise InputError, naming the first such value, unless the loss and all weights are finite. Collective."""
    if trainer.finite():
        return
    happened = f"the loss of {trainer.where}epoch {epoch} is {history.loss}"
    if np.isfinite(history.loss):
        happened = f"weights are no longer finite after {trainer.where}epoch {epoch}"
    kept = f"; the weights of epoch {history.best_epoch} are kept" if history.state else ""
    raise InputError(
        f"{happened}; first {nonfinite.first(trainer, epoch)}: lower train.learning_rate (it is "
        f"{trainer.job.settings.train.learning_rate}) or scale the features (train.normalize_features){kept}"
    )


@dataclass(frozen=True)
class Shown:
    """How much a training shows.

    screen: tells what is done. verbose: print what was chosen, times, traffic and memory. dry_run: end before training.
    profile: trace a few epochs; then no step is recorded as a CUDA graph. label: what the bar counts. opens, whole:
    print the start; the end too.
    """

    screen: Screen
    verbose: bool = False
    dry_run: bool = False
    profile: bool = False
    label: str = "epoch"
    opens: bool = True
    whole: bool = True


def process_train(path: Path, overrides: tuple[str, ...], options: Shown) -> int:
    """`mgg train`: train the job file's model on all ranks of the world; return the exit code."""
    comm = begin()
    with mpi.agree(comm):
        settings = config.load(path, overrides, clicks=True)
    train(settings, comm, options)
    exit_code.record(0)
    return 0


def process_resume(run: Path, overrides: tuple[str, ...], options: Shown) -> int:
    """`mgg resume`: continue a run from its newest undamaged checkpoint; return the exit code."""
    comm = begin()
    with mpi.agree(comm):
        folder = run_folder.find(run)
        settings = config.load(folder / run_folder.JOB, overrides, of_run=True, clicks=True)
    _resume(settings, comm, folder, options)
    exit_code.record(0)
    return 0


def begin() -> Any:
    """Prepare this process for trainings; return the communicator of all ranks. Collective."""
    cores.return_freed_memory()
    leftovers.remove_stale()
    return mpi.world()


def train(settings: Settings, comm: Any, options: Shown) -> bool:
    """Train a job's model, or go on with the latest run of its folder (run.resume); return whether it was trained.

    Collective.
    """
    run = None
    with mpi.agree(comm):
        if settings.run.resume == "auto" and not options.dry_run and comm.rank == 0:
            run = run_folder.latest(Path(settings.run.folder))
    run = comm.bcast(run, root=0)  # other nodes may see an older state of the folder
    if run is not None:
        return _resume(settings, comm, run, options)
    if settings.dlrm.data:
        _train_dlrm(settings, comm, None, options)
    else:
        _train(settings, comm, None, options)
    return True


def _train_dlrm(settings: Settings, comm: Any, run: Path | None, options: Shown) -> None:
    """Train a DLRM job, or go on with its run. Collective."""
    from .dlrm.trainer import train_dlrm

    for option, given in (("--dry-run", options.dry_run), ("--profile", options.profile)):
        if given:
            check_graph(settings, option)
    train_dlrm(settings, comm, run, options.screen, whole=options.whole)


def check_graph(settings: Settings, option: str) -> None:
    """Raise InputError for a job of clicks, which has no plan that the option could show."""
    if settings.dlrm.data:
        raise InputError(
            f"{option} shows plans of graphs; rows of DLRM's tables are divided evenly, and mgg submit --dry-run "
            "prints the memory of a node"
        )


def _resume(settings: Settings, comm: Any, run: Path, options: Shown) -> bool:
    """Continue a run if there is something left to do, and keep other jobs out of it meanwhile. Collective."""
    with contextlib.ExitStack() as held:
        finished, epochs = False, 0
        with mpi.agree(comm):
            if comm.rank == 0:
                held.enter_context(run_folder.claimed(run))
                finished = resume.is_finished(run)
                epochs = config.load(run / run_folder.JOB, of_run=True, clicks=True).train.epochs
        finished, epochs = comm.bcast((finished, epochs), root=0)
        if finished and settings.train.epochs <= epochs:
            if comm.rank == 0 and options.whole:
                options.screen.hide()
                report.print_line(f"{run} has finished; to train on, raise train.epochs (it was {epochs})")
            return False
        if settings.dlrm.data:
            _train_dlrm(settings, comm, run, options)
            return True
        resumed, settings = resume.load(comm, run, settings)
        _train(settings, comm, resumed, options)
        return True


def _train(settings: Settings, comm: Any, resumed: Resumed | None, options: Shown) -> None:
    """Build the job, train, and write the results. Collective."""
    saved = resumed.saved if resumed else Resumed(Path()).saved
    with watchdog(settings, comm) as dog:
        job = build(settings, comm, phases=PhaseTimer(comm, dog, saved, options.screen.doing))
    with backends.closed_on_error(job.close):
        with mpi.agree(comm):
            if resumed:
                resume.check_graph(resumed, job.part)
        _run(job, resumed, options)
    job.close()


def _estimate(job: Job, *, profile: bool) -> memory.Estimate:
    """Return the memory that this rank needs. Collective. Raises InputError if a job's batches have no room.

    profile: count what a profiler takes.
    """
    job.phases.skip()
    with watchdog(job.settings, job.comm) as dog:
        dog.step("estimating the memory")
        need = memory.estimate(job, trains=job.sampled is None)
        if job.sampled is not None:
            # Before a batch is run. Rows are kept for the next batch, and those of evaluation for the next one: both
            # count.
            memory.check(job, need)
            dog.step("running steps to estimate the memory")
            nbytes, held, on_host = footprint.measure_batches(job)
            need = replace(memory.estimate(job, batches=nbytes), held=held, on_host=on_host)
    if profile:
        need = replace(need, profile=memory.PROFILE)
    if job.opened is not None and (why := job.model.unmeasured) and job.comm.rank == 0:
        report.print_line(
            f"memory: what a step allocates is not known, since the model does not run on a ring: {why}"
        )
    job.phases.end("estimate")
    return need


def _run(job: Job, resumed: Resumed | None, options: Shown) -> None:
    """Run a job from its plan to its summary. Collective."""
    comm, settings = job.comm, job.settings
    need = _estimate(job, profile=options.profile)
    fullest = memory.fullest(job, need)
    options.screen.hide()
    opens = options.opens and comm.rank == 0
    if opens:
        report.print_start(job, fullest, bound=need.bound)
    if options.verbose or options.dry_run:
        if comm.rank == 0:
            report.print_line("")
            report.print_choices(job)
        if options.dry_run:
            report.print_plan(job)
        report.print_memory(job, need)
    memory.check(job, need)
    measured.prepare(job)
    if opens and job.sampled is not None and job.sampled.hybrid is not None:
        report.print_facts(job.sampled.hybrid.facts(job.sampled.steps), report.NAMES)
    if options.dry_run:
        return
    peak = memory.Peak()
    run = resumed.run if resumed else None
    with resume.opened_folder(comm, run, resolved(job)) as folder, watchdog(settings, comm) as dog:
        if opens:
            assert folder is not None  # of the first rank
            report.print_facts({"run": str(report.nearby(folder))}, report.NAMES)
            report.print_line("")
        dog.step("allocating symmetric memory")
        job.phases.skip()
        graph = job.graph()
        job.phases.end("symmetric memory")
        recorder = profiler.Recorder(job) if options.profile else None
        with contextlib.closing(recorder) if recorder else contextlib.nullcontext():
            history = fit(job, graph, folder, options, dog, recorder, resumed)
        dog.step("writing what was found")
        weights.save(comm, folder, job.part, history.state)
        summary = summarise(job, graph, history, need, peak)
        if comm.size > report.MANY and options.verbose:
            report.print_memory(job, need, summary["peak_rss_bytes"][comm.rank])
        if folder is not None:
            run_folder.write_json(folder / run_folder.SUMMARY, summary)
            if options.verbose:
                report.print_phases(summary)
                report.print_details(summary)
        if recorder:
            profiler.finish(job, graph, recorder, folder, dog)
        if folder is not None and options.whole:
            report.print_result(summary, folder)
        mpi.barrier(comm)  # no rank ends while another still writes
