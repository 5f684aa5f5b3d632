"""A run's ranks, part of the graph, backend, model and plans, built from its settings."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .. import config
from ..config import Settings
from ..data.graph import SparseRows
from ..errors import InputError
from ..nn.graph.dist_graph import DistGraph
from ..nn.graph.handle import GraphHandle
from ..nn.graph.loading import (
    Part,
    check_symmetric,
    edge_data_of,
    load_part,
    matrix_of,
)
from ..nn.graph.matrix import Adjacency, Unplanned
from ..nn.graph.plan_cache import PlanCache
from ..nn.graph.transfer import TransferChoice, choose_transfer, planned, with_edge_values
from ..nn.inputs.features import without_features
from ..nn.inputs.host import HostFeatures, Input
from ..nn.inputs.sparse import SparseFeatures
from ..nn.layers.models import GNN, kind_of
from ..nn.layers.random import Draws
from ..nn.streaming.graph import StreamedGraph, Streaming
from ..nn.streaming.rows import StreamedRows
from ..nn.workspace import accumulator, row_format
from ..plan.layout import RowFormat
from ..plan.workload import Plan
from ..runtime import backends, mpi
from ..runtime.watchdog import AUTO, Limit, Watchdog
from . import metrics, optimizers, sampled
from .checkpoints import weights
from .sampled import Sampled
from .screen import print_line
from .start import Base, PhaseTimer, input_rows, learned_or_stored, streaming_of


@dataclass(frozen=True)
class Exchange:
    """A layer's aggregation in one direction, "forward" or "backward", of rows of this width. layer: from 1 on."""

    layer: int
    direction: str
    plan: Plan
    weight: torch.Tensor | None
    format: RowFormat


@dataclass
class Job(Base):
    """One rank's share of a run.

    layers: adjacency of each layer; empty if the graph is streamed. x: input rows. sampled: batches, if it trains on
    batches. streamed: the graph, if rows do not stay in memory. opened: the graph, if the model is a `UserModel`.
    """

    transfer: TransferChoice
    layers: list[Adjacency]
    x: Input | StreamedRows
    sampled: Sampled | None = None
    streamed: StreamedGraph | None = None
    opened: DistGraph | None = None

    @property
    def select(self) -> str:
        """Which epoch's weights are chosen, "best" or "last": always "last" without validation rows."""
        return self.settings.train.select if self.labels.totals["val"] else "last"

    @property
    def learned(self) -> torch.nn.Parameter | None:
        """The input rows if they are trained, else None."""
        return self.x if isinstance(self.x, torch.nn.Parameter) else None

    @property
    def input(self) -> Input | StreamedRows:
        """Input of the model: features, or learned rows in the type of all rows."""
        return self.x if self.learned is None else self.learned.to(self.dtype)

    @property
    def sparse(self) -> bool:
        """True if only ``x @ W`` is available: the input is sparse, or stays on the host."""
        return not isinstance(self.x, torch.Tensor)

    @property
    def records(self) -> bool:
        """Whether steps may be recorded as a CUDA graph."""
        on_host = isinstance(self.x, HostFeatures | StreamedRows)
        plain = self.opened is None and self.settings.train.plain_adam
        return self.settings.run.cuda_graphs and self.backend.stream.records and plain and not on_host

    def exchanges(self) -> Iterator[Exchange]:
        """Yield the aggregations of a training step by layer, forward first, as far as they are known before it."""
        if self.streamed is not None or self.opened is not None:
            return
        passes = (
            ("forward", self.model.exchanged(self.sparse)),
            ("backward", self.model.exchanged_back(self.sparse)),
        )
        for i, adjacency in enumerate(self.layers):
            for direction, widths in passes:
                if widths[i]:
                    plan, weight = (getattr(adjacency, f"{direction}{name}") for name in ("", "_weight"))
                    yield Exchange(i + 1, direction, plan, weight, row_format(widths[i], self.dtype))

    def weights(self) -> dict[str, torch.Tensor]:
        """Return everything that is trained by name, not copied; of learned rows those of this rank."""
        rows = {} if self.learned is None else {weights.LEARNED: self.learned}
        return self.model.state_dict() | rows

    def graph(self) -> GraphHandle:
        """Return the graph that layers aggregate over; allocates symmetric memory. Collective."""
        if (graph := self.streamed or self.opened) is not None:
            return graph
        counts, ids = self.part.bounds[1:] - self.part.bounds[:-1], self.part.slice.ids
        widest = self.model.widest(self.sparse)
        return GraphHandle(self.backend, counts, ids, self.layers, dtype=self.dtype, widest=widest)

    def close(self) -> None:
        """Free the memory that ranks share. Collective."""
        if self.sampled is not None:
            self.sampled.source.close()
        if (graph := self.streamed or self.opened) is not None:
            graph.close()
        else:
            self.backend.memory.close()


def build(
    settings: Settings,
    comm: Any,
    fitted: weights.Fitted | None = None,
    phases: PhaseTimer | None = None,
) -> Job:
    """Load the graph, divide the work and make the model. Collective. Raises InputError, the same on all ranks.

    fitted: for prediction by a trained model, without labels and batches. phases: times the start.
    """
    phases = phases or PhaseTimer()
    dtype = getattr(torch, settings.train.dtype)
    samples = settings.train.mode == "sampled" and fitted is None
    user = None
    with mpi.agree(comm):
        sampled.check(settings)
        streaming = streaming_of(settings)
        if fitted is None:
            optimizers.check(settings.train, learned=settings.model.input == "learned")
        if settings.model.module:
            from . import user_model  # others do without converted models

            user = user_model.load(settings, print_line if comm.rank == 0 else lambda line: None)
    chosen = backends.choose(settings.run.backend, comm, settings.train.dtype, settings.run.share_gpu)
    threads = mpi.threads(comm, settings.run.threads)  # of the remaining cores, near the GPU
    torch.set_num_threads(threads)
    phases.end("backend", "reading the graph")
    # A stored plan replaces the edges, which batches are drawn from.
    cache = "never" if settings.model.edge_data or samples or streaming or user else settings.plan.cache
    plans = PlanCache(cache, kind_of(settings.model), accumulator(dtype))
    file, names = Path(settings.graph.file), user.edge_names if user else {settings.model.edge_data}
    with load_part(file, comm, edge_data=names, plans=plans) as part:
        _prepare(part, settings, comm, fitted, phases)
        metric = metrics.choose(settings.train.metric, part.multilabel, part.classes, part.path)
        with_edges = copy.copy(part) if samples else part  # planning removes a part's edges
        edge_data = None if user else _edge_data(settings, part, dtype)
        model: Any = user or _model(settings, part, dtype, 0 if edge_data is None else edge_data.shape[1])
        widest = part.features if user else model.widest(isinstance(part.slice.x, SparseRows))
        knobs = {name: getattr(settings.plan, name) for name in ("ps", "dist", "wpb", "far_ps")}
        backend = backends.make(
            chosen,
            comm,
            threads=threads,
            widest=row_format(widest, dtype),
            searches=settings.plan.tune == "full",
            **{name: int(knob) for name, knob in knobs.items() if knob != "auto"},
        )
        phases.end("backend", "planning the sums of neighbours")
        with backends.closed_on_error(backend.memory.close):
            base = Base(
                settings=settings,
                comm=comm,
                part=part,
                backend=backend,
                backend_reason=chosen.why,
                model=model,
                labels=_labels(settings, comm, part, backend.capabilities.device, trains=fitted is None),
                metric=metric,
                dtype=dtype,
                phases=phases,
                plans=plans,
            )
            if user:
                return _user(base)
            if streaming is not None:
                return _streamed(base, streaming)
            if samples:
                return _sampled(base, edge_data, with_edges)
            return _whole(base, edge_data)


def build_trained(settings: Settings, comm: Any, fitted: weights.Fitted, source: Path) -> Job:
    """Build the job of a trained model, for prediction. Collective. Raises InputError.

    source: folder of the run, or a file with the state of a model that was trained elsewhere.
    """
    job = build(settings, comm, fitted)
    with backends.closed_on_error(job.close), mpi.agree(comm):
        if source.is_file():
            weights.load_state(source, job.model)
            return job
        weights.load_weights(source, job.model)
        if job.learned is not None:
            weights.load_rows(source, job.part.slice.ids, job.part.nodes, job.learned)
    return job


def _whole(base: Base, edge_data: torch.Tensor | None, batches_of: Part | None = None) -> Job:
    """Build a job on the whole graph in memory: its input rows, and a plan for each layer. Collective.

    edge_data: [E, D] of this rank's edges for the model, or None. batches_of: as in `input_rows`.
    """
    comm, part, device = base.comm, base.part, base.backend.capabilities.device
    kept, wide = part.matrix is not None, accumulator(base.dtype)
    matrix = matrix_of(comm, part, base.model.kind, wide, device, ordered=edge_data is not None)
    if not kept:
        base.plans.keep(matrix)
    base.phases.end("plan", "preparing the features")
    x = input_rows(base, matrix, batches_of)
    base.phases.end("features", "choosing how features cross between ranks")
    transfer, layers = _planned(base, matrix, x)
    if edge_data is not None:
        layers = with_edge_values(comm, layers, base.settings.model.edge_data, edge_data.to(device))
    base.phases.end("transfer", "estimating the memory")
    return Job(**vars(base), transfer=transfer, layers=layers, x=x)


def _sampled(base: Base, edge_data: torch.Tensor | None, with_edges: Part) -> Job:
    """Build a job that trains on batches, and evaluates on the whole graph. Collective.

    with_edges: this rank's part with its edges, which batches are drawn from.
    """
    job = _whole(base, edge_data, with_edges)
    assert not isinstance(job.x, StreamedRows)
    job.sampled = sampled.make(base, with_edges, job.layers, job.x)
    assert job.sampled.source.x is not None
    job.x = job.sampled.source.x  # the same rows, where other ranks read them
    return job


def _streamed(base: Base, streaming: Streaming) -> Job:
    """Build a job on a graph whose rows lie in stores, planned for its widest layer. Collective."""
    normalize = base.settings.train.normalize_features
    if base.model.by_edge and (edges := base.backend.edges) is not None:
        with mpi.agree(base.comm):
            edges.check_tapes()
    graph = StreamedGraph(base.comm, base.part, base.backend, base.dtype, streaming, normalize)
    base.phases.end("features", "planning the passes over the graph")
    sources, targets = base.model.streamed_columns()
    with backends.closed_on_error(graph.close):
        graph.plan(base.model.kind, sources, targets, widest=max(base.model.widths))
    base.phases.end("plan", "estimating the memory")
    assert isinstance(graph.x, StreamedRows)
    transfer = TransferChoice(("stream",), f"plan.memory is {base.settings.plan.memory}")
    return Job(**vars(base), transfer=transfer, layers=[], x=graph.x, streamed=graph)


def _user(base: Base) -> Job:
    """Build a job of a model of the user's, on the whole graph in memory. Collective."""
    part, transfer = base.part, base.settings.plan.transfer
    with mpi.agree(base.comm):
        base.model.net.to(base.dtype)
        if isinstance(transfer, list):
            raise InputError("plan.transfer is a list; with model.module name one transfer, for all layers")
        x = learned_or_stored(base)
    if isinstance(x, SparseFeatures):
        x = x.written(torch.empty(x.shape, dtype=base.dtype, device=x.values.device))
    base.phases.end("features", "planning the exchanges of rows")
    bare = replace(part, features=0)  # the graph itself needs no features
    graph = DistGraph(base.comm, bare, base.backend, base.dtype, transfer, 0)
    with backends.closed_on_error(graph.close):
        layers = [graph.adjacency("edges")]
    base.phases.end("plan", "estimating the memory")
    chosen = TransferChoice((layers[0].forward.transfer,), "of model.module, for all its layers")
    return Job(**vars(base), transfer=chosen, layers=layers, x=x, opened=graph)


def _prepare(
    part: Part, settings: Settings, comm: Any, fitted: weights.Fitted | None, phases: PhaseTimer
) -> None:
    """Adapt this rank's part of the graph to the job, and check it. Collective."""
    if settings.model.input != "features":
        without_features(part, settings.model.input, settings.model.embedding)
    phases.end("read", "checking the graph")
    if fitted:
        weights.fit_to(part, fitted)
    check_symmetric(comm, part)
    phases.end("check")
    if part.slice.y is None or (part.classes < 1 and fitted is None):
        raise InputError(f"{part.path}: has no labels (/node/y); training needs them")
    if part.features < 1:
        raise InputError(
            f"{part.path}: has no node features (/node/x); import the graph with features, "
            'or make an input: model.input = "learned" or "degree"'
        )


def _labels(settings: Settings, comm: Any, part: Part, device: str, *, trains: bool) -> metrics.Labels:
    """Return this rank's labels and splits on a device. Collective.

    Raises InputError without training rows, and for train.class_weights that do not fit them.
    """
    masks = {"train": part.slice.train, "val": part.slice.val, "test": part.slice.test}
    assert part.slice.y is not None  # checked by `_prepare`
    labels = metrics.labels(comm, part.slice.y, masks, device)
    if labels.totals["train"] == 0 and trains:
        raise InputError(
            f"{part.path}: has no training nodes (/node/train); import it with --split-random 0.6 0.2, or "
            "write bool [n] masks into the file"
        )
    weights = np.array(settings.train.class_weights)
    if trains and len(weights):
        if part.multilabel or len(weights) != part.classes:
            has = "several labels a node" if part.multilabel else f"{part.classes} classes"
            raise InputError(
                f"train.class_weights has {len(weights)} numbers, and {part.path} has {has}; give one for each class "
                "of a graph with one label a node, or leave it out"
            )
        mine = labels.y["train"].cpu().numpy()
        if not comm.allreduce(float(weights[mine].sum())):
            raise InputError("train.class_weights: all training nodes are of classes with weight 0")
    return labels


def _planned(base: Base, matrix: Unplanned, x: Input) -> tuple[TransferChoice, list[Adjacency]]:
    """Choose the transfer of remote rows for each layer, and plan the layers. Collective."""
    comm, model, part, backend = base.comm, base.model, base.part, base.backend
    sparse, asked = not isinstance(x, torch.Tensor), base.settings.plan.transfer
    formats = [row_format(width, base.dtype) for width in model.exchanged(sparse)]
    backward = [row_format(width, base.dtype) if width else None for width in model.exchanged_back(sparse)]
    counts = part.bounds[1:] - part.bounds[:-1]
    with watchdog(base.settings, comm) as dog:
        dog.step("choosing transfers")
        transfer = choose_transfer(
            comm, asked, backend, matrix, counts, formats, backward, by_edge=model.by_edge
        )
        # Edge kernels keep more per row between rounds than the row itself, so a single round is used.
        rounds = 1 if model.by_edge else backend.capabilities.halo_rounds
        return transfer, planned(comm, matrix, transfer.transfers, rounds, base.plans)


def _edge_data(settings: Settings, part: Part, dtype: torch.dtype) -> torch.Tensor | None:
    """Take the data of this rank's edges for the model out of its part: [E, D] of the accumulator's type.

    None if the model takes none. Raises InputError if the graph lacks them, or the model cannot take any.
    """
    chosen = settings.model
    if not chosen.edge_data:
        return None
    if chosen.name != "gat" or chosen.attention != "additive":
        said = f'model.name = "{chosen.name}"' if chosen.name != "gat" else 'model.attention = "dot"'
        raise InputError(
            f"model.edge_data is {chosen.edge_data!r}, and {said} takes no data of edges; "
            'model.name = "gat" with model.attention = "additive" does'
        )
    wide = np.float64 if dtype == torch.float64 else np.float32
    values = torch.from_numpy(edge_data_of(part, chosen.edge_data).astype(wide, copy=False))
    part.slice = replace(part.slice, edge={})
    return values.reshape(len(values), math.prod(values.shape[1:]))


def _model(settings: Settings, part: Part, dtype: torch.dtype, edge_dim: int) -> GNN:
    """Make the model, with weights drawn in the accumulator's type, so that float64 has all digits."""
    asked, layers = settings.train.recompute, settings.model.layers
    for layer in () if asked == "all" else asked:
        if int(layer) > layers:
            raise InputError(
                f"train.recompute names layer {layer}, and the model has {layers} (model.layers)"
            )
    model = GNN(settings.model, part.features, part.classes, Draws(settings.train.seed), dtype, edge_dim)
    model.to(accumulator(dtype)).reset_parameters()
    model.recompute = frozenset(range(1, layers + 1) if asked == "all" else map(int, asked))
    return model


def resolved(job: Job) -> Settings:
    """Return a job's settings with the values chosen for "auto", which depend on measurements and versions."""
    if job.streamed is not None:
        return job.settings
    geometry = job.backend.options.geometry
    on_cpu = job.backend.capabilities.device == "cpu"
    knobs = {"ps": geometry.ps, "wpb": geometry.wpb} if on_cpu else {}
    return config.with_plan(job.settings, job.transfer.transfers, knobs)


def watchdog(settings: Settings, comm: Any) -> Watchdog:
    """Return the watchdog that ends a job which makes no progress."""
    asked = settings.run.watchdog
    return Watchdog(comm.rank, AUTO if asked == "auto" else Limit(float(asked)))
