"""The choice of transfers, from counts and measured costs or by request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...plan import cost_model, halo, workload
from ...plan.layout import RowFormat
from ...plan.workload import Plan, SplitEdges
from ...runtime import exchange, mpi, probe
from ...runtime.backends.base import Backend
from .edge_data import ordered
from .handle import buffer_bytes, signal_bytes
from .matrix import Adjacency, Unplanned
from .plan_cache import PlanCache


@dataclass(frozen=True)
class TransferChoice:
    """The transfer of each layer. why: the reason, for reports."""

    transfers: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        """Return the transfer of all layers, or one for each, separated by commas."""
        return ", ".join(dict.fromkeys(self.transfers) if len(set(self.transfers)) == 1 else self.transfers)


def choose_transfer(
    comm: Any,
    asked: str | Sequence[str],
    backend: Backend,
    matrix: Unplanned,
    counts: NDArray[np.int64],
    formats: Sequence[RowFormat],
    backward: Sequence[RowFormat | None],
    *,
    by_edge: bool = False,
) -> TransferChoice:
    """Choose the transfer of each layer's rows. Collective.

    formats: of each layer's rows in an epoch's forward. backward: the same of its backward, None where that exchanges
    nothing. asked: of all layers, or of each; "auto" measures what a row costs by each transfer, and compares what the
    slowest rank would spend. by_edge: whether layers take EdgeKernels. Raises InputError where a transfer is asked for
    that the backend has not where some peer's memory is out of reach, or where there are more or fewer than layers.
    """
    if asked != "auto":
        each = (asked,) * len(formats) if isinstance(asked, str) else tuple(asked)
        with mpi.agree(comm):
            _check_asked(each, len(formats), backend, by_edge)
        return TransferChoice(each, "asked for")
    if comm.size == 1 or not any(comm.allgather(sum(edges.remote_edges for edges in matrix.directions))):
        needs_least = "direct" if backend.capabilities.reaches_peers else "halo"
        return TransferChoice((needs_least,) * len(formats), "no row is remote")
    _reserve(comm, backend, matrix, counts, max([*formats, *filter(None, backward)], key=_row_bytes))
    costs = probe.measure(comm, backend)
    if not _has_gets(backend, by_edge):  # known once memory has been reserved
        costs = {name: cost for name, cost in costs.items() if name != "get"}
    estimates = _estimates(comm, backend, matrix, costs, formats, backward)
    return TransferChoice(tuple(cost_model.choose_each(estimates)), _shown(estimates))


def _check_asked(each: tuple[str, ...], layers: int, backend: Backend, by_edge: bool) -> None:
    """Raise InputError for transfers that the backend has not, or that are more or fewer than layers."""
    if len(each) != layers:
        raise InputError(f"plan.transfer names {len(each)} transfers, and the model has {layers} layers")
    if "direct" in each and not backend.capabilities.reaches_peers:
        raise InputError(
            'plan.transfer is "direct", but ranks on other nodes are out of reach of pointers; '
            'use "halo", "get" or "auto"'
        )
    if "get" in each and not _has_gets(backend, by_edge):
        raise InputError(
            'plan.transfer is "get", but ranks on other nodes are out of reach of pointers, and attention and '
            'maxima on GPUs have their rows by "halo" then; use that, or "auto"'
        )


def _has_gets(backend: Backend, by_edge: bool) -> bool:
    """Return whether layers, of EdgeKernels or not, can have their rows by the transfer "get"."""
    return not by_edge or backend.capabilities.edge_gets or backend.capabilities.reaches_peers


def _row_bytes(format: RowFormat | None) -> int:
    return 0 if format is None else format.row_bytes


def _reserve(
    comm: Any, backend: Backend, matrix: Unplanned, counts: NDArray[np.int64], widest: RowFormat
) -> None:
    """Reserve the symmetric memory that any choice takes, and the measurement. Collective."""
    halo_rows = sum(max(comm.allgather(len(edges.halo))) for edges in matrix.directions)
    backend.memory.reserve(
        buffer_bytes(counts, widest, comm.size)
        + 2 * halo_rows * widest.row_bytes
        + len(matrix.directions) * signal_bytes(halo.MOST_ROUNDS, comm.size)
        + probe.symmetric_bytes(backend.capabilities.probe_rows, comm.size),
        int(counts.argmax()),
    )


def _estimates(
    comm: Any,
    backend: Backend,
    matrix: Unplanned,
    costs: Mapping[str, Any],
    formats: Sequence[RowFormat],
    backward: Sequence[RowFormat | None],
) -> dict[str, list[float]]:
    """Return the seconds an epoch of the slowest rank, for each layer by transfer. Collective."""
    uses = {id(edges): halo.uses(edges) for edges in matrix.directions}
    passes = ((matrix.forward, formats), (matrix.backward, backward))
    mine = [
        cost_model.transfer_seconds(
            costs, uses[id(edges)], backend.capabilities.cache_bytes, [_row_bytes(each) for each in rows]
        )
        for edges, rows in passes
    ]
    every = comm.allgather({name: np.sum([each[name] for each in mine], axis=0) for name in costs})
    return {name: np.max([each[name] for each in every], axis=0).tolist() for name in costs}


def _shown(estimates: Mapping[str, Sequence[float]]) -> str:
    """Return the estimates in words, for reports."""
    shown = ", ".join(
        f"{name} {' + '.join(f'{seconds * 1e3:.1f}' for seconds in estimates[name])}"
        for name in cost_model.TRANSFERS
        if name in estimates
    )
    return f"remote rows, ms an epoch by layer: {shown}"


def planned(
    comm: Any,
    matrix: Unplanned,
    transfers: Sequence[str],
    rounds: int | None = None,
    plans: PlanCache | None = None,
) -> list[Adjacency]:
    """Return the adjacency of each layer, whose plans reach remote rows by "direct", "get" or "halo". Collective.

    Layers of one transfer share plans. rounds: of a halo (`Capabilities.halo_rounds`). plans: where halos are kept.
    """
    made = {
        transfer: _planned(comm, matrix, transfer, rounds, plans) for transfer in dict.fromkeys(transfers)
    }
    return [made[transfer] for transfer in transfers]


def with_edge_values(comm: Any, layers: Sequence[Adjacency], name: str, values: Tensor) -> list[Adjacency]:
    """Return layers' adjacencies with data [E, ...] of this rank's edges in their order, by name. Collective.

    They were planned with the order of edges, which is not kept.
    """
    made: dict[int, Adjacency] = {}
    for each in layers:
        if id(each) not in made:
            held = ordered(comm, each.order, each.forward, each.backward, values, "mean")
            forward = replace(each.forward, edge=None)
            backward = forward if each.backward is each.forward else replace(each.backward, edge=None)
            made[id(each)] = replace(
                each, forward=forward, backward=backward, order=None, values={name: held}
            )
    return [made[id(each)] for each in layers]


def _planned(
    comm: Any, matrix: Unplanned, transfer: str, rounds: int | None, plans: PlanCache | None
) -> Adjacency:
    def plan(direction: str) -> tuple[Plan, Tensor | None]:
        edges, weight = getattr(matrix, direction), getattr(matrix, f"{direction}_weight")
        if plans is None or transfer != "halo" or matrix.order is not None:
            return _plan(comm, edges, weight, transfer, rounds)
        return plans.halo(
            comm, edges, direction, rounds, lambda: _plan(comm, edges, weight, transfer, rounds)
        )

    forward, forward_weight = plan("forward")
    backward, backward_weight = forward, forward_weight
    if matrix.backward is not matrix.forward:
        backward, backward_weight = plan("backward")
    return Adjacency(
        forward=forward,
        backward=backward,
        scale=matrix.scale,
        forward_weight=forward_weight,
        backward_weight=backward_weight,
        kind=matrix.kind,
        inverse_degree=matrix.inverse_degree,
        order=matrix.order,
    )


def _plan(
    comm: Any, edges: SplitEdges, weight: Tensor | None, transfer: str, rounds: int | None
) -> tuple[Plan, Tensor | None]:
    """Return a plan, and the edge weights in its order."""
    if transfer != "halo":
        return workload.direct(edges, transfer), weight
    plan, order = exchange.halo_in_rounds(comm, edges, rounds, ordered=weight is not None)
    if weight is None or order is None:
        return plan, None
    return plan, weight[torch.from_numpy(order).to(weight.device)]
