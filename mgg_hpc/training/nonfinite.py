"""Find the first value that is not finite, by running the last step's pass again from the weights it began with.

The input and the weights are checked first, then each layer's output, the loss, and the gradients of the parameters
from the last layer to the first, on all ranks.
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

BLOCK = 1 << 20  # number of values that are checked together


def first(trainer: Trainer, epoch: int) -> str:
    """Return a description of the first such value of the epoch's last pass: value, place and rank. Collective.

    It resets the weights to those before the pass. A layer's output may have the next one's dropout applied.
    """
    job, comm = trainer.job, trainer.job.comm
    trainer.rewind(epoch)
    if found := _agreed(comm, [_in_input(job), *_in_parameters(trainer, gradients=False)]):
        return found
    outputs = job.model.layers(*trainer.given())
    places = [_first_place(out) for out in outputs]
    told = [
        place and _told(trainer.ids(i), place, f"layer {i + 1}'s output") for i, place in enumerate(places)
    ]
    if found := _agreed(comm, told):
        return found
    loss = trainer.loss_of(tensor_of(outputs[-1]))
    if found := _agreed(comm, [None if torch.isfinite(loss) else f"{float(loss)} as this rank's loss"]):
        return found
    trainer.backward(loss)
    found = _agreed(comm, list(reversed(_in_parameters(trainer, gradients=True))))
    return found or "in the sum of gradients over ranks, or in the optimiser's step"


def _agreed(comm: Any, mine: Sequence[str | None]) -> str:
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
        if found := _place(values if values.ndim == 2 else values[None]):
            row, column, value = found
            if isinstance(job.x, SparseFeatures):
                return _told(job.part.slice.ids, (*job.x.position(column), value), what)
            return _told(job.part.slice.ids, (first_row + row, column, value), what)
        first_row += len(values)
    return None


def _blocks(x: Input | StreamedRows) -> Iterator[Tensor]:
    """Yield the values of an input, in order: rows, or the stored values [k] of sparse ones."""
    if isinstance(x, HostFeatures):
        yield from x.blocks
    elif isinstance(x, StreamedRows):
        rows, most = x.shape[0], max(1, BLOCK // max(1, x.shape[1]))
        yield from (x.read(low, min(low + most, rows)) for low in range(0, rows, most))
    elif isinstance(x, Tensor):
        yield from x.split(max(1, BLOCK // max(1, x.shape[1])))
    else:
        yield x.values


def _in_parameters(trainer: Trainer, *, gradients: bool) -> list[str | None]:
    """Return a description of the first such value of each parameter, or of its gradient on this rank; or None."""
    found: list[str | None] = []
    job, step = trainer.job, "epoch" if trainer.job.sampled is None else "batch"
    for name, parameter in job.model.named_parameters():
        looked_at = parameter.grad if gradients else parameter
        place = None if looked_at is None else _place(looked_at.detach().reshape(1, -1))
        numbered = re.match(r"(?:convs|norms)\.(\d+)\.", name)
        layer = int(numbered[1]) + 1 if numbered else job.settings.model.layers
        what = f"the gradient of {name}" if gradients else f"{name} before the {step}"
        found.append(f"{place[2]} in {what} (layer {layer})" if place else None)
    return found


def _first_place(rows: Input | StreamedRows) -> tuple[int, int, float] | None:
    """Return row, column and value of the first of dense rows that is not finite; None if there is none."""
    first = 0
    for values in _blocks(rows):
        if found := _place(values):
            return first + found[0], *found[1:]
        first += len(values)
    return None


def _place(values: Tensor) -> tuple[int, int, float] | None:
    """Return row, column and value of the first value [n, F] that is not finite; None if there is none."""
    bad = ~torch.isfinite(values.detach())
    if not bad.any():
        return None
    row, column = (int(index) for index in bad.nonzero()[0])
    return row, column, float(values.detach()[row, column])


def _told(ids: NDArray[np.int64], place: tuple[int, int, float], what: str) -> str:
    row, column, value = place
    return f"{value} in {what} at node {ids[row]}, column {column}"
