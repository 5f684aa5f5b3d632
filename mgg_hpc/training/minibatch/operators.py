"""The operators of hybrid mini-batches by phase and hardware, of which another accelerator replaces its own::

    from mgg_hpc.training.minibatch.operators import OPERATORS

    OPERATORS["batch"]["device"] = sampled_on_npu

A batch goes through "batch" on "cpu", "transfer" by "copy" and "train" on "device"; or through "batch" on "device",
"transfer" by "direct" and "train" on "device". Those of the CPU run on threads of a pool, the copy on a thread of its
own, all others on the thread that trains. Whatever prepares a batch must draw the same edges, as `Batches` does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from torch import Tensor

from ...nn.inputs.host import Input
from ...nn.sampling.batches import Batch, Batches, Drawn
from ...nn.sampling.source import Source
from ...nn.workspace import as_array


@dataclass(frozen=True)
class Work:
    """The batches of an epoch, and what they are prepared from. sample: returns a drawn batch by its number."""

    source: Source
    batches: Batches
    epoch: int
    sample: Callable[[int], Drawn]

    @property
    def gathers_anywhere(self) -> bool:
        """Whether threads may gather input rows: no call of a communication runtime is needed."""
        return self.source.comm.size == 1 or self.source.backend.capabilities.reaches_peers


@dataclass(frozen=True)
class Prepared:
    """A batch of this number that was drawn, on its way. x: its input rows in the host's memory, or None."""

    number: int
    drawn: Drawn
    x: Input | None = None

    def batch(self, work: Work) -> Batch:
        """Return the batch that a step takes, with its input rows."""
        blocks, rows, ahead = self.drawn
        return work.batches.batch(blocks, rows, ahead if self.x is None else self.x, work.epoch, self.number)


def batch_on_cpu(work: Work, number: int) -> Prepared:
    """Draw a batch and, where the device is the CPU, gather its input rows."""
    prepared, source = Prepared(number, work.sample(number)), work.source
    blocks, _, x = prepared.drawn
    if x is None and source.device == "cpu" and work.gathers_anywhere:
        x = source.input(blocks[0].numbers)
    return replace(prepared, x=x)


def batch_on_device(work: Work, number: int) -> Prepared:
    """Draw a batch on the thread that trains."""
    return Prepared(number, work.sample(number))


def transfer_by_copy(work: Work, prepared: Prepared) -> Batch | Prepared:
    """Return the batch with a copy of its input rows.

    Rows that the device gathers itself are gathered now; but where only the thread that trains may do so, what was
    prepared is returned.
    """
    x, source = prepared.x, work.source
    if isinstance(x, Tensor) and source.device == "cpu":
        copied = source.workspace.rows(len(x), x.shape[1], x.dtype)
        np.copyto(as_array(copied), as_array(x))  # by this thread alone
        prepared = replace(prepared, x=copied)
    return prepared if x is None and not work.gathers_anywhere else prepared.batch(work)


def transfer_direct(work: Work, prepared: Prepared) -> Batch:
    """Return the batch with the input rows that the device gathers."""
    return prepared.batch(work)


def train_on_device(trainer: Any, batch: Batch) -> bool:
    """Take a step; return whether its loss and all weights are finite. trainer: a `Trainer`. Collective."""
    finite: bool = trainer.step_on(batch)
    return finite


OPERATORS: dict[str, dict[str, Callable[[Any, Any], Any]]] = {
    "batch": {"cpu": batch_on_cpu, "device": batch_on_device},
    "transfer": {"copy": transfer_by_copy, "direct": transfer_direct},
    "train": {"device": train_on_device},
}
