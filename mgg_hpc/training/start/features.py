"""The rows that a job's model is given: features of the graph, or rows that are learned."""

from __future__ import annotations

from typing import Any

import torch

from ...config import Settings
from ...errors import InputError
from ...nn.graph.loading import Part
from ...nn.graph.matrix import Unplanned
from ...nn.inputs.features import input_features, learned_rows
from ...nn.inputs.host import Input, drops_in_blocks
from ...nn.layers.models import GNN
from ...nn.workspace import accumulator, row_format
from ...runtime import cores, mpi
from ...runtime.backends.base import Backend


def input_rows(
    settings: Settings,
    comm: Any,
    part: Part,
    backend: Backend,
    model: GNN,
    matrix: Unplanned,
    *,
    in_blocks: bool,
) -> Input:
    """Return this rank's rows that the model is given: of the graph, or to be learned. Collective.

    in_blocks: allow to leave dense features on the host, or to apply dropout to them in blocks.
    """
    train, dtype, device = settings.train, getattr(torch, settings.train.dtype), backend.capabilities.device
    plans = sum(edges.plan_nbytes for edges in matrix.directions)
    plans += 2 * len(matrix.forward.indices) * model.edge_dim * accumulator(dtype).itemsize
    on_host = in_blocks and stay_on_host(settings, comm, part, backend, model, plans)
    x: Input
    with mpi.agree(comm):
        try:
            if settings.model.input == "learned":
                ids = part.slice.ids
                x = learned_rows(ids, part.features, train.seed, accumulator(dtype), device)
            else:
                x = input_features(part, backend, dtype, train.normalize_features, on_host=on_host)
        except torch.cuda.OutOfMemoryError as error:
            raise InputError(
                f"{part.path}: the features of rank {comm.rank} do not fit on its GPU; use more GPUs, "
                'train.dtype = "bfloat16", or, where they are dense, run.features = "host"'
            ) from error
    model.in_blocks = in_blocks and drops_in_blocks(x)
    return x


def stay_on_host(settings: Settings, comm: Any, part: Part, backend: Backend, model: GNN, plans: int) -> bool:
    """Return whether dense features stay in the host's memory because some rank's GPU has no room. Collective.

    plans: bytes of the plans, which go to the GPU too. Raises InputError, the same on all ranks, where the node has no
    room for them either.
    """
    free, asked = backend.memory.free(), settings.run.features
    if free is None or part.file is None:
        return False
    dtype, rows = getattr(torch, settings.train.dtype), len(part.slice.ids)
    features = rows * row_format(part.features, dtype).row_bytes
    # Beside them: a copy with dropout, outputs and gradients of each layer, and evaluation's, which are kept apart
    # where steps are recorded; two buffers that peers read.
    beside = plans + (features if settings.model.dropout else 0)
    beside += sum(6 * rows * row_format(width, dtype).row_bytes for width in model.widths)
    widest = row_format(model.widest(sparse=False), dtype).row_bytes
    beside += 2 * int((part.bounds[1:] - part.bounds[:-1]).max()) * widest
    mine = asked == "host" or (asked == "auto" and features + beside > free)
    if not any(comm.allgather(mine)):  # all ranks do the same: widths of rows follow from it
        return False
    here = mpi.node(comm)
    total = int(here.allreduce(features))
    with mpi.agree(comm):
        if total > cores.memory_available():
            raise InputError(
                f"{part.path}: {total / 2**30:.1f} GiB of features do not fit on this node's GPUs, and its memory has "
                f"{cores.memory_available() / 2**30:.1f} GiB left; use more nodes"
            )
    return True
