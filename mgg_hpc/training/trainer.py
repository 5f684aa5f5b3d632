"""The training steps of an epoch, on the whole graph or on batches.

Steps are launched on the backend's device; only reading the loss and the scores waits for them.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from ..nn.gradients import sum_gradients
from ..nn.graph.handle import GraphHandle
from ..nn.graph.view import Views
from ..nn.inputs.host import Input
from ..nn.inputs.tiered import TieredFeatures
from ..nn.sampling.batches import Batch
from ..nn.spans import span
from ..nn.streaming.rows import StreamedRows
from ..nn.workspace import accumulator, as_array
from ..runtime import mpi
from ..runtime.backends.base import Meter
from . import optimizers
from .adam import Group
from .cuda_graph import Replayed
from .history import BatchCounts
from .job import Job
from .metrics import Scores, loss_of_rows, loss_sum
from .minibatch.operators import called

# Gradients of rows are divided by the number of training rows, and float16 underflows at 6e-8. Powers of 2 are exact.
FLOAT16_SCALE = 1024.0


@dataclass(frozen=True)
class EpochCost:
    """Cost of an epoch's training, without its evaluation.

    seconds: waits for the end of the epoch and returns its duration. meter: of the aggregations and gathers in this
    process. before: part of the duration that an earlier process took, which stopped within the epoch.
    """

    seconds: Callable[[], float]
    meter: Meter
    before: float = 0.0


@dataclass
class SoFar:
    """Sums over the complete batches of an epoch.

    loss: over their rows of all ranks. seconds: of sampling, gathering and steps. before: part of ``seconds`` that an
    earlier process took. moved: rows gathered by this process.
    """

    batches: int = 0
    loss: float = 0.0
    seconds: float = 0.0
    before: float = 0.0
    moved: Meter = field(default_factory=Meter)


class Trainer:
    """Runs a job's epochs: each is one step over the whole graph, or a step over each batch. Evaluates on the graph.

    Gradients and the loss are in one array, so that one exchange sums them over all ranks. Batches differ in size, so
    their steps are never recorded as a CUDA graph; step number (epoch - 1) * batches + batch + 1 takes the place of the
    epoch in their dropout's draws.

    Args:
        records: True to record steps as a CUDA graph if the job allows it.

    Attributes:
        optimizer: over all trained tensors.
        replayed: launches or replays a step.
        steps: number of steps of an epoch.
        cost: of the epoch that ended last.
        counts: of the batches trained on; None if the job has none.
        so_far: of the present epoch's batches, or of the last epoch's.
    """

    cost: EpochCost

    def __init__(self, job: Job, graph: GraphHandle, *, records: bool = True) -> None:
        self.job, self.graph = job, graph
        device = job.backend.capabilities.device
        job.model.to(device)
        parameters = [each for each in job.model.parameters() if each.requires_grad]
        kind = accumulator(job.dtype)
        # A model of the user's may have parameters without gradients, which optimisers skip; so each has its own.
        self._apart = parameters if job.opened is not None else []
        joined = [] if self._apart else parameters
        self._flat = torch.zeros(sum(p.numel() for p in joined) + 1, dtype=kind, device=device)
        at = 0
        for parameter in joined:  # autograd adds into these views
            parameter.grad = self._flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        if job.learned is not None:  # rows of this rank, whose gradients are not summed
            job.learned.grad = torch.zeros_like(job.learned)
        self._trained: list[Tensor] = [*parameters, *([job.learned] if job.learned is not None else [])]
        self._before = [parameter.detach().clone() for parameter in self._trained]
        job.model.draws.epoch_at = torch.zeros(1, dtype=torch.int32, device=device)
        self.optimizer = optimizers.make(_groups(job), job.settings.train, device)
        weights = job.settings.train.class_weights
        self._class_weights = torch.tensor(weights, dtype=kind, device=device) if weights else None
        self._terms = self._total(job.labels.y["train"], job.labels.totals["train"])
        records = records and job.records and job.sampled is None
        self.replayed = Replayed(self._launch, job.backend.stream, job.comm, records=records)
        self.steps = 1 if job.sampled is None else job.sampled.steps
        self.counts = None if job.sampled is None else BatchCounts()
        self.so_far = SoFar()
        self._epoch = 0  # of ``so_far``
        self._batch: Batch | None = None  # of the last step

    def skip(self, epoch: int, batches: int, *, loss: float, seconds: float) -> None:
        """Continue an epoch after its first batches. loss, seconds: their sums, as in `SoFar`. Raises InputError."""
        if batches >= self.steps:
            raise InputError(
                f"{batches} batches of epoch {epoch} are done, and an epoch has {self.steps}: the graph's training "
                "nodes are others than they were"
            )
        self._epoch, self.so_far = epoch, SoFar(batches, loss, seconds, before=seconds)

    def run(self, epoch: int) -> Generator[int]:
        """Train for an epoch, and yield the number of complete batches after each batch but the last. Collective.

        `cost` has the epoch's cost at the end. The host waits for the loss of each batch, and the epoch ends early if
        that or a weight is not finite, as `finite` tells.
        """
        stream = self.job.backend.stream
        stream.meter.taken()
        if self.job.sampled is None:
            began = stream.stamp()
            self.step(epoch)
            self.cost = EpochCost(stream.since(began), stream.meter.taken())
            return
        assert self.counts is not None
        if epoch != self._epoch:
            self._epoch, self.so_far = epoch, SoFar()
        so_far = self.so_far
        with contextlib.closing(self.job.sampled.epoch(epoch, so_far.batches)) as batches:
            while True:
                began = time.perf_counter()
                self._batch = next(batches)
                self.counts.waited += time.perf_counter() - began
                finite = self.take(self._batch)
                so_far.seconds += time.perf_counter() - began
                if self._batch.last or not finite:
                    break
                self._batch = None  # its rows are free for the next one
                yield so_far.batches
        if isinstance(self.job.x, TieredFeatures):
            self.counts.tiers.append(self.job.x.taken())
        seconds = so_far.seconds
        self.cost = EpochCost(lambda: seconds, so_far.moved, so_far.before)

    def take(self, batch: Batch) -> bool:
        """Take a step on a batch by the operator for it; return whether loss and weights are finite. Collective."""
        self._batch = batch
        with batch.during():
            number = batch.number, batch.epoch
            finite: bool = called("train", "device", self, batch, number, agreed=True)
        return finite

    def step_on(self, batch: Batch) -> bool:
        """Take a step on a batch; return whether its loss and all weights are finite. Collective."""
        assert self.counts is not None
        self.step(self._number(batch.epoch))
        loss, finite = float(self._flat[-1]), bool(self._weights_are_finite())  # the host waits here
        so_far = self.so_far
        # The meter would keep the plans of all blocks.
        so_far.moved.add(self.job.backend.stream.meter.taken())
        so_far.batches += 1
        so_far.loss += loss * self._divisor
        self.counts.add(batch)
        return finite and math.isfinite(loss)

    def _number(self, epoch: int) -> int:
        """Return the number of the present step, from 1 on in the first epoch, which its random draws depend on."""
        return epoch if self._batch is None else (epoch - 1) * self.steps + self._batch.number + 1

    def step(self, number: int) -> None:
        """Run forward, loss, backward, sum of gradients and optimiser; `loss` waits for them. Collective.

        number: of the step's random draws, from 1 on: the epoch's, where an epoch is one step.
        """
        with span("step"):
            self.job.model.draws.begin(number)
            torch._foreach_copy_(self._before, [parameter.detach() for parameter in self._trained])
            self.replayed()

    def inputs(self) -> tuple[Input | StreamedRows, Views]:
        """Return the model's arguments in a step: input rows, and what its layers aggregate over."""
        if self._batch is None:
            return self.job.input, self.graph
        assert self._batch.x is not None
        return self._batch.x, self._batch

    def output_ids(self, layer: int) -> NDArray[np.int64]:
        """Return the original ids of the rows that a layer (from 0 on) returned in the last step."""
        if self._batch is None or self.job.sampled is None:
            return self.job.part.slice.ids
        # An output layer over all others returns the batch's own rows.
        block = self._batch.blocks[min(layer, len(self._batch.blocks) - 1)]
        return self.job.sampled.source.edges.ids(block.numbers[: block.destinations])

    @property
    def where(self) -> str:
        """The last step within its epoch, for messages, as "batch 3 of "; "" if an epoch has only one."""
        return "" if self.job.sampled is None else f"batch {self.so_far.batches} of "

    @torch.no_grad()
    def rewind(self, epoch: int) -> None:
        """Restore the weights from before the last step, which was one of ``epoch``, so that its pass can run again."""
        self.replayed.close()
        torch._foreach_copy_(self._trained, self._before)
        self.job.model.draws.begin(self._number(epoch))
        self._begin()

    def _begin(self) -> None:
        """Prepare buffers, model and gradients for a training pass."""
        if self._batch is None:
            self.graph.restart()
        self.job.model.train()
        self._flat.zero_()
        for parameter in self._apart:
            parameter.grad = None
        if self.job.learned is not None and self.job.learned.grad is not None:
            self.job.learned.grad.zero_()

    def loss_of(self, logits: Tensor) -> Tensor:
        """Return this rank's part of the mean loss over all training rows of the step."""
        labels, batch = self.job.labels, self._batch
        with span("loss"):
            if batch is None:
                return loss_sum(logits, labels, "train", self._class_weights) / self._terms
            assert batch.y is not None
            self._divisor = self._total(batch.y, batch.total)
            return loss_of_rows(logits, batch.y, self._class_weights) / self._divisor

    def _total(self, y: Tensor, total: int) -> float:
        """Return what a sum of losses is divided by: the number of rows, or their weights' sum. Collective.

        y: labels of this rank's rows. total: number of rows on all ranks.
        """
        if self._class_weights is None:
            return total
        weights = np.array([float(self._class_weights[y].sum(dtype=torch.float64))])
        mpi.sum_in_rank_order(self.job.comm, weights)
        return float(weights[0])

    def backward(self, loss: Tensor) -> None:
        """Compute gradients of this rank's part of the loss, scaled meanwhile if rows are float16."""
        scale = FLOAT16_SCALE if self.job.dtype == torch.float16 else 1.0
        # torch would check the shape of a gradient argument symbolically, which loads 50 MB of libraries.
        scaled = loss if scale == 1.0 else loss * scale
        with span("backward"), torch.no_grad():
            scaled.backward()
            if scale != 1.0:
                gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
                torch._foreach_div_(gradients, scale)

    def _launch(self) -> None:
        self._begin()
        loss = self.loss_of(self.job.model(*self.inputs()))
        self.backward(loss)
        with span("sum gradients"):
            sum_gradients(self._apart, self.job.backend.collectives)
            self._flat[-1:].copy_(loss.detach())
            self.job.backend.collectives.sum(as_array(self._flat))
        with span("optimiser"):
            if most := self.job.settings.train.clip_norm:
                found = [
                    each.grad
                    for each in self._trained
                    if each is not self.job.learned and each.grad is not None
                ]
                rows = [] if self.job.learned is None else [cast(Tensor, self.job.learned.grad)]
                optimizers.clip(found, rows, most, self.job.backend.collectives)
            self.optimizer.step()

    def loss(self) -> float:
        """Return the mean loss of the last epoch over all training rows, each as its own step had it. Waits for it."""
        if self.job.sampled is not None:
            return self.so_far.loss / self._terms
        with span("read the loss"):
            return float(self._flat[-1])

    @torch.no_grad()
    def evaluate(self) -> None:
        """Run a pass over the whole graph with the present weights, without dropout. Collective.

        `scores` waits for it; no other pass may begin before that.
        """
        with span("evaluate"):
            self.graph.restart()
            self.job.model.eval()
            logits = self.job.model(self.job.input, self.graph)
            self._counted = self.job.metric.count(logits, self.job.labels)
            self._finite = self._weights_are_finite()

    def end_epoch(self, scores: Scores, loss: float) -> None:
        """Step the scheduler, if the job has one. loss: of the epoch. Raises InputError."""
        if isinstance(self.optimizer, optimizers.TorchOptimizer):
            self.optimizer.end_epoch(scores, loss)

    def _weights_are_finite(self) -> Tensor:
        weights = [parameter.detach() for parameter in self._trained if parameter.numel()]
        largest = torch._foreach_norm(weights, torch.inf)
        return torch.isfinite(torch.stack(largest)).all()

    def finite(self) -> bool:
        """Return whether the loss of the last epoch and the evaluated weights are finite. Collective."""
        with span("read the loss"):
            finite = math.isfinite(self.loss()) and bool(self._finite)
        # All ranks have the same loss and weights, except for learned rows.
        return finite if self.job.learned is None else all(self.job.comm.allgather(finite))

    def scores(self) -> Scores:
        """Return the scores of the last evaluation. Collective."""
        with span("read the scores"):
            return self.job.metric.score(self.job.comm, self._counted, self.job.labels)


def _groups(job: Job) -> list[Group]:
    """Return the groups of parameters: the first layer and learned rows decay, others if the job says so.

    Of a model of the user's all parameters do.
    """
    train = job.settings.train
    if job.opened is not None:
        trained = [each for each in job.model.parameters() if each.requires_grad]
        return [Group([*trained, *([] if job.learned is None else [job.learned])], train.weight_decay)]
    first: list[Tensor] = list(job.model.convolutions[0].parameters())
    rest: list[Tensor] = [p for p in job.model.parameters() if all(p is not one for one in first)]
    if job.learned is not None:
        first.append(job.learned)
    decay_rest = train.weight_decay if train.weight_decay_layers == "all" else 0.0
    groups = [Group(first, train.weight_decay), Group(rest, decay_rest)]
    return [group for group in groups if group.parameters]
