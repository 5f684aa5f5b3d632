"""The steps of an epoch over batches: each is one of full-graph training's, on the rows and edges of a batch."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...nn.graph.handle import GraphHandle
from ...nn.graph.view import Views
from ...nn.inputs.host import Input
from ...nn.sampling.batches import Batch
from ...nn.spans import span
from ...runtime.backends.base import Meter
from ..job import Job
from ..metrics import loss_of_rows
from ..trainer import Ran, Trainer
from .counts import Counts
from .sampled import Sampled


@dataclass
class SoFar:
    """Sums over the batches of an epoch that are done.

    batches: their number. loss: over their rows of all ranks. seconds: of sampling, gathering and steps. before:
    seconds of them that an earlier process took. moved: rows that this process gathered.
    """

    batches: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    before: float = 0.0
    moved: Meter = field(default_factory=Meter)


class SampledTrainer(Trainer):
    """Runs a job's epochs over batches, and evaluates on the whole graph.

    Batches differ in size, so no epoch is recorded as a CUDA graph.

    The gradients of a batch are summed over ranks as those of an epoch are. Step number (epoch - 1) * batches + batch
    + 1 takes the place of the epoch in dropout's draws. so_far: of the epoch that runs, or that ended last.
    """

    def __init__(self, job: Job, graph: GraphHandle) -> None:
        super().__init__(job, graph, records=False)
        assert job.sampled is not None
        self._sampled: Sampled = job.sampled
        self.counts: Counts = Counts()
        self._epoch = 0
        self._batch: Batch | None = None
        self.steps = job.sampled.steps
        self.so_far = SoFar()

    def under_way(self) -> dict[str, float]:
        return {"loss": self.so_far.loss, "seconds": self.so_far.seconds}

    def go_on(self, epoch: int, batches: int, known: Mapping[str, float]) -> None:
        # Raises InputError for more batches than an epoch has.
        if batches >= self.steps:
            raise InputError(
                f"{batches} batches of epoch {epoch} are done, and an epoch has {self.steps}: the graph's training "
                "rows are others than they were"
            )
        seconds = known["seconds"]
        self._epoch, self.so_far = epoch, SoFar(batches, known["loss"], seconds, before=seconds)

    def run(self, epoch: int, between: Callable[[int, int], None]) -> Ran:
        """Train on the batches of an epoch that are not done. Collective.

        It ends early where the loss of a batch, or a weight after it, is not finite: `finite` tells. The host waits for
        the loss of each batch.
        """
        if epoch != self._epoch:
            self._epoch, self.so_far = epoch, SoFar()
        so_far = self.so_far
        self.job.backend.stream.meter.taken()
        # A generator, whose threads end with it.
        batches = cast("Generator[Batch]", self._sampled.batches.epoch(epoch, so_far.batches))
        with contextlib.closing(batches):
            while True:
                began = time.perf_counter()
                batch = next(batches)
                self.counts.waited += time.perf_counter() - began
                sound = self._train_on(batch)
                so_far.seconds += time.perf_counter() - began
                if batch.last or not sound:
                    break
                del batch  # its rows are free for the next one
                self._batch = None
                between(epoch, so_far.batches)
        seconds = so_far.seconds
        return Ran(lambda: seconds, so_far.moved, so_far.before)

    def _train_on(self, batch: Batch) -> bool:
        """Take a step; returns whether its loss and all weights are finite. Collective."""
        self._batch = batch
        stream, so_far = self.job.backend.stream, self.so_far
        self._step(self._number)
        # The host waits here.
        loss, finite = float(self._flat[-1]), bool(self._weights_are_finite())
        meter = stream.meter.taken()  # which would keep the plans of all blocks
        so_far.moved.add(meter)
        so_far.batches += 1
        so_far.loss += loss * batch.total
        self.counts.add(batch)
        return finite and math.isfinite(loss)

    @property
    def _number(self) -> int:
        """Number of the last step, from 1 on in the first epoch."""
        assert self._batch is not None
        return (self._epoch - 1) * self._sampled.steps + self._batch.number + 1

    def given(self) -> tuple[Input, Views]:
        assert self._batch is not None and self._batch.x is not None
        return self._batch.x, self._batch

    def ids(self, layer: int) -> NDArray[np.int64]:
        assert self._batch is not None
        blocks = self._batch.blocks
        # An output layer over all others returns the batch's own rows.
        block = blocks[min(layer, len(blocks) - 1)]
        return self._sampled.source.edges.ids(block.numbers[: block.destinations])

    @property
    def where(self) -> str:
        return f"batch {self.so_far.batches} of "

    def rewind(self, epoch: int) -> None:
        super().rewind(self._number)

    def loss_of(self, logits: Tensor) -> Tensor:
        """Return this rank's part of the mean loss over the batch's rows."""
        batch = self._batch
        assert batch is not None and batch.y is not None
        with span("loss"):
            return loss_of_rows(logits, batch.y) / batch.total

    def loss(self) -> float:
        """Return the mean loss over all training rows, each in its batch, before that one's optimiser."""
        return self.so_far.loss / self.job.labels.totals["train"]
