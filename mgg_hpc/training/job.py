"""Everything a run needs, built from its settings: ranks, graph part, backend, model."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch

from .. import config
from ..config import Settings
from ..data.graph import SparseRows
from ..errors import InputError
from ..nn.graph.handle import GraphHandle
from ..nn.graph.loading import (
    Part,
    check_symmetric,
    edge_data_of,
    load_part,
    matrix_of,
    without_features,
)
from ..nn.graph.matrix import Adjacency, Unplanned
from ..nn.graph.plan_cache import PlanCache
from ..nn.graph.transfer import TransferChoice, choose_transfer, planned, with_edge_values
from ..nn.inputs.host import HostFeatures, Input
from ..nn.layers.models import GNN, kind_of
from ..nn.layers.random import Draws
from ..nn.layers.streamed import widest
from ..nn.streaming.graph import StreamedGraph, Streaming
from ..nn.streaming.rows import StreamedRows
from ..nn.workspace import accumulator, row_format
from ..plan.layout import RowFormat
from ..plan.workload import Plan
from ..runtime import backends, mpi
from ..runtime.backends.base import Backend
from ..runtime.watchdog import AUTO, Limit, Watchdog
from . import metrics
from .checkpoints import weights
from .metrics import Labels, Metric
from .minibatch import sampled
from .minibatch.sampled import Sampled
from .progress import PhaseTimer
from .start import features
from .start.streaming import streaming_of


@dataclass
class Job:
    """One rank's share of a run.

    dtype: of rows; parameters are of its accumulator. phases: of its start. sampled: where it trains on batches.
    streamed: where rows do not stay in memory; there are no ``layers`` then.
    """

    settings: Settings
    comm: Any
    part: Part
    backend: Backend
    backend_reason: str
    transfer: TransferChoice
    layers: list[Adjacency]
    model: GNN
    x: Input | StreamedRows
    labels: Labels
    metric: Metric
    dtype: torch.dtype
    phases: PhaseTimer
    plans: PlanCache
    sampled: Sampled | None = None
    streamed: StreamedGraph | None = None

    @property
    def select(self) -> str:
        """Weights that are kept: "best" or "last", always "last" without validation rows."""
        return self.settings.train.select if self.labels.totals["val"] else "last"

    @property
    def learned(self) -> torch.nn.Parameter | None:
        """The input rows that are trained, if they are."""
        return self.x if isinstance(self.x, torch.nn.Parameter) else None

    @property
    def input(self) -> Input | StreamedRows:
        """Input of the model: features, or learned rows in the type of all rows."""
        return self.x if self.learned is None else self.learned.to(self.dtype)

    def aggregations(self) -> Iterator[tuple[str, int, Plan, RowFormat]]:
        """Yield direction, layer (from 1 on), plan and format of the rows of each aggregation of an epoch.

        Not of a graph that is streamed, which has a plan for each of its intervals.
        """
        if self.streamed is not None:
            return
        passes = (
            ("forward", self.model.exchanged(self.sparse)),
            ("backward", self.model.exchanged_back(self.sparse)),
        )
        for direction, widths in passes:
            for layer, (adjacency, width) in enumerate(zip(self.layers, widths, strict=True), 1):
                if width:
                    yield direction, layer, getattr(adjacency, direction), row_format(width, self.dtype)

    def weights(self) -> dict[str, torch.Tensor]:
        """Return all that is trained, by name, not copied; learned rows are this rank's."""
        rows = {} if self.learned is None else {weights.LEARNED: self.learned}
        return self.model.state_dict() | rows

    @property
    def sparse(self) -> bool:
        """Whether the input can be multiplied only: it is sparse, or stays on the host."""
        return not isinstance(self.x, torch.Tensor)

    @property
    def records(self) -> bool:
        """Whether epochs may be recorded as a CUDA graph."""
        on_host = isinstance(self.x, HostFeatures | StreamedRows)
        return self.settings.run.cuda_graphs and self.backend.stream.records and not on_host

    def close(self) -> None:
        """Free what ranks share. Collective."""
        if self.sampled is not None:
            self.sampled.close()
        if self.streamed is not None:
            self.streamed.close()
        else:
            self.backend.memory.close()

    def graph(self) -> GraphHandle:
        """Return the handle that layers aggregate over; allocates symmetric memory. Collective."""
        if self.streamed is not None:
            return self.streamed
        counts = self.part.bounds[1:] - self.part.bounds[:-1]
        return GraphHandle(
            self.backend,
            counts,
            self.part.slice.ids,
            self.layers,
            dtype=self.dtype,
            widest=self.model.widest(self.sparse),
        )


def build(
    settings: Settings,
    comm: Any,
    fitted: weights.Fitted | None = None,
    between: Callable[[], None] = lambda: None,
) -> Job:
    """Load the graph, split the work, make the model. Collective. Raises InputError, the same on all ranks.

    fitted: for a model that has been trained; labels and splits are left out then. between: called after each phase, by
    all ranks.
    """
    phases, train = PhaseTimer(between), settings.train
    dtype = getattr(torch, train.dtype)
    wide = accumulator(dtype)
    samples = train.mode == "sampled" and fitted is None
    with mpi.agree(comm):
        sampled.check(settings)
        streaming = streaming_of(settings)
    chosen = backends.choose(settings.run.backend, comm, train.dtype, settings.run.share_gpu)
    threads = mpi.threads(comm, settings.run.threads)  # of the cores that are left, near the GPU
    torch.set_num_threads(threads)
    phases.end("backend")
    # A plan that was kept takes the place of the edges, of which batches are drawn.
    plans = PlanCache(
        "never" if settings.model.edge_data or samples or streaming else settings.plan.cache,
        kind_of(settings.model),
        wide,
    )
    with load_part(
        Path(settings.graph.file), comm, edge_data=[settings.model.edge_data], plans=plans
    ) as part:
        _prepare(part, settings, comm, fitted, phases)
        metric = metrics.choose(train.metric, part.multilabel, part.classes, part.path)
        # Planning lets go of a part's edges.
        whole = copy.copy(part) if samples else None
        edge_data = _edge_data(settings, part, dtype)
        model = _model(settings, part, dtype, 0 if edge_data is None else edge_data.shape[1])
        backend = _backend(settings, comm, chosen, part, model, threads)
        phases.end("backend")
        with backends.closed_on_error(backend.memory.close):
            device = backend.capabilities.device
            with mpi.agree(comm):
                sampled.check_device(settings, on_gpu=device != "cpu")
            labels = _labels(comm, part, device, trains=fitted is None)
            graph, batches = None, None
            x: Input | StreamedRows
            layers: list[Adjacency]
            if streaming is not None:
                graph = _streamed(settings, comm, part, backend, model, streaming, phases)
                x, layers = cast(StreamedRows, graph.x), []
                transfer = TransferChoice(("stream",), f"plan.memory is {settings.plan.memory}")
            else:
                kept = part.matrix is not None
                matrix = matrix_of(comm, part, model.kind, wide, device, ordered=edge_data is not None)
                if not kept:
                    plans.keep(matrix)
                phases.end("plan")
                x = features.input_rows(settings, comm, part, backend, model, matrix, in_blocks=not samples)
                phases.end("features")
                transfer, layers = _planned(settings, comm, part, backend, model, matrix, x, plans)
                if edge_data is not None:
                    layers = with_edge_values(comm, layers, settings.model.edge_data, edge_data.to(device))
                phases.end("transfer")
                if whole is not None:
                    batches = sampled.make(settings, comm, whole, backend, model, layers, x, labels, phases)
                    x = batches.x
    return Job(
        settings=settings,
        comm=comm,
        part=part,
        backend=backend,
        backend_reason=chosen.why,
        transfer=transfer,
        layers=layers,
        model=model,
        x=x,
        labels=labels,
        metric=metric,
        dtype=dtype,
        phases=phases,
        plans=plans,
        sampled=batches,
        streamed=graph,
    )


def _streamed(
    settings: Settings,
    comm: Any,
    part: Part,
    backend: Backend,
    model: GNN,
    streaming: Streaming,
    phases: PhaseTimer,
) -> StreamedGraph:
    """Open the graph whose rows lie in stores, and cut its grid for the widest layer. Collective."""
    dtype = getattr(torch, settings.train.dtype)
    graph = StreamedGraph(comm, part, backend, dtype, streaming, settings.train.normalize_features)
    phases.end("features")
    widths = widest(model.convolutions)
    with backends.closed_on_error(graph.close):
        graph.plan(model.kind, widths.sources, widths.targets, widest=max(model.widths))
    phases.end("plan")
    return graph


def _prepare(
    part: Part, settings: Settings, comm: Any, fitted: weights.Fitted | None, phases: PhaseTimer
) -> None:
    """Fit this rank's part of the graph to the job, and check it. Collective."""
    if settings.model.input != "features":
        without_features(part, settings.model.input, settings.model.embedding)
    phases.end("read")
    if fitted:
        weights.fit_to(part, fitted)
    check_symmetric(comm, part)
    phases.end("check")
    if part.classes < 1 or part.slice.y is None:
        raise InputError(f"{part.path}: has no labels (/node/y); training needs them")
    if part.features < 1:
        raise InputError(
            f"{part.path}: has no node features (/node/x); import the graph with features, "
            'or make an input: model.input = "learned" or "degree"'
        )


def _backend(
    settings: Settings, comm: Any, chosen: backends.Chosen, part: Part, model: GNN, threads: int
) -> Backend:
    """Make the backend, with the knobs that the job names. Collective."""
    plan, dtype = settings.plan, getattr(torch, settings.train.dtype)
    asked = {"ps": plan.ps, "dist": plan.dist, "wpb": plan.wpb, "far_ps": plan.far_ps}
    knobs = {name: int(knob) for name, knob in asked.items() if knob != "auto"}
    widest = row_format(model.widest(isinstance(part.slice.x, SparseRows)), dtype)
    return backends.make(chosen, comm, threads=threads, widest=widest, searches=plan.tune == "full", **knobs)


def _labels(comm: Any, part: Part, device: str, *, trains: bool) -> Labels:
    """Put this rank's labels and splits on the device. Collective. Raises InputError for training without any rows."""
    masks = {"train": part.slice.train, "val": part.slice.val, "test": part.slice.test}
    assert part.slice.y is not None  # `_prepare` has seen to it
    known = metrics.labels(comm, part.slice.y, masks, device)
    if known.totals["train"] == 0 and trains:
        raise InputError(
            f"{part.path}: has no training rows (/node/train); import it with --split-per-class, or "
            "write bool [n] masks into the file"
        )
    return known


def _planned(
    settings: Settings,
    comm: Any,
    part: Part,
    backend: Backend,
    model: GNN,
    matrix: Unplanned,
    x: Input,
    plans: PlanCache,
) -> tuple[TransferChoice, list[Adjacency]]:
    """Choose how remote rows are reached in each layer, and plan the layers so. Collective."""
    dtype, sparse = getattr(torch, settings.train.dtype), not isinstance(x, torch.Tensor)
    formats = [row_format(width, dtype) for width in model.exchanged(sparse)]
    backward = [row_format(width, dtype) if width else None for width in model.exchanged_back(sparse)]
    counts = part.bounds[1:] - part.bounds[:-1]
    with watchdog(settings, comm) as dog:
        dog.step("choosing transfers")
        transfer = choose_transfer(
            comm, settings.plan.transfer, backend, matrix, counts, formats, backward, by_edge=model.by_edge
        )
        # Edge kernels keep more per row between rounds than the row itself, so a single round is used.
        rounds = 1 if model.by_edge else backend.capabilities.halo_rounds
        return transfer, planned(comm, matrix, transfer.transfers, rounds, plans)


def _recomputed(settings: Settings) -> frozenset[int]:
    """Return the layers of train.recompute, from 1 on. Raises InputError for one that the model has not."""
    asked, layers = settings.train.recompute, settings.model.layers
    if asked == "all":
        return frozenset(range(1, layers + 1))
    for layer in asked:
        if int(layer) > layers:
            raise InputError(
                f"train.recompute names layer {layer}, and the model has {layers} (model.layers)"
            )
    return frozenset(int(layer) for layer in asked)


def resolved(job: Job) -> Settings:
    """Return a job's settings with what "auto" became, which depends on measurements and versions."""
    if job.streamed is not None:
        return job.settings
    geometry = job.backend.options.geometry
    on_cpu = job.backend.capabilities.device == "cpu"
    knobs = {"ps": geometry.ps, "wpb": geometry.wpb} if on_cpu else {}
    return config.with_plan(job.settings, job.transfer.transfers, knobs)


def watchdog(settings: Settings, comm: Any) -> Watchdog:
    """Return what ends a job that makes no progress."""
    asked = settings.run.watchdog
    return Watchdog(comm.rank, AUTO if asked == "auto" else Limit(float(asked)))


def _edge_data(settings: Settings, part: Part, dtype: torch.dtype) -> torch.Tensor | None:
    """Return the data of this rank's edges that the model takes, [E, D] of the accumulator's type, and let go of them.

    Raises InputError for a name that the graph has not, and for a model that takes none.
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
    """Make the model, with weights drawn in their own type: float64 keeps all digits."""
    draws = Draws(settings.train.seed)
    model = GNN(settings.model, part.features, part.classes, draws, dtype, edge_dim)
    model.to(accumulator(dtype)).reset_parameters()
    model.recompute = _recomputed(settings)
    return model
