"""The steps of an epoch, launched on the backend's device; only reading the loss and the scores waits for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from ..nn.graph.handle import GraphHandle
from ..nn.graph.view import Views
from ..nn.inputs.host import Input
from ..nn.spans import span
from ..nn.streaming.rows import StreamedRows
from ..nn.workspace import as_array
from ..runtime.backends.base import Meter
from .adam import Adam, Group
from .cuda_graph import Replayed
from .job import Job
from .metrics import Scores, loss_sum
from .minibatch.counts import Counts

# Gradients of rows are divided by the number of training rows, and float16 ends at 6e-8. A power of 2 is exact.
FLOAT16_SCALE = 1024.0


@dataclass(frozen=True)
class Ran:
    """The cost of an epoch's training.

    seconds: waits for the epoch's end, and returns its seconds. meter: of its aggregations and gathers in this process.
    before: seconds of them that an earlier process took, which left within the epoch.
    """

    seconds: Callable[[], float]
    meter: Meter
    before: float = 0.0


class Trainer:
    """Runs a job's epochs. Gradients and the loss are in one array, so that one exchange sums them over all ranks.

    records: allow recording epochs as a CUDA graph, if the job does. optimizer: Adam over all that is trained.
    replayed: the launch of a step, or its replay. steps: number of steps of an epoch. counts: of batches; None where
    an epoch is one step over the whole graph.
    """

    steps = 1
    counts: Counts | None = None

    def __init__(self, job: Job, graph: GraphHandle, *, records: bool = True) -> None:
        self.job, self.graph = job, graph
        device = job.backend.capabilities.device
        job.model.to(device)
        parameters = list(job.model.parameters())
        kind = parameters[0].dtype
        self._flat = torch.zeros(sum(p.numel() for p in parameters) + 1, dtype=kind, device=device)
        at = 0
        for parameter in parameters:  # autograd adds into these views
            parameter.grad = self._flat[at : at + parameter.numel()].view_as(parameter)
            at += parameter.numel()
        if job.learned is not None:  # rows of this rank, whose gradients are not summed
            job.learned.grad = torch.zeros_like(job.learned)
        self._trained: list[Tensor] = [*parameters, *([job.learned] if job.learned is not None else [])]
        self._before = [parameter.detach().clone() for parameter in self._trained]
        job.model.draws.epoch_at = torch.zeros(1, dtype=torch.int32, device=device)
        rate = job.settings.train.learning_rate
        self.optimizer = Adam(_groups(job), rate, capturable=device != "cpu")
        recorder = job.backend.stream.record if job.records and records else None
        self.replayed = Replayed(self._launch, job.backend.stream, recorder, self._everybody)

    def _everybody(self, yes: bool) -> bool:
        return all(self.job.comm.allgather(yes))

    def run(self, epoch: int, between: Callable[[int, int], None]) -> Ran:
        """Train for an epoch. Collective.

        between: called after each batch but the last with the epoch and the number of batches of it that are done; here
        there is only one.
        """
        stream = self.job.backend.stream
        stream.meter.taken()
        began = stream.stamp()
        self.step(epoch)
        return Ran(stream.since(began), stream.meter.taken())

    def step(self, epoch: int) -> None:
        """Run forward, loss, backward, reduction and optimiser; `loss` waits for them. Collective."""
        self._step(epoch)

    def _step(self, number: int) -> None:
        """Take a step. number: of its draws, from 1 on."""
        with span("step"):
            self.job.model.draws.begin(number)
            torch._foreach_copy_(self._before, [parameter.detach() for parameter in self._trained])
            self.replayed()

    def given(self) -> tuple[Input | StreamedRows, Views]:
        """Return what the model is given in a step: its input, and what its layers aggregate over."""
        return self.job.input, self.graph

    def ids(self, layer: int) -> NDArray[np.int64]:
        """Return the original ids of the rows that a layer (from 0 on) returned in the last step."""
        return self.job.part.slice.ids

    def under_way(self) -> dict[str, float]:
        """Return the state of an epoch between two of its batches, for `go_on`; a checkpoint keeps it."""
        return {}

    def go_on(self, epoch: int, batches: int, known: Mapping[str, float]) -> None:
        """Go on after some batches of an epoch. known: the state that `under_way` returned there."""
        raise InputError(f"epoch {epoch} was left after {batches} batches, and this run has none")

    @property
    def where(self) -> str:
        """The last step within its epoch, for messages, as "batch 3 of "; "" where an epoch has only one."""
        return ""

    @torch.no_grad()
    def rewind(self, epoch: int) -> None:
        """Restore the weights from before the last step, one of this epoch, so that its pass can run again."""
        self.replayed.close()
        torch._foreach_copy_(self._trained, self._before)
        self.job.model.draws.begin(epoch)
        self._begin()

    def _begin(self) -> None:
        """Prepare buffers, model and gradients for a training pass."""
        self.graph.restart()
        self.job.model.train()
        self._flat.zero_()
        if self.job.learned is not None and self.job.learned.grad is not None:
            self.job.learned.grad.zero_()

    def loss_of(self, logits: Tensor) -> Tensor:
        """Return this rank's part of the mean loss over all training rows."""
        with span("loss"):
            return loss_sum(logits, self.job.labels, "train") / self.job.labels.totals["train"]

    def backward(self, loss: Tensor) -> None:
        """Compute gradients of this rank's part of the loss, scaled on their way if rows are float16."""
        scale = FLOAT16_SCALE if self.job.dtype == torch.float16 else 1.0
        # torch would check the shape of a gradient argument symbolically, which loads 50 MB of libraries.
        scaled = loss if scale == 1.0 else loss * scale
        with span("backward"), torch.no_grad():
            scaled.backward()
            if scale != 1.0:
                gradients = [parameter.grad for parameter in self._trained if parameter.grad is not None]
                torch._foreach_div_(gradients, scale)

    def _launch(self) -> None:
        job = self.job
        self._begin()
        loss = self.loss_of(job.model(*self.given()))
        self.backward(loss)
        with span("sum gradients"):
            self._flat[-1:].copy_(loss.detach())
            job.backend.collectives.sum(as_array(self._flat))
        with span("optimiser"):
            self.optimizer.step()

    def loss(self) -> float:
        """Return the mean loss over all training rows of the last step, before the optimiser."""
        with span("read the loss"):
            return float(self._flat[-1])

    @torch.no_grad()
    def evaluate(self) -> None:
        """Run a pass with the present weights, without dropout. Collective.

        `scores` waits for it; no other pass may begin before that.
        """
        with span("evaluate"):
            self.graph.restart()
            self.job.model.eval()
            logits = self.job.model(self.job.input, self.graph)
            self._counted = self.job.metric.count(logits, self.job.labels)
            self._finite = self._weights_are_finite()

    def _weights_are_finite(self) -> Tensor:
        weights = [parameter.detach() for parameter in self._trained if parameter.numel()]
        largest = torch._foreach_norm(weights, torch.inf)
        return torch.isfinite(torch.stack(largest)).all()

    def finite(self) -> bool:
        """Return whether the last step's loss and all weights after it are finite; waits for them. Collective."""
        with span("read the loss"):
            finite = math.isfinite(self.loss()) and bool(self._finite)
        # All ranks have the same loss and weights, except learned rows.
        return finite if self.job.learned is None else self._everybody(finite)

    def scores(self) -> Scores:
        """Return the scores of the last evaluation. Collective."""
        with span("read the scores"):
            return self.job.metric.score(self.job.comm, self._counted, self.job.labels)


def _groups(job: Job) -> list[Group]:
    """Return the groups of parameters: the first layer and a learned input decay, others if the job says so."""
    train = job.settings.train
    first: list[Tensor] = list(job.model.convolutions[0].parameters())
    rest: list[Tensor] = [p for p in job.model.parameters() if all(p is not one for one in first)]
    if job.learned is not None:
        first.append(job.learned)
    decay_rest = train.weight_decay if train.weight_decay_layers == "all" else 0.0
    groups = [Group(first, train.weight_decay), Group(rest, decay_rest)]
    return [group for group in groups if group.parameters]
