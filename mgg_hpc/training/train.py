"""Full-graph training: every epoch is one forward and one backward pass over all rows of all ranks."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import config
from ..errors import InputError
from ..nn.graph.handle import GraphHandle
from ..nn.spans import span
from ..runtime import backends, exit_code, mpi
from ..runtime.backends.base import Meter
from ..runtime.watchdog import Watchdog
from . import checkpoint, memory, nonfinite, progress, report, run_folder
from .job import Job, build, watchdog
from .metrics import F1, SPLITS, Scores
from .profile import profiler
from .trainer import Trainer

COLUMNS = ["epoch", "loss", *(f"{split}_accuracy" for split in SPLITS), "epoch_ms", "val_loss", "eval_ms"]
MACRO_COLUMNS = [f"{split}_macro_f1" for split in SPLITS]
GRAPH_FACTS = ("name", "nodes", "edges", "features", "classes", "multilabel", "uuid")


@dataclass
class History:
    """Times in ms and bytes of the epochs, and the best validation so far with its weights."""

    epoch_ms: list[float] = field(default_factory=list)
    eval_ms: list[float] = field(default_factory=list)
    aggregate_ms: list[float] = field(default_factory=list)
    moved: Meter = field(default_factory=Meter)  # rows that the last training step read
    best_epoch: int = 0
    best: tuple[float, float] = (-1.0, 0.0)  # validation score, minus the validation loss
    scores: Scores = field(default_factory=lambda: Scores(0.0, 0.0, 0.0, 0.0))
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: float = float("nan")
    recorded: bool = False  # whether epochs were replayed as a CUDA graph
    not_recorded: str = ""  # why recording failed

    def add(self, meter: Meter, step_seconds: float, eval_seconds: float, replayed: bool) -> None:
        """Add an epoch's times and bytes. replayed: the times of its aggregations are not known."""
        self.epoch_ms.append(step_seconds * 1e3)
        self.eval_ms.append(eval_seconds * 1e3)
        if not replayed:
            self.aggregate_ms.append(meter.seconds * 1e3)
        self.moved = meter

    def consider(self, epoch: int, scores: Scores, weights: Mapping[str, torch.Tensor], select: str) -> None:
        """Keep a copy of these weights if they are chosen: the last, or the best (ties: the lower validation loss)."""
        value = (scores.val, -scores.val_loss if np.isfinite(scores.val_loss) else -np.inf)
        if select == "last" or value > self.best:
            self.best, self.best_epoch, self.scores = value, epoch, scores
            self.state = {name: tensor.detach().clone() for name, tensor in weights.items()}


def fit(
    job: Job,
    graph: GraphHandle,
    folder: Path | None,
    shown: bool | None,
    dog: Watchdog | None = None,
    recorder: profiler.Recorder | None = None,
) -> History:
    """Train until the last epoch, or until patience runs out. Collective.

    folder: rank 0's run folder, None elsewhere. shown: as in `progress.epochs`. recorder: profiles some epochs. Raises
    InputError when the loss or a weight is no longer finite, after writing the weights chosen so far to the folder.
    """
    trainer, history, train = Trainer(job, graph, records=recorder is None), History(), job.settings.train
    columns = COLUMNS + (MACRO_COLUMNS if isinstance(job.metric, F1) else [])
    metrics = run_folder.MetricsFile(folder, columns) if folder else None
    with contextlib.closing(trainer.replayed):
        try:
            with progress.epochs(train.epochs, shown if job.comm.rank == 0 else False) as advance:
                for epoch in range(1, train.epochs + 1):
                    if dog:
                        dog.step(f"epoch {epoch}")
                    if recorder:
                        recorder.begin(epoch)
                    scores = _epoch(trainer, history, epoch)
                    if epoch == 1:
                        job.phases.end("first epoch")
                    history.consider(epoch, scores, job.weights(), job.select)
                    if metrics:
                        fractions = (scores.train, scores.val, scores.test)
                        more = (history.epoch_ms[-1], scores.val_loss, history.eval_ms[-1], *scores.macro)
                        metrics.add([epoch, history.loss, *fractions, *more])
                    advance(f"loss {history.loss:.4f}  validation {scores.val:.3f}")
                    waited = epoch - history.best_epoch if job.select == "best" else 0
                    last = epoch == train.epochs or 0 < train.patience <= waited
                    if recorder:
                        recorder.end(epoch, last=last)
                    if last:
                        break
        except InputError:
            if history.state:
                checkpoint.save(job.comm, folder, job.part, history.state)
            raise
        if metrics:
            metrics.close()
        history.recorded, history.not_recorded = trainer.replayed.recorded, trainer.replayed.failure
    return history


def _epoch(trainer: Trainer, history: History, epoch: int) -> Scores:
    """Run a step and an evaluation; add loss, times and bytes to the history. Raises InputError as `fit` does."""
    backend = trainer.job.backend
    with span(f"epoch {epoch}"):
        backend.stream.meter.taken()
        began = backend.stream.stamp()
        trainer.step(epoch)
        step_seconds, meter = backend.stream.since(began), backend.stream.meter.taken()
        began = backend.stream.stamp()
        trainer.evaluate()
        eval_seconds = backend.stream.since(began)
        # Here the host waits for the epoch.
        history.loss, scores = trainer.loss(), trainer.scores()
    if not trainer.finite():
        happened = f"the loss of epoch {epoch} is {history.loss}"
        if np.isfinite(history.loss):
            happened = f"weights are no longer finite after epoch {epoch}"
        kept = f"; the weights of epoch {history.best_epoch} are kept" if history.state else ""
        raise InputError(
            f"{happened}; first {nonfinite.first(trainer, epoch)}: lower train.learning_rate (it is "
            f"{trainer.job.settings.train.learning_rate}) or scale the features (train.normalize_features){kept}"
        )
    meter.settle()
    history.add(meter, step_seconds(), eval_seconds(), trainer.replayed.recorded)
    return scores


def summarise(
    job: Job, graph: GraphHandle, history: History, need: memory.Estimate, peak: memory.Peak
) -> dict[str, Any]:
    """Return the content of summary.json. Collective."""
    comm, part = job.comm, job.part
    moved = history.moved
    totals = np.array([moved.local_bytes, moved.remote_bytes, moved.remote_rows], dtype=np.int64)
    mpi.sum_in_rank_order(comm, totals)
    timed = comm.allgather(history.aggregate_ms)
    slowest = np.array([each[: min(map(len, timed))] for each in timed]).max(axis=0)
    phases = comm.allgather(job.phases.seconds)
    geometry = job.backend.options.geometry
    return {
        "format": "mgg-summary",
        "version": 1,
        "graph": {name: getattr(part, name) for name in GRAPH_FACTS},
        "model": job.settings.model.name,
        "ranks": comm.size,
        "backend": job.backend.capabilities.name,
        "transfer": str(job.transfer),
        "plan": {"ps": geometry.ps, "dist": report.distance(geometry), "wpb": geometry.wpb},
        "epochs": len(history.epoch_ms),
        "best_epoch": history.best_epoch,
        "metric": job.metric.name,
        "val_accuracy": history.scores.val,
        "test_accuracy": history.scores.test,
        **({"test_macro_f1": history.scores.macro[2]} if history.scores.macro else {}),
        "final_loss": history.loss,
        "start_ms": {name: 1e3 * max(each[name] for each in phases) for name in phases[0]},
        "epoch_ms": report.spread(history.epoch_ms),
        "eval_ms": report.spread(history.eval_ms),
        "aggregate_ms": report.spread(slowest.tolist()),
        "bytes": {"local": int(totals[0]), "remote": int(totals[1])},
        "remote_rows": int(totals[2]),
        "peak_rss_bytes": comm.allgather(peak.read(graph.heap_bytes)),
        "estimated_bytes": comm.allgather(need.total),
        "heap_bytes": graph.heap_bytes,
        "threads": job.backend.options.threads,
        "cuda_graph": history.recorded,
        "cuda_graph_failure": history.not_recorded,
        "seed": job.settings.train.seed,
    }


def process_train(
    path: Path, overrides: tuple[str, ...], dry_run: bool, shown: bool | None, profile: bool = False
) -> int:
    """`mgg train`: train the job file's model on all ranks of the world; return the exit code.

    profile: trace a few epochs; no epoch is recorded as a CUDA graph then.
    """
    memory.return_freed_memory()
    comm = mpi.world()
    with mpi.agree(comm):
        settings = config.load(path, overrides)
    job = build(settings, comm)
    with backends.closed_on_error(job.backend):
        _run(job, dry_run, shown, profile)
    job.backend.memory.close()
    exit_code.record(0)
    return 0


def _run(job: Job, dry_run: bool, shown: bool | None, profile: bool) -> None:
    """Run a job from its plan to its summary. Collective."""
    comm, settings, root = job.comm, job.settings, job.comm.rank == 0
    if root:
        report.print_start(job)
    if dry_run:
        report.print_plan(job)
    job.phases.skip()
    need = memory.estimate(job)
    job.phases.end("estimate")
    report.print_memory(job, need)
    memory.check(job, need)
    if dry_run:
        return
    folder = None
    with mpi.agree(comm):
        if root:
            folder = run_folder.create(Path(settings.run.folder))
            # The transfers that "auto" chose depend on measurements, so the run keeps them.
            taken = config.with_transfer(settings, job.transfer.transfers)
            run_folder.write_whole(folder / run_folder.JOB, config.dumps(taken).encode())
    peak = memory.Peak()
    with watchdog(settings, comm, job.backend) as dog:
        dog.step("allocating symmetric memory")
        job.phases.skip()
        graph = job.graph()
        job.phases.end("symmetric memory")
        recorder = profiler.Recorder(job) if profile else None
        with contextlib.closing(recorder) if recorder else contextlib.nullcontext():
            history = fit(job, graph, folder, shown, dog, recorder)
        dog.step("writing what was found")
        checkpoint.save(comm, folder, job.part, history.state)
        summary = summarise(job, graph, history, need, peak)
        if comm.size > report.MANY:
            report.print_memory(job, need, summary["peak_rss_bytes"][comm.rank])
        if folder is not None:
            report.print_result(summary, run_folder.write_summary(folder, summary), folder)
            if history.not_recorded:
                report.print_line(f"epochs were not recorded as a CUDA graph: {history.not_recorded}")
        if recorder:
            profiler.finish(job, graph, recorder, folder, dog.step)
        mpi.barrier(comm)  # no rank ends while another still writes
