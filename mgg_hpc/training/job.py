"""Everything a run needs, built from its settings: ranks, graph part, backend, model."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..config import Settings
from ..errors import InputError
from ..nn.distribute import Part, gcn_adjacency, input_features, load_part
from ..nn.features import SparseFeatures
from ..nn.graph import Adjacency, GraphHandle
from ..nn.models import GCN
from ..nn.random import Draws
from ..nn.transfer import Choice, choose_transfer, routed
from ..nn.workspace import row_format
from ..runtime import backends, mpi
from ..runtime.backends.base import Backend, Geometry, Options
from .metrics import Labels, labels


@dataclass
class Job:
    """One rank's share of a run."""

    settings: Settings
    comm: Any
    part: Part
    backend: Backend
    backend_reason: str
    transfer: Choice
    layers: list[Adjacency]
    model: GCN
    x: torch.Tensor | SparseFeatures
    labels: Labels
    dtype: torch.dtype

    @property
    def select(self) -> str:
        """Whose weights are kept: "best" or "last", which is all that there is without validation rows."""
        return self.settings.train.select if self.labels.totals["val"] else "last"

    def graph(self) -> GraphHandle:
        """The handle that layers aggregate over; allocates symmetric memory. Collective."""
        counts = self.part.bounds[1:] - self.part.bounds[:-1]
        sparse = isinstance(self.x, SparseFeatures)
        return GraphHandle(
            self.backend,
            counts,
            self.part.slice.ids,
            self.layers,
            dtype=self.dtype,
            widest=self.model.widest(sparse),
        )


def geometry(settings: Settings) -> Geometry:
    """The job's ps, dist and wpb, with the default for each that is "auto"."""
    plan, default = settings.plan, backends.DEFAULT_GEOMETRY
    return Geometry(
        ps=default.ps if plan.ps == "auto" else int(plan.ps),
        dist=default.dist if plan.dist == "auto" else int(plan.dist),
        wpb=default.wpb if plan.wpb == "auto" else int(plan.wpb),
    )


def build(settings: Settings, comm: Any) -> Job:
    """Load the graph, split the work, make the model. Collective. Raises InputError, the same on all ranks."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    share = mpi.threads_share(comm)
    threads = settings.run.threads or (int(asked) if asked.isdigit() and int(asked) > 0 else share)
    torch.set_num_threads(threads)
    part = load_part(Path(settings.graph.file), comm)
    if part.multilabel:
        raise InputError(f"{part.path}: has several labels a node; this version trains on one label a node")
    if part.classes < 1 or part.slice.y is None:
        raise InputError(f"{part.path}: has no labels (/node/y); training needs them")
    mpi.node(comm)  # collective at the first call, so not within what ranks do by themselves
    with mpi.agree(comm):
        backend, why = backends.choose(settings.run.backend, comm, Options(geometry(settings), threads))
    dtype = getattr(torch, settings.train.dtype)
    adjacency = gcn_adjacency(comm, part, dtype, backend.geometry.ps)
    with mpi.agree(comm):
        x = input_features(part, backend, dtype, settings.train.normalize_features)
    masks = {"train": part.slice.train, "val": part.slice.val, "test": part.slice.test}
    known = labels(comm, part.slice.y, masks)
    if known.totals["train"] == 0:
        raise InputError(f"{part.path}: has no training rows (/node/train); mark some")
    chosen = settings.model
    model = GCN(
        part.features, chosen.hidden, part.classes, chosen.layers, chosen.dropout, Draws(settings.train.seed)
    ).to(dtype)
    model.reset_parameters()  # again, in the job's dtype: float64 keeps all digits
    sparse = isinstance(x, SparseFeatures)
    formats = [row_format(width, dtype) for width in model.exchanged(sparse)]
    counts = part.bounds[1:] - part.bounds[:-1]
    chosen_transfer = choose_transfer(
        comm, settings.plan.transfer, backend, adjacency, counts, formats, model.exchanges_back(sparse)
    )
    layers = routed(comm, adjacency, chosen_transfer.transfers, backend.halo_waves)
    return Job(settings, comm, part, backend, why, chosen_transfer, layers, model, x, known, dtype)
