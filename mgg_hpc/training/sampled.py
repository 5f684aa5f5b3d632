"""Mini-batches of a job with train.mode = "sampled"."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import numpy as np
import torch

from .. import sizes
from ..config import Settings, TrainSettings
from ..errors import InputError
from ..nn.graph.handle import symmetric_bytes
from ..nn.graph.loading import Part
from ..nn.graph.matrix import Adjacency
from ..nn.inputs.host import Input
from ..nn.inputs.tiered import TieredFeatures
from ..nn.sampling.batches import Batch, Batches, Sampling
from ..nn.sampling.source import SharedEdges, Source
from ..nn.workspace import row_format
from ..runtime import backends
from .minibatch.executor import Hybrid
from .start import Base

FANOUTS = (15, 10, 5)  # a usual choice: of the last layer, of the one before it, and of all others
MOST_STEPS = 1 << 31  # the draws of dropout take a step's number as an int32


@dataclass(frozen=True, eq=False)
class Sampled:
    """The batches of a job, and the edges and rows that they are drawn from.

    hybrid: how they are prepared, or None for threads of the CPU alone.
    """

    source: Source
    batches: Batches
    how: Sampling
    hybrid: Hybrid | None = None

    @property
    def steps(self) -> int:
        """Number of batches of an epoch, the same on all ranks."""
        return self.batches.steps

    def held(self, train: TrainSettings, threads: int) -> tuple[int, bool]:
        """Return the number of batches that are held at once, and whether with their input rows.

        In hybrid training those of both buffers, one of each thread and one in training, and one that is copied.
        """
        alone = train.prepare == "cpu"
        return min(self.steps, train.prefetch + 1 if alone else 2 * train.buffer + threads + 2), not alone

    def epoch(self, epoch: int, first: int) -> Generator[Batch]:
        """Yield the batches of an epoch, counted from 1, from batch ``first`` on. Threads end with the generator."""
        if self.hybrid is None:
            return self.batches.epoch(epoch, first)
        return self.hybrid.epoch(self.source, self.batches, epoch, first)


def check(settings: Settings) -> None:
    """Raise InputError for settings that train.mode = "sampled" excludes on any backend."""
    train, layers = settings.train, settings.model.layers
    if train.mode != "sampled":
        return
    if not train.fanouts:
        raise InputError(
            'train.mode is "sampled", and train.fanouts is missing: numbers of edges to draw of each node, the last '
            f"layer's first, one for each layer, for example fanouts = {fanouts_of(layers)}"
        )
    if len(train.fanouts) != layers:
        raise InputError(
            f"train.fanouts has {len(train.fanouts)} numbers, and the model has {layers} layers (model.layers); "
            "there must be one for each"
        )
    if 0 in train.fanouts:
        raise InputError(
            f"train.fanouts is {list(train.fanouts)}; each must be at least 1, or -1 for all edges"
        )
    if settings.model.input == "learned":
        raise InputError(
            'model.input = "learned" is for train.mode = "full": batches have no gradients of their input rows; '
            'take "degree", or features'
        )


def fanouts_of(layers: int) -> list[int]:
    """Return a usual choice of fanouts for this many layers."""
    return [*FANOUTS, *[FANOUTS[-1]] * layers][:layers]


def make(base: Base, part: Part, layers: list[Adjacency], x: Input) -> Sampled:
    """Return a job's batches. Collective.

    part: this rank's part with the graph's edges. layers: of the evaluation, whose symmetric memory is reserved
    together with the input rows'. x: input rows. Raises InputError, the same on all ranks, if memory is too
    small.
    """
    settings, comm, backend, model = base.settings, base.comm, base.backend, base.model
    train = settings.train
    if isinstance(x, (torch.Tensor, TieredFeatures)) and comm.size > 1:
        # Together and before any is allocated, since OpenSHMEM's heap does not grow.
        counts = part.bounds[1:] - part.bounds[:-1]
        widest = row_format(model.widest(sparse=isinstance(x, TieredFeatures)), base.dtype)
        rows = int(counts.max()) * row_format(x.shape[1], base.dtype).row_bytes
        if isinstance(x, TieredFeatures):
            rows = x.symmetric_bytes
        exchanged = symmetric_bytes(layers, counts, widest, comm.size)
        backend.memory.reserve(rows + exchanged, int(counts.argmax()))
    near, score = settings.features.near, x.scores if isinstance(x, TieredFeatures) else None
    names = [settings.model.edge_data] if settings.model.edge_data else []
    edges = SharedEdges(comm, part, edge_data=names, kind=model.kind)
    with backends.closed_on_error(edges.close):
        source = Source(comm, part.bounds, edges, backend, x, base.dtype, kind=model.kind)
    with backends.closed_on_error(source.close):
        how = Sampling(tuple(train.fanouts), train.batch_size, seed=train.seed, prefetch=train.prefetch)
        own = base.labels.rows["train"].cpu().numpy().astype(np.int64)
        assert part.slice.y is not None  # training has labels
        y = torch.from_numpy(part.slice.y).to(backend.capabilities.device)
        near_bytes = sizes.parse(near) if isinstance(near, str) else near
        batches = Batches(source, own, y, how, what="training nodes", near_bytes=near_bytes, score=score)
        if batches.steps * train.epochs >= MOST_STEPS:
            raise InputError(
                f"train.epochs is {train.epochs}, of {batches.steps} batches each: at most {MOST_STEPS - 1:,} steps; "
                "raise train.batch_size"
            )
        base.phases.end("batches", "estimating the memory")
    return Sampled(source, batches, how)
