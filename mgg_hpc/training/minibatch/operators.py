"""The operators of hybrid mini-batches by phase and hardware, of which another accelerator replaces its own::

    from mgg_hpc.training.minibatch.operators import OPERATORS

    OPERATORS["batch"]["device"] = drawn_on_npu

A batch goes through "batch" on "cpu", "transfer" by "copy" and "train" on "device"; or through "batch" on "device",
"transfer" by "direct" and "train" on "device". Operators on "cpu" run on threads of a pool, the copy on a thread of its
own, all others on the thread that trains. Each operator that prepares a batch must draw the same edges, as `Batches`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...nn.inputs.host import Input
from ...nn.sampling.batches import Batch, Batches, Block, Drawn
from ...nn.sampling.source import Source
from ...runtime.exit_code import FailedElsewhere


class Prepared(NamedTuple):
    """A batch that was sampled but not trained on yet.

    number: its number. blocks, rows, x: arguments of `Batches.batch`; x is None if the input rows are not
    gathered yet.
    """

    number: int
    blocks: list[Block]
    rows: NDArray[np.int64]
    x: Input | None


@dataclass(frozen=True)
class Work:
    """The batches of an epoch, and what they are prepared from. sample: as `Batches.sampling`."""

    source: Source
    batches: Batches
    epoch: int
    sample: Callable[..., Drawn]

    @property
    def gathers_anywhere(self) -> bool:
        """Whether any thread may gather input rows, since no communication runtime is needed for that."""
        return self.source.comm.size == 1 or self.source.backend.capabilities.reaches_peers


def batch_on_cpu(work: Work, number: int) -> Prepared:
    """Draw a batch on the host, and gather its input rows unless a GPU holds them."""
    prepared = Prepared(number, *work.sample(number, on_host=True))
    source, numbers, x = work.source, prepared.blocks[0].numbers, prepared.x
    if x is None and not source.backend.memory.holds_stores:
        x = source.gather_on_host(numbers)
    elif x is None and work.gathers_anywhere:
        x = source.input(numbers)
    return prepared._replace(x=x)


def batch_on_device(work: Work, number: int) -> Prepared:
    """Draw a batch, on a GPU if it has room for the graph."""
    return Prepared(number, *work.sample(number))


def transfer_by_copy(work: Work, prepared: Prepared) -> Batch | Prepared:
    """Return the batch with a copy of its input rows, or with those that the device gathers now.

    Where only the thread that trains may gather, what was prepared is returned.
    """
    x, source = prepared.x, work.source
    if x is None and not work.gathers_anywhere:
        return prepared
    if isinstance(x, Tensor):
        prepared = prepared._replace(x=source.sent(x))
    return transfer_direct(work, prepared)


def transfer_direct(work: Work, prepared: Prepared) -> Batch:
    """Return the batch, with input rows that the device gathers where they are missing."""
    return work.batches.batch(prepared.blocks, prepared.rows, prepared.x, work.epoch, prepared.number)


def train_on_device(trainer: Any, batch: Batch) -> bool:
    """Take a step of a `Trainer`; return whether its loss and all weights are finite. Collective."""
    finite: bool = trainer.step_on(batch)
    return finite


OPERATORS: dict[str, dict[str, Callable[[Any, Any], Any]]] = {
    "batch": {"cpu": batch_on_cpu, "device": batch_on_device},
    "transfer": {"copy": transfer_by_copy, "direct": transfer_direct},
    "train": {"device": train_on_device},
}


def called(
    phase: str, hardware: str, context: Any, given: Any, batch: tuple[int, int], *, agreed: bool
) -> Any:
    """Return what an operator returns. batch: its number and its epoch, which an error's message has with the operator.

    agreed: whether all ranks have the same InputError, or fail with it; it remains as it is.
    """
    try:
        return OPERATORS[phase][hardware](context, given)
    except Exception as error:
        if agreed and isinstance(error, (InputError, FailedElsewhere)):
            raise
        where = f"batch {batch[0]} of epoch {batch[1]}: {phase} by {hardware} failed"
        raise RuntimeError(f"{where}: {type(error).__name__}: {error}") from error
