"""The batches of a job with train.mode = "sampled": they are made with the job, and its settings are checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...config import Settings
from ...errors import InputError
from ...nn.graph.handle import symmetric_bytes
from ...nn.graph.loading import Part
from ...nn.graph.matrix import Adjacency
from ...nn.inputs.host import Input
from ...nn.layers.models import GNN
from ...nn.sampling.batches import Batches, Sampling
from ...nn.sampling.source import SharedEdges, Source
from ...nn.workspace import row_format
from ...runtime import backends
from ...runtime.backends.base import Backend
from ..metrics import Labels
from ..progress import PhaseTimer

FANOUTS = (15, 10, 5)  # a usual choice: of the last layer, of the one before it, and of all others
MOST_STEPS = 1 << 31  # dropout's draws take the number of a step as an int32


@dataclass(frozen=True, eq=False)
class Sampled:
    """The batches of a job, and what they are drawn from."""

    source: Source
    batches: Batches
    how: Sampling

    @property
    def steps(self) -> int:
        """Number of batches of an epoch, the same on all ranks."""
        return self.batches.steps

    @property
    def x(self) -> Input:
        """This rank's input rows, where other ranks read them."""
        assert self.source.x is not None  # it was given them
        return self.source.x

    def close(self) -> None:
        """Free what ranks share. Collective."""
        self.source.close()


def check(settings: Settings) -> None:
    """Raise InputError for settings that do not go with train.mode = "sampled", on any backend."""
    train, layers = settings.train, settings.model.layers
    if train.mode != "sampled":
        return
    if not train.fanouts:
        raise InputError(
            'train.mode is "sampled", and train.fanouts is missing: numbers of edges to draw of each row, the last '
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
    """Return fanouts that are a usual choice for so many layers."""
    return [*FANOUTS, *[FANOUTS[-1]] * layers][:layers]


def check_device(settings: Settings, *, on_gpu: bool) -> None:
    """Raise InputError for settings that do not go with train.mode = "sampled" on a GPU."""
    if settings.train.mode == "sampled" and settings.run.features == "host" and on_gpu:
        raise InputError(
            'run.features = "host" is for train.mode = "full": batches gather their rows on the GPU; take "device"'
        )


def make(
    settings: Settings,
    comm: Any,
    part: Part,
    backend: Backend,
    model: GNN,
    layers: list[Adjacency],
    x: Input,
    labels: Labels,
    phases: PhaseTimer,
) -> Sampled:
    """Return a job's batches. Collective.

    part: with the graph's edges. layers: of the evaluation, whose symmetric memory is reserved with that of the input
    rows. phases: of the job's start. Raises InputError, the same on all ranks, where memory is too small.
    """
    train, dtype = settings.train, getattr(torch, settings.train.dtype)
    if isinstance(x, torch.Tensor) and comm.size > 1:
        # At once and before any is allocated: the heap of OpenSHMEM does not grow.
        counts = part.bounds[1:] - part.bounds[:-1]
        widest = row_format(model.widest(sparse=False), dtype)
        rows = int(counts.max()) * row_format(x.shape[1], dtype).row_bytes
        exchanged = symmetric_bytes(layers, counts, widest, comm.size)
        backend.memory.reserve(rows + exchanged, int(counts.argmax()))
    names = [settings.model.edge_data] if settings.model.edge_data else []
    edges = SharedEdges(comm, part, edge_data=names, kind=model.kind)
    with backends.closed_on_error(edges.close):
        source = Source(comm, part.bounds, edges, backend, x, dtype, kind=model.kind)
    with backends.closed_on_error(source.close):
        how = Sampling(
            fanouts=tuple(train.fanouts),
            batch_size=train.batch_size,
            seed=train.seed,
            prefetch=train.prefetch,
        )
        own = labels.rows["train"].cpu().numpy().astype(np.int64)
        assert part.slice.y is not None  # training has labels
        there = torch.from_numpy(part.slice.y).to(backend.capabilities.device)
        batches = Batches(source, own, there, how, what="training rows")
        steps = batches.steps * train.epochs
        if steps >= MOST_STEPS:
            raise InputError(
                f"train.epochs is {train.epochs}, of {batches.steps} batches each: at most {MOST_STEPS - 1:,} steps; "
                "raise train.batch_size"
            )
        phases.end("batches")
    return Sampled(source, batches, how)
