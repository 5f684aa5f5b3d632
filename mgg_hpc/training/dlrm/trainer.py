"""Training of DLRM: epochs, scores, checkpoints of shards by id, and the run folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits as bce

from ... import config
from ...config import Settings
from ...data.clicks.store import open_clicks
from ...errors import InputError
from ...nn.embedding.rows import ShardedRows
from ...nn.gradients import sum_gradients
from ...runtime import backends, mpi
from ...runtime.backends.base import Collectives, Meter
from ...runtime.backends.host.components import HostCollectives
from ...runtime.tiers.place import FILE, NEAR
from ...runtime.timing import spread
from .. import memory, report, run_folder
from ..checkpoints import state
from ..checkpoints.folders import START, Position
from ..checkpoints.resume import check_uuid, newest, opened_folder
from ..checkpoints.saver import Saver
from ..checkpoints.state import State, on_host
from ..job import watchdog
from ..metrics import ClickScores, click_scores
from ..screen import Screen
from .job import DlrmJob

COLUMNS = ["epoch", "loss", *ClickScores._fields, "epoch_ms", "eval_ms"]
TITLES = {
    "final_loss": "loss",
    "auc": "AUC",
    "log_loss": "log loss",
    "normalised_entropy": "normalised entropy",
}
MODEL, OPTIMIZER = "model.", "optimizer."


class DlrmTrainer:
    """Steps and scores of a job, and what a checkpoint holds of it.

    Attributes: loss: of the epoch so far, summed. moved: what the last epoch read, None before its end.
    """

    moved: Meter | None = None

    def __init__(self, job: DlrmJob) -> None:
        self.job, self.loss = job, 0.0
        # Gradients are on the GPU; on CPUs of several nodes tables have backends of one rank.
        host = HostCollectives(job.comm.rank, job.comm.size, job.comm)
        self._collectives: Collectives = job.rows.backend.collectives if job.device == "cuda" else host

    def epoch(self, epoch: int, first: int, after: Callable[[int], None]) -> float:
        """Train for an epoch from batch ``first`` on; return its mean loss. Collective.

        after: called after each batch but the last, with the number of complete ones. Raises InputError, the same on
        all ranks, for a loss that is not finite.
        """
        job, optimizer, meter = self.job, self.job.optimizer, self.job.rows.backend.stream.meter
        meter.taken()
        self.loss = self.loss if first else 0.0
        for done, batch in enumerate(job.batches(epoch, first), first + 1):
            optimizer.zero_grad()
            loss = bce(job.model(batch.dense, batch.bags), batch.y, reduction="sum") / batch.total
            loss.backward()
            sum_gradients(job.model.shared, self._collectives)
            total = np.array([float(loss.detach())])
            mpi.sum_in_rank_order(job.comm, total)
            if not np.isfinite(total[0]):
                raise InputError(
                    f"the loss of batch {done} of epoch {epoch} is {total[0]}: lower dlrm.learning_rate"
                )
            optimizer.step()
            self.loss += float(total[0]) * batch.total
            if done < job.steps:
                after(done)
        self.moved = meter.taken()
        return self.loss / job.train_rows

    @torch.no_grad()
    def scores(self) -> ClickScores:
        """Return the scores of the rows for tests, or of all rows if there are none. Collective."""
        model, batches = self.job.model, self.job.test_batches()
        found = [(model(each.dense, each.bags).cpu(), each.y.cpu() > 0) for each in batches]
        scores = click_scores(self.job.comm, *(torch.cat(each).numpy() for each in zip(*found, strict=True)))
        if not np.isfinite(scores.log_loss):
            raise InputError(
                f"the log loss of the rows for tests is {scores.log_loss}: lower dlrm.learning_rate"
            )
        return scores

    def _shared(self) -> dict[str, Tensor]:
        """Return the tensors that are the same on all ranks, by name; those of the optimiser once it has stepped."""
        every = self.job.model.named_parameters()
        found: dict[str, Tensor] = {
            f"{MODEL}{name}": value for name, value in every if not name.startswith("tables.")
        }
        for number, parameter in enumerate(self.job.model.shared):
            for slot, value in self.job.optimizer.state[parameter].items():
                if isinstance(value, Tensor):
                    found[f"{OPTIMIZER}{number}.{slot}"] = value
        return found

    def capture(self, at: Position, metrics_bytes: int) -> State:
        """Return a copy of this rank's state. Raises InputError where a scratch file has no room for it."""
        rows = self.job.rows
        facts: dict[str, Any] = {"epoch": at.epoch, "batch": at.batch, "metrics_bytes": metrics_bytes}
        facts |= {"loss": self.loss, "clicks": self.job.file.uuid, "job": config.dumps(self.job.settings)}
        shared = self._shared() if self.job.comm.rank == 0 else {}
        tensors = {name: on_host(value) for name, value in shared.items()}
        return State(facts, tensors, np.arange(rows.first, rows.last), rows.saved())

    def save(self, saver: Saver, at: Position, metrics_bytes: int) -> None:
        """Begin to write a checkpoint, or warn where the scratch disk is too full for a copy of tables. Collective."""
        try:
            with mpi.agree(self.job.comm):
                copy = self.capture(at, metrics_bytes)
        except InputError as error:
            saver.fail(at, str(error))
        else:
            saver.save(at, copy)

    def resume(self, folder: Path, run: Path) -> int:
        """Restore the training state from a checkpoint, which any number of ranks may have written. Collective.

        folder: the checkpoint. run: run folder, for messages. Returns the length in bytes that metrics.csv had
        then. Raises InputError if the checkpoint is not of such a job, or was written while training on another
        click file.
        """
        with mpi.agree(self.job.comm):
            at, kept = self._restore(folder, run)
        if self.job.comm.rank == 0:
            report.print_line(f"going on after {at} of {run}")
        return kept

    def _restore(self, folder: Path, run: Path) -> tuple[Position, int]:
        facts, tensors = state.read(folder)
        file, before = self.job.file, facts.get("clicks", "")
        if before:  # else of a file without a uuid
            check_uuid(file.path, "clicks", file.uuid or "of no uuid", run, before, "dlrm.data")
        rows = self.job.rows
        state.copy_into(str(folder), tensors, (MODEL, OPTIMIZER), self._shared())
        for first, last, held in rows.parts(writes=True):
            found = state.read_rows(folder, held, np.arange(first, last), ascending=True)
            given = {name: torch.from_numpy(each) for name, each in found.items()}
            state.copy_into(str(folder), given, "", held)
        try:
            self.loss = float(facts["loss"])
            return Position(int(facts["epoch"]), int(facts["batch"])), int(facts["metrics_bytes"])
        except (LookupError, TypeError, ValueError) as error:
            raise InputError(f"{folder}: {state.FACTS} is not of a DLRM job ({error!r})") from error


def train_dlrm(
    settings: Settings, comm: Any, run: Path | None, screen: Screen, *, whole: bool = True
) -> None:
    """Train a DLRM job, or go on with its run, and write the run folder. Collective. whole: print the results."""
    began, peak = time.perf_counter(), memory.Peak()
    with contextlib.ExitStack() as held:
        with mpi.agree(comm):
            file = held.enter_context(open_clicks(Path(settings.dlrm.data)))
        found = newest(comm, run, settings)[0] if run is not None else None
        job = DlrmJob(settings, comm, file)
        held.enter_context(backends.closed_on_error(job.close))
        trainer, at, kept = DlrmTrainer(job), START, 0
        if run is not None and found is not None:
            at, kept = found.at, trainer.resume(found.folder, run)
        folder = held.enter_context(opened_folder(comm, run, settings))
        dog = held.enter_context(watchdog(settings, comm))
        metrics = None
        with mpi.agree(comm):
            if folder is not None:
                metrics = run_folder.MetricsFile(folder, COLUMNS, kept)
                held.callback(metrics.close)
        saver = Saver(
            comm,
            settings.checkpoint,
            folder and folder / run_folder.CHECKPOINTS,
            all_write=True,
            newest=at,
            command=report.command("resume {}", folder, comm.size) if folder else "",
            metrics=metrics,
            dog=dog,
        )

        def checkpoint(at: Position, *, last: bool = False) -> None:
            if saver.wants(at, last=last):
                trainer.save(saver, at, metrics.bytes if metrics else 0)

        epochs, loss, times = settings.train.epochs, trainer.loss / job.train_rows, []
        with screen.epochs(epochs, at.epoch, stays=whole) as show:
            for epoch in range(at.epoch + 1, epochs + 1):
                dog.step(f"epoch {epoch}", repeats=True)

                def after(done: int, epoch: int = epoch) -> None:
                    checkpoint(Position(epoch - 1, done))
                    dog.step(f"batch {done + 1} of epoch {epoch}", repeats=True)
                    show(completed=epoch - 1 + done / job.steps)

                start = time.perf_counter()
                loss = trainer.epoch(epoch, at.batch if epoch == at.epoch + 1 else 0, after)
                middle = time.perf_counter()
                dog.step(f"scores of epoch {epoch}")
                scores = trainer.scores()
                times.append((1e3 * (middle - start), 1e3 * (time.perf_counter() - middle)))
                if metrics:
                    metrics.add([epoch, loss, *scores, *times[-1]])
                show(completed=epoch, note=f"loss {loss:.4f}  AUC {scores.auc:.4f}")
                checkpoint(Position(epoch), last=epoch == epochs)
        summary = _summary(trainer, trainer.scores() if not times else scores, loss, times) | {
            "peak_rss_bytes": comm.allgather(peak.read(0)),
            "seconds": time.perf_counter() - began,
        }
        if folder is not None:
            run_folder.write_json(folder / run_folder.SUMMARY, summary)
            if whole:
                shown = {title: f"{summary[name]:.4f}" for name, title in TITLES.items()}
                report.print_facts({"run": str(report.nearby(folder)), **shown})
        mpi.barrier(comm)
        job.close()


def _summary(
    trainer: DlrmTrainer, scores: ClickScores, loss: float, times: list[tuple[float, float]]
) -> dict[str, Any]:
    """Return the content of summary.json, but for what the process took. Collective."""
    job, moved = trainer.job, trainer.moved or Meter()
    rows, name = job.rows, job.rows.backend.capabilities.name
    local, remote = np.sum(job.comm.allgather((moved.local_bytes, moved.remote_bytes)), axis=0).tolist()
    return {
        "format": "mgg-summary",
        "version": 1,
        "model": "dlrm",
        "data": job.settings.dlrm.data,
        "uuid": job.file.uuid,
        "ranks": job.comm.size,
        "backend": "mpi"
        if name == "serial" and job.comm.size > 1
        else name,  # a backend of one rank, and messages
        "epochs": job.settings.train.epochs,
        "final_loss": loss,
        **scores._asdict(),
        "epoch_ms": spread([each for each, _ in times]) if times else {},
        "eval_ms": spread([each for _, each in times]) if times else {},
        "bytes": {"local": local, "remote": remote},
        **_tiers(rows, job.comm),
        "seed": job.settings.train.seed,
    }


def _tiers(rows: ShardedRows, comm: Any) -> dict[str, Any]:
    """Return the entry of tables in tiers, {} for others: shares of the rows that all ranks have read. Collective."""
    if rows.tiers is None:
        return {}
    every = comm.allgather({name: each["rows"] for name, each in rows.tiers.stats().items()})
    read = {name: sum(each.get(name, 0) for each in every) for name in (NEAR, FILE)}
    return {"tiers": {"read": {name: count / max(1, sum(read.values())) for name, count in read.items()}}}
