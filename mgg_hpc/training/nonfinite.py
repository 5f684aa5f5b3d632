"""Where the first value that is not finite arose: the pass is run again from the weights it began with, step by step.

First the input and the weights are looked at, then each layer's output, the loss, and the gradients of the
parameters from the last layer to the first; on every rank, whose passes exchange rows as they did before.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from ..nn.inputs.host import HostFeatures, Input
from ..nn.inputs.sparse import SparseFeatures
from .job import Job
from .trainer import Trainer

BLOCK = 1 << 20  # values looked at together


def first(trainer: Trainer, epoch: int) -> str:
    """The first such value of an epoch's pass, in words: what it is, of what, and on which rank. Collective.

    The weights are those before the epoch from here on. A layer's output is what the next one is given, dropped for it.
    """
    job, comm = trainer.job, trainer.job.comm
    trainer.rewind(epoch)
    found = _agreed(comm, [_in_input(job), *_in_parameters(job, gradients=False)])
    if found:
        return found
    outputs = job.model.layers(job.input, trainer.graph)
    found = _agreed(comm, [_in_rows(job, out, f"layer {i + 1}'s output") for i, out in enumerate(outputs)])
    if found:
        return found
    loss = trainer.loss_of(outputs[-1])
    found = _agreed(comm, [None if torch.isfinite(loss) else f"{float(loss)} as this rank's loss"])
    if found:
        return found
    trainer.backward(loss)
    found = _agreed(comm, list(reversed(_in_parameters(job, gradients=True))))
    return found or "in the sum of gradients over ranks, or in the optimiser's step"


def _agreed(comm: Any, mine: list[str | None]) -> str:
    """Return the finding at the first place of a pass, from the lowest rank that has one; "" if there is none."""
    place = next((i for i, text in enumerate(mine) if text), len(mine))
    every = comm.allgather((place, comm.rank))
    place, rank = min(every)
    text = comm.bcast(mine[place] if place < len(mine) else None, root=rank)
    return f"{text}, on rank {rank}" if text else ""


def _in_input(job: Job) -> str | None:
    what = "the features" if job.learned is None else "the learned input"
    first_row = 0
    for values in _blocks(job.input):
        if values.ndim == 1:  # of a sparse matrix
            found = _place(values[None])
            if found and isinstance(job.x, SparseFeatures):
                row, column = job.x.place(found[1])
                return _told(job, found[2], what, row, column)
        elif found := _place(values):
            return _told(job, found[2], what, first_row + found[0], found[1])
        first_row += len(values)
    return None


def _blocks(x: Input) -> Iterator[Tensor]:
    """Values of an input, in order: rows, or what is stored of sparse ones."""
    if isinstance(x, HostFeatures):
        yield from x.blocks
    elif isinstance(x, Tensor):
        yield from x.split(max(1, BLOCK // max(1, x.shape[1])))
    else:
        yield x.values


def _in_rows(job: Job, rows: Tensor, what: str) -> str | None:
    found = _place(rows)
    return _told(job, found[2], what, found[0], found[1]) if found else None


def _in_parameters(job: Job, *, gradients: bool) -> list[str | None]:
    """For each parameter, or its gradient on this rank, what is not finite there."""
    found: list[str | None] = []
    for name, parameter in job.model.named_parameters():
        looked_at = parameter.grad if gradients else parameter
        place = None if looked_at is None else _place(looked_at.detach().reshape(1, -1))
        numbered = re.match(r"(?:convs|norms)\.(\d+)\.", name)
        layer = int(numbered[1]) + 1 if numbered else job.settings.model.layers
        what = f"the gradient of {name}" if gradients else f"{name} before the epoch"
        found.append(f"{place[2]} in {what} (layer {layer})" if place else None)
    return found


def _place(values: Tensor) -> tuple[int, int, float] | None:
    """Row, column and value of the first that is not finite in values [n, F]."""
    bad = ~torch.isfinite(values.detach())
    if not bad.any():
        return None
    row, column = (int(index) for index in bad.nonzero()[0])
    return row, column, float(values.detach()[row, column])


def _told(job: Job, value: float, what: str, row: int, column: int) -> str:
    return f"{value} in {what} at node {job.part.slice.ids[row]}, column {column}"
