"""Full-graph training: every epoch is one forward and one backward pass over all rows of all ranks."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import config
from ..errors import InputError
from ..nn.graph import GraphHandle
from ..runtime import exit_code, mpi
from . import checkpoint, memory, progress, report, run_folder
from .job import Job, build
from .metrics import Scores, loss_sum, score

COLUMNS = [
    "epoch",
    "loss",
    "train_accuracy",
    "val_accuracy",
    "test_accuracy",
    "epoch_ms",
    "val_loss",
    "eval_ms",
]


class Trainer:
    """The steps of an epoch. Gradients and the loss lie in one array, so that one exchange an epoch sums them."""

    def __init__(self, job: Job, graph: GraphHandle) -> None:
        self.job, self.graph = job, graph
        parameters = list(job.model.parameters())
        self._flat = torch.zeros(sum(p.numel() for p in parameters) + 1, dtype=job.dtype)
        at = 0
        for parameter in parameters:  # autograd adds into these views
            parameter.grad = self._flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        train = job.settings.train
        first = list(job.model.convolutions[0].parameters())
        rest = [p for conv in job.model.convolutions[1:] for p in conv.parameters()]
        decay_rest = train.weight_decay if train.weight_decay_layers == "all" else 0.0
        groups = [{"params": first, "weight_decay": train.weight_decay}]
        if rest:
            groups.append({"params": rest, "weight_decay": decay_rest})
        self._optimizer = torch.optim.Adam(groups, lr=train.learning_rate)

    def step(self, epoch: int) -> float:
        """Forward, loss, backward, reduction, optimiser; returns the mean loss over all training rows. Collective."""
        job = self.job
        job.model.draws.epoch = epoch
        job.model.train()
        self._flat.zero_()
        loss = loss_sum(job.model(job.x, self.graph), job.labels, "train") / job.labels.totals["train"]
        loss.backward()
        self._flat[-1] = loss.detach()
        mpi.sum_in_rank_order(job.comm, self._flat.numpy())
        self._optimizer.step()
        return float(self._flat[-1])

    @torch.no_grad()
    def evaluate(self) -> Scores:
        """Scores with the present weights, without dropout. Collective."""
        self.job.model.eval()
        return score(self.job.comm, self.job.model(self.job.x, self.graph), self.job.labels)


@dataclass
class History:
    """What is remembered of the epochs: times in ms, and the best validation so far."""

    epoch_ms: list[float] = field(default_factory=list)
    eval_ms: list[float] = field(default_factory=list)
    aggregate_ms: list[float] = field(default_factory=list)
    local_bytes: int = 0
    remote_bytes: int = 0
    remote_rows: int = 0
    best_epoch: int = 0
    best: tuple[float, float] = (-1.0, 0.0)  # validation accuracy, minus the validation loss
    scores: Scores = field(default_factory=lambda: Scores(0.0, 0.0, 0.0, 0.0))
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    loss: float = float("nan")

    def consider(self, epoch: int, scores: Scores, model: torch.nn.Module, select: str) -> None:
        """Keep these weights if they are chosen: the last, or the best (ties go to the lower validation loss)."""
        value = (scores.val, -scores.val_loss)
        if select == "last" or value > self.best:
            self.best, self.best_epoch, self.scores = value, epoch, scores
            self.state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def fit(job: Job, graph: GraphHandle, folder: Path | None, shown: bool | None) -> History:
    """Train until the last epoch, or until patience runs out. Collective.

    folder: rank 0's run folder, None elsewhere. shown: as in `progress.epochs`.
    Raises InputError when the loss is no longer finite.
    """
    trainer, history, train = Trainer(job, graph), History(), job.settings.train
    meter = job.backend.meter
    metrics = run_folder.MetricsFile(folder, COLUMNS) if folder else None
    with progress.epochs(train.epochs, shown if job.comm.rank == 0 else False) as bar:
        for epoch in range(1, train.epochs + 1):
            meter.reset()
            began = time.perf_counter()
            history.loss = trainer.step(epoch)
            trained = time.perf_counter()
            history.aggregate_ms.append(meter.seconds * 1e3)
            history.local_bytes, history.remote_bytes = meter.local_bytes, meter.remote_bytes
            history.remote_rows = meter.remote_rows
            if not np.isfinite(history.loss):
                raise InputError(
                    f"the loss of epoch {epoch} is {history.loss}; lower train.learning_rate "
                    f"(it is {train.learning_rate}) or scale the features (train.normalize_features)"
                )
            evaluating = time.perf_counter()
            scores = trainer.evaluate()
            history.epoch_ms.append((trained - began) * 1e3)
            history.eval_ms.append((time.perf_counter() - evaluating) * 1e3)
            history.consider(epoch, scores, job.model, job.select)
            if metrics:
                times = (history.epoch_ms[-1], scores.val_loss, history.eval_ms[-1])
                metrics.add([epoch, history.loss, scores.train, scores.val, scores.test, *times])
            bar.step(f"loss {history.loss:.4f}  validation {scores.val:.3f}")
            if train.patience and job.select == "best" and epoch - history.best_epoch >= train.patience:
                break
    if metrics:
        metrics.close()
    return history


def summarise(job: Job, graph: GraphHandle, history: History, peak: memory.Peak) -> dict[str, Any]:
    """summary.json's content. Collective."""
    comm, part = job.comm, job.part
    totals = np.array([history.local_bytes, history.remote_bytes, history.remote_rows], dtype=np.int64)
    mpi.sum_in_rank_order(comm, totals)
    slowest = np.array(comm.allgather(history.aggregate_ms)).max(axis=0)
    geometry = job.backend.geometry
    return {
        "format": "mgg-summary",
        "version": 1,
        "graph": {
            "name": part.name,
            "nodes": part.nodes,
            "edges": part.edges,
            "features": part.features,
            "classes": part.classes,
            "uuid": part.uuid,
        },
        "model": job.settings.model.name,
        "ranks": comm.size,
        "backend": job.backend.name,
        "transfer": str(job.transfer),
        "plan": {"ps": geometry.ps, "dist": report.distance(geometry), "wpb": geometry.wpb},
        "epochs": len(history.epoch_ms),
        "best_epoch": history.best_epoch,
        "val_accuracy": history.scores.val,
        "test_accuracy": history.scores.test,
        "final_loss": history.loss,
        "epoch_ms": report.spread(history.epoch_ms),
        "eval_ms": report.spread(history.eval_ms),
        "aggregate_ms": report.spread(slowest.tolist()),
        "bytes": {"local": int(totals[0]), "remote": int(totals[1])},
        "remote_rows": int(totals[2]),
        "peak_rss_bytes": comm.allgather(peak.read(graph.heap_bytes)),
        "estimated_bytes": comm.allgather(memory.estimate(job).total),
        "heap_bytes": graph.heap_bytes,
        "threads": job.backend.threads,
        "seed": job.settings.train.seed,
    }


def process_train(path: Path, overrides: tuple[str, ...], dry_run: bool, shown: bool | None) -> int:
    """`mgg train`: train the job file's model on all ranks of the world; returns the exit code."""
    memory.return_freed_memory()
    comm = mpi.world()
    with mpi.agree(comm):
        settings = config.load(path, overrides)
    job = build(settings, comm)
    root = comm.rank == 0
    if root:
        report.print_start(job)
    if dry_run:
        report.print_plan(job)
    memory.check(job)
    if dry_run:
        exit_code.record(0)
        return 0
    folder = None
    with mpi.agree(comm):
        if root:
            folder = run_folder.create(Path(settings.run.folder))
            # What "auto" took depends on what was measured: whoever goes on with this run takes the same.
            taken = config.with_transfer(settings, job.transfer.transfers)
            run_folder.write_whole(folder / run_folder.JOB, config.dumps(taken).encode())
    peak = memory.Peak()
    graph = job.graph()
    history = fit(job, graph, folder, shown)
    summary = summarise(job, graph, history, peak)
    if root:
        assert folder is not None
        checkpoint.save_weights(folder, history.state)
        report.print_result(summary, run_folder.write_summary(folder, summary), folder)
    job.backend.close()
    exit_code.record(0)
    return 0
