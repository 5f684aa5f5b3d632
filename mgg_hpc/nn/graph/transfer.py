"""Choose how remote rows reach each layer (the transfer), and plan the layers' adjacencies for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...plan import cost_model, halo, workload
from ...plan.layout import RowFormat
from ...plan.workload import Plan, SplitEdges
from ...runtime import exchange, mpi, row_costs
from ...runtime.backends.base import Backend
from ...sizes import counted
from .handle import buffer_bytes, signal_bytes
from .matrix import Adjacency, EdgeValues, LoopFill, Unplanned, index, ordered
from .plan_cache import PlanCache


@dataclass(frozen=True)
class TransferChoice:
    """The transfer of each layer, and the reason for reports."""

    transfers: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        """Return the transfer of all layers if they share one, else that of each layer."""
        return ", ".join(dict.fromkeys(self.transfers) if len(set(self.transfers)) == 1 else self.transfers)


def choose_transfer(
    comm: Any,
    requested: str | Sequence[str],
    backend: Backend,
    matrix: Unplanned,
    counts: NDArray[np.int64],
    formats: Sequence[RowFormat],
    backward: Sequence[RowFormat | None],
    *,
    by_edge: bool = False,
) -> TransferChoice:
    """Choose the transfer of each layer's rows. Collective.

    requested: the transfer of all layers or a sequence with one for each; "auto" measures the cost of a row by each
    transfer and minimises the time of the slowest rank. counts: int64 [P], rows of each rank. formats: of the rows that
    each layer exchanges in its forward. backward: of those in its backward, None where it exchanges none. by_edge:
    whether layers use EdgeKernels. Raises InputError for transfers that the backend lacks, or a wrong number of them.
    """
    capabilities = backend.capabilities
    if requested != "auto":
        each = (requested,) * len(formats) if isinstance(requested, str) else tuple(requested)
        with mpi.agree(comm):
            _check_requested(each, len(formats), backend, by_edge)
        return TransferChoice(each, "asked for")
    if comm.size == 1 or not any(comm.allgather(sum(edges.remote_edges for edges in matrix.directions))):
        needs_least = "direct" if capabilities.reaches_peers else "halo"
        return TransferChoice((needs_least,) * len(formats), "no row is remote")
    # The symmetric memory of any choice, and of the measurement.
    widest = max([*formats, *filter(None, backward)], key=lambda format: format.row_bytes)
    halo_rows = sum(max(comm.allgather(len(edges.halo))) for edges in matrix.directions)
    backend.memory.reserve(
        buffer_bytes(counts, widest, comm.size)
        + 2 * halo_rows * widest.row_bytes
        + len(matrix.directions) * signal_bytes(halo.MOST_ROUNDS, comm.size)
        + row_costs.symmetric_bytes(backend),
        int(counts.argmax()),
    )
    costs = row_costs.measure(comm, backend)
    if not _has_gets(backend, by_edge):  # known once memory has been reserved
        costs = {name: cost for name, cost in costs.items() if name != "get"}
    estimates = _estimates(comm, backend, matrix, costs, formats, backward)
    shown = ", ".join(
        f"{name} {' + '.join(f'{seconds * 1e3:.1f}' for seconds in estimates[name])}"
        for name in cost_model.TRANSFERS
        if name in estimates
    )
    chosen = tuple(cost_model.choose_each(estimates))
    return TransferChoice(chosen, f"remote rows, ms an epoch by layer: {shown}")


def _check_requested(each: tuple[str, ...], layers: int, backend: Backend, by_edge: bool) -> None:
    """Raise InputError for transfers that the backend lacks, or if there is not one for each layer."""
    if len(each) != layers:
        raise InputError(
            f"plan.transfer names {counted(len(each), 'transfer')}, and the model has {counted(layers, 'layer')}"
        )
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
    """Return whether the transfer "get" is available to layers, which use EdgeKernels or not."""
    return (
        not by_edge
        or backend.capabilities.reaches_peers
        or (backend.edges is not None and backend.edges.gets)
    )


def _estimates(
    comm: Any,
    backend: Backend,
    matrix: Unplanned,
    costs: Mapping[str, Any],
    formats: Sequence[RowFormat],
    backward: Sequence[RowFormat | None],
) -> dict[str, list[float]]:
    """Return for each transfer the seconds an epoch that the slowest rank spends in each layer. Collective."""
    uses = {id(edges): halo.uses(edges) for edges in matrix.directions}
    passes = ((matrix.forward, formats), (matrix.backward, backward))
    mine = [
        cost_model.transfer_seconds(
            costs,
            uses[id(edges)],
            backend.memory.cache_bytes,
            [0 if each is None else each.row_bytes for each in rows],
        )
        for edges, rows in passes
    ]
    every = comm.allgather({name: np.sum([each[name] for each in mine], axis=0) for name in costs})
    return {name: np.max([each[name] for each in every], axis=0).tolist() for name in costs}


def planned(
    comm: Any,
    matrix: Unplanned,
    transfers: Sequence[str],
    rounds: int | None = None,
    plans: PlanCache | None = None,
) -> list[Adjacency]:
    """Return the adjacency of each layer, planned for its transfer: "direct", "get" or "halo". Collective.

    Layers with the same transfer share one. rounds: number of rounds of a halo (`Capabilities.halo_rounds`). plans:
    cache in which halos are looked for and kept.
    """

    def plan(transfer: str, direction: str) -> tuple[Plan, Tensor | None]:
        edges, weight = getattr(matrix, direction), getattr(matrix, f"{direction}_weight")
        if transfer != "halo":
            return workload.direct(edges, transfer), weight
        if plans is None or matrix.order is not None:
            return _halo(comm, edges, weight, rounds)
        return plans.halo(comm, edges, direction, rounds, lambda: _halo(comm, edges, weight, rounds))

    made = {}
    for transfer in dict.fromkeys(transfers):
        forward = plan(transfer, "forward")
        backward = forward if matrix.backward is matrix.forward else plan(transfer, "backward")
        made[transfer] = Adjacency(
            forward=forward[0],
            backward=backward[0],
            scale=matrix.scale,
            forward_weight=forward[1],
            backward_weight=backward[1],
            kind=matrix.kind,
            inverse_degree=matrix.inverse_degree,
            order=matrix.order,
        )
    return [made[transfer] for transfer in transfers]


def _halo(
    comm: Any, edges: SplitEdges, weight: Tensor | None, rounds: int | None
) -> tuple[Plan, Tensor | None]:
    """Return the plan of a halo in rounds, and the edge weights in its order. Collective."""
    plan, order = exchange.halo_in_rounds(comm, edges, rounds, ordered=weight is not None)
    if weight is None or order is None:
        return plan, None
    return plan, weight[index(order, weight)]


def with_edge_values(comm: Any, layers: Sequence[Adjacency], name: str, values: Tensor) -> list[Adjacency]:
    """Return layers' adjacencies with data [E, ...] of this rank's edges, in their order, by name. Collective.

    The adjacencies were planned with the order of their edges, which the results do not keep.
    """
    made: dict[int, Adjacency] = {}
    for each in layers:
        if id(each) not in made:
            held: dict[tuple[str, LoopFill], EdgeValues] = {
                (name, "mean"): ordered(comm, each, values, "mean")
            }
            forward = replace(each.forward, edge=None)
            backward = forward if each.backward is each.forward else replace(each.backward, edge=None)
            made[id(each)] = replace(each, forward=forward, backward=backward, order=None, values=held)
    return [made[id(each)] for each in layers]
