"""The start of jobs of all kinds: their common parts, input rows, settings of streaming, and times of its phases."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

from .. import sizes
from ..config import FeaturesSettings, Settings
from ..errors import InputError
from ..nn.graph.loading import Part
from ..nn.graph.matrix import Unplanned
from ..nn.graph.plan_cache import PlanCache
from ..nn.inputs.features import input_features, learned_rows
from ..nn.inputs.host import Input, drops_in_blocks
from ..nn.inputs.tiered import Reads, TieredFeatures
from ..nn.streaming.graph import Streaming
from ..nn.workspace import accumulator, row_format
from ..runtime import cores, mpi, signals
from ..runtime.backends.base import Backend
from ..runtime.watchdog import Watchdog
from .metrics import Labels, Metric


class PhaseTimer:
    """Seconds of each phase of a job's start by name, in order.

    With a communicator, the end of each phase is collective, tells the watchdog, and stops the job if any rank received
    a signal. saved: description of the saved state, for the message. doing: called with what the next phase does.

    began: time.perf_counter() at the construction.
    """

    def __init__(
        self,
        comm: Any = None,
        dog: Watchdog | None = None,
        saved: str = "",
        doing: Callable[[str], None] = lambda what: None,
    ) -> None:
        self.seconds: dict[str, float] = {}
        self._comm, self._dog, self._saved, self._doing = comm, dog, saved, doing
        self.began = self._since = time.perf_counter()

    def end(self, name: str, then: str = "", *, last: bool = False) -> None:
        """Add the time since the last phase ended to phase ``name``.

        then: what the next phase does, for the user. last: training has begun, so only count.
        """
        now = time.perf_counter()
        self.seconds[name] = self.seconds.get(name, 0.0) + now - self._since
        self._since = now
        if then:
            self._doing(then)
        if self._comm is not None and not last:
            if self._dog is not None:
                self._dog.step("the start")
            signals.check(self._comm, self._saved)

    def skip(self) -> None:
        """Leave out the time since the last phase ended."""
        self._since = time.perf_counter()


@dataclass
class Base:
    """One rank's parts of a job before its rows are read.

    model: a `GNN` or a `UserModel`. dtype: of rows; parameters have the type of its accumulator. phases: of the job's
    start. plans: stored plans of the graph's file.
    """

    settings: Settings
    comm: Any
    part: Part
    backend: Backend
    backend_reason: str
    model: Any
    labels: Labels
    metric: Metric
    dtype: torch.dtype
    phases: PhaseTimer
    plans: PlanCache


def streaming_of(settings: Settings) -> Streaming | None:
    """Return how a job streams its graph (plan.memory and plan.scratch), or None if rows stay in memory.

    Raises InputError for settings that streaming excludes, and a scratch folder that does not exist.
    """
    plan = settings.plan
    memory = plan.memory if isinstance(plan.memory, int) else sizes.parse(plan.memory)
    if not memory:
        if plan.scratch:
            raise InputError(
                'plan.scratch is for graphs that are streamed: set plan.memory, such as "2G", or leave it out'
            )
        return None
    model, train = settings.model, settings.train
    for wrong, what, right in (
        (model.name == "gat", 'model.name = "gat", whose softmax', '"gcn", "gin" or "sage"'),
        (model.norm == "batch", 'model.norm = "batch", which', '"layer" or "none"'),
        (model.jumping != "none", f'model.jumping = "{model.jumping}", which', '"none"'),
        (model.input == "learned", 'model.input = "learned", which', '"features" or "degree"'),
    ):
        if wrong:
            raise InputError(f"plan.memory does not go with {what} needs all rows at once; take {right}")
    for wrong, what, why in (
        (train.mode == "sampled", 'train.mode = "sampled"', "batches hold few rows already"),
        (bool(train.recompute), "train.recompute", "what the backward needs leaves memory already"),
        (plan.transfer != "auto", "plan.transfer", "rows come from their stores"),
        (plan.tune == "full", 'plan.tune = "full"', "there is nothing to search for"),
    ):
        if wrong:
            raise InputError(f"plan.memory does not go with {what}: {why}; leave one of them out")
    if plan.scratch and not Path(plan.scratch).is_dir():
        raise InputError(f"plan.scratch: {plan.scratch} is not a folder; name one with room for all rows")
    return Streaming(memory, folder=plan.scratch or None)


def input_rows(base: Base, matrix: Unplanned, batches_of: Part | None) -> Input:
    """Return this rank's input rows of the model: the graph's features, or rows to be learned. Collective.

    matrix: the adjacency before it is planned. batches_of: this rank's part with its edges, if batches are trained on;
    else dense features may stay on the host, or have dropout applied in blocks.
    """
    settings, part, model, wide = base.settings, base.part, base.model, accumulator(base.dtype)
    plans = sum(edges.plan_nbytes for edges in matrix.directions)
    plans += 2 * len(matrix.forward.indices) * model.edge_dim * wide.itemsize
    tiers = None if settings.features == FeaturesSettings() else msgspec.structs.asdict(settings.features)
    on_host, in_blocks = tiers is None and stay_on_host(base, plans), batches_of is None
    if on_host and not in_blocks:
        tiers = msgspec.structs.asdict(
            FeaturesSettings(
                host=part.nodes * row_format(part.features, torch.float64).row_bytes, score="none"
            )
        )
    if tiers is not None:
        return _tiered(base, tiers, batches_of)
    with mpi.agree(base.comm):
        x = learned_or_stored(base, on_host=on_host)
    model.in_blocks = in_blocks and drops_in_blocks(x)
    return x


def learned_or_stored(base: Base, *, on_host: bool = False) -> Input:
    """Return this rank's rows to be learned, or the graph's features. Raises InputError if a GPU lacks room."""
    settings, part, backend = base.settings, base.part, base.backend
    try:
        if settings.model.input == "learned":
            wide, device = accumulator(base.dtype), backend.capabilities.device
            return learned_rows(part.slice.ids, part.features, settings.train.seed, wide, device)
        return input_features(part, backend, base.dtype, settings.train.normalize_features, on_host=on_host)
    except torch.cuda.OutOfMemoryError as error:
        raise InputError(
            f"{part.path}: the features of rank {base.comm.rank} do not fit on its GPU; use more GPUs, "
            'train.dtype = "bfloat16", or, where they are dense, run.features = "host"'
        ) from error


def _tiered(base: Base, tiers: dict[str, Any], batches_of: Part | None) -> TieredFeatures:
    """Return the features in tiers. Collective. tiers: as [features]. batches_of: as for `input_rows`.

    Without batches, as for a prediction, rows stay in the file.
    """
    settings, part = base.settings, base.part
    with mpi.agree(base.comm):
        if settings.model.input != "features":
            raise InputError(f'[features] is for model.input = "features"; it is "{settings.model.input}"')
    score, reads = tiers.pop("score"), None
    if batches_of is not None and settings.features != FeaturesSettings():  # else all rows are on the host
        train = np.zeros(len(part.slice.ids), bool)
        train[base.labels.rows["train"].cpu().numpy()] = True
        reads = Reads(batches_of, score, train, settings.train.fanouts, settings.train.batch_size)
    sizes = tiers if batches_of is not None else dict.fromkeys(tiers, 0)
    normalize = settings.train.normalize_features
    found = TieredFeatures(base.backend, base.comm, part, base.dtype, normalize, sizes, reads)
    if batches_of is None:
        found.place()
    return found


def stay_on_host(base: Base, plans: int) -> bool:
    """Return whether dense features stay in the host's memory because some rank's GPU lacks room. Collective.

    plans: bytes of the plans, which the GPU holds too. Raises InputError, the same on all ranks, if the node lacks room
    for the features as well.
    """
    settings, part, dtype = base.settings, base.part, base.dtype
    free, asked, rows = base.backend.memory.free(), settings.run.features, len(part.slice.ids)
    if free is None or part.file is None:
        return False
    features = rows * row_format(part.features, dtype).row_bytes
    # Also needed: a copy with dropout; outputs and gradients of each layer, and the evaluation's, which are separate if
    # steps are recorded; two buffers that peers read.
    others = plans + (features if settings.model.dropout else 0)
    others += sum(6 * rows * row_format(width, dtype).row_bytes for width in base.model.widths)
    widest = row_format(base.model.widest(sparse=False), dtype).row_bytes
    others += 2 * int((part.bounds[1:] - part.bounds[:-1]).max()) * widest
    mine = asked == "host" or (asked == "auto" and features + others > free)
    # All ranks do the same, as the widths of exchanged rows depend on it.
    if not any(base.comm.allgather(mine)):
        return False
    total = int(mpi.node(base.comm).allreduce(features))
    with mpi.agree(base.comm):
        if total > (left := cores.memory_available()):
            raise InputError(
                f"{part.path}: {total / 2**30:.1f} GiB of features do not fit on this node's GPUs, and its memory has "
                f"{left / 2**30:.1f} GiB left; use more nodes"
            )
    return True
