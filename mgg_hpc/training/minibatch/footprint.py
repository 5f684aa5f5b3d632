"""Measure the bytes that a step over a batch takes, by steps over a job's own first batches."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Generator
from copy import deepcopy
from typing import Any, cast

from ...nn.sampling.batches import Batch, Block
from ...nn.workspace import Workspace
from ..footprint import Allocated, CountedBackend
from ..job import Job
from ..metrics import loss_of_rows

SOURCE, PLACE = 4, 8  # bytes of a sampled edge's source, and of a place or a number
MEASURED = 4  # batches
# Sizes of batches are sums over many rows, so they are spread like normal draws. The range of 4 of these is 2.06
# standard deviations and their largest 1.03 above the mean, on average; the largest of 10,000 is 3.85 above it: 1.4
# ranges more.
MARGIN = 1.4


def measure(job: Job) -> int:
    """Return the bytes of a batch's step and of the batches that are sampled ahead, at the peak. Collective.

    Steps over the first batches are run on a copy of the model. Counted are rows of the workspace, which keeps them for
    the next batches, tensors, and the structure of blocks, as often as they are held at a time; and added a margin for
    batches that are larger than these.
    """
    sampled = job.sampled
    assert sampled is not None
    source = sampled.source
    counted: Any = CountedBackend(job.backend)
    model = deepcopy(job.model).to(job.backend.capabilities.device).train()
    held, sizes, peaks = (source.backend, source.workspace), [], []
    source.backend, source.workspace = counted, Workspace(counted, varying=True)
    batches = cast("Generator[Batch]", sampled.batches.epoch(1))
    try:
        with contextlib.closing(batches), Allocated() as allocated:
            whole = sampled.steps - (sampled.steps > 1)  # the last one may have fewer rows
            for batch in itertools.islice(batches, min(MEASURED, whole)):
                allocated.most = allocated.now
                assert batch.x is not None and batch.y is not None  # a job has features and labels
                loss = loss_of_rows(model(batch.x, batch), batch.y) / batch.total
                loss.backward()
                model.zero_grad()
                sizes.append(sum(_nbytes(block, model.kind) for block in batch.blocks))
                peaks.append(allocated.most)
    finally:
        source.backend, source.workspace = held
    job.backend.stream.meter.taken()  # which knows the plans of these blocks
    one, ahead = _largest(peaks) + counted.rows_most, _largest(sizes)
    return int(one + min(sampled.how.prefetch + 1, sampled.steps) * ahead)


def _largest(measured: list[int]) -> float:
    return max(measured) + MARGIN * (max(measured) - min(measured))


def _nbytes(block: Block, kind: str) -> int:
    """Return the bytes of a block's edges and rows, and of its plans with their schedules."""
    made = block.plan(kind)
    arrays = (made.order, made.places, made.forward_weight, made.backward_weight)
    plans = sum(plan.nbytes + plan.segments.nbytes for plan in (made.forward, made.backward))
    drawn = block.edges * (SOURCE + PLACE) + block.rows * 2 * PLACE + block.destinations * 2 * PLACE
    return drawn + plans + sum(array.nbytes for array in arrays if array is not None)
