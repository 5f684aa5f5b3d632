"""Find the first value that is not finite, by repeating the last step's pass from the weights before it.

In order, on all ranks: the input and the weights, each layer's output, the loss, and the gradients of the parameters
from the last layer to the first.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..nn.inputs.host import HostFeatures, Input
from ..nn.inputs.sparse import SparseFeatures
from ..nn.layers.models import tensor_of
from ..nn.streaming.rows import StreamedRows
from .job import Job
from .trainer import Trainer

BLOCK = 1 << 20  # values that are checked at a time


def first(trainer: Trainer, epoch: int) -> str:
    """Return value, place and rank of the first such value in the epoch's last step, as text. Collective.

    Resets the weights to those before the step. A layer's output may have the next one's dropout applied.
    """
    job, comm = trainer.job, trainer.job.comm
    trainer.rewind(epoch)
    if found := _first_of_ranks(comm, [_in_input(job), *_in_parameters(trainer, gradients=False)]):
        return found
    outputs = job.model.layers(*trainer.inputs())
    found_at = [_position(out) for out in outputs]
    told = [
        _text(
            trainer.output_ids(i),
            at,
            f"layer {i + 1}'s output" if job.opened is None else "the model's output",
        )
        if at
        else None
        for i, at in enumerate(found_at)
    ]
    if found := _first_of_ranks(comm, told):
        return found
    loss = trainer.loss_of(tensor_of(outputs[-1]))
    bad_loss = None if torch.isfinite(loss) else f"{float(loss)} as this rank's loss"
    if found := _first_of_ranks(comm, [bad_loss]):
        return found
    trainer.backward(loss)
    found = _first_of_ranks(comm, list(reversed(_in_parameters(trainer, gradients=True))))
    return found or "in the sum of gradients over ranks, or in the optimiser's step"


def _first_of_ranks(comm: Any, mine: Sequence[str | None]) -> str:
    """Return the finding with the lowest index, from the lowest rank that has it; "" if no rank has any."""
    every = comm.allgather((next((i for i, text in enumerate(mine) if text), len(mine)), comm.rank))
    index, rank = min(every)
    text = comm.bcast(mine[index] if index < len(mine) else None, root=rank)
    return f"{text}, on rank {rank}" if text else ""


def _in_input(job: Job) -> str | None:
    what = "the features" if job.learned is None else "the learned input"
    found = _position(job.input)
    if found and isinstance(job.x, SparseFeatures):
        found = (*job.x.position(found[1]), found[2])  # of a stored value
    return _text(job.part.slice.ids, found, what) if found else None


def _blocks(x: Input | StreamedRows) -> Iterator[Tensor]:
    """Yield the values of an input, in order: rows [n, F], or the stored values [1, k] of sparse rows."""
    if isinstance(x, HostFeatures):
        yield from x.blocks
    elif isinstance(x, StreamedRows):
        rows, most = x.shape[0], max(1, BLOCK // max(1, x.shape[1]))
        yield from (x.read(low, min(low + most, rows)) for low in range(0, rows, most))
    elif isinstance(x, Tensor):
        yield from x.split(max(1, BLOCK // max(1, x.shape[1])))
    else:
        yield x.values[None]


def _in_parameters(trainer: Trainer, *, gradients: bool) -> list[str | None]:
    """Return the first NaN or infinity of each parameter, or of its gradient, as text; None without one."""
    found: list[str | None] = []
    job, step = trainer.job, "epoch" if trainer.job.sampled is None else "batch"
    for name, parameter in job.model.named_parameters():
        values = parameter.grad if gradients else parameter
        bad = None if values is None else _position(values.detach().reshape(1, -1))
        numbered = re.match(r"(?:convs|norms)\.(\d+)\.", name)
        layer = f" (layer {int(numbered[1]) + 1 if numbered else job.settings.model.layers})"
        layer = layer if job.opened is None else ""
        what = f"the gradient of {name}" if gradients else f"{name} before the {step}"
        found.append(f"{bad[2]} in {what}{layer}" if bad else None)
    return found


def _position(rows: Input | StreamedRows) -> tuple[int, int, float] | None:
    """Return row, column and value of the first value that is not finite; None if there is none."""
    first = 0
    for values in _blocks(rows):
        bad = ~torch.isfinite(values.detach())
        if bad.any():
            row, column = (int(index) for index in bad.nonzero()[0])
            return first + row, column, float(values.detach()[row, column])
        first += len(values)
    return None


def _text(ids: NDArray[np.int64], found: tuple[int, int, float], what: str) -> str:
    row, column, value = found
    return f"{value} in {what} at node {ids[row]}, column {column}"
