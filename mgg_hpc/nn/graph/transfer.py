"""The choice of transfers, from counts and measured costs or by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...plan import cost_model, halo
from ...plan.layout import RowFormat
from ...plan.workload import Plan
from ...runtime import exchange, mpi, probe
from ...runtime.backends.base import Backend
from .handle import Adjacency, signal_bytes, symmetric_bytes


@dataclass(frozen=True)
class Choice:
    """transfers: one for each layer. why: in words."""

    transfers: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        """The one of all layers, or one after another."""
        return ", ".join(dict.fromkeys(self.transfers) if len(set(self.transfers)) == 1 else self.transfers)


def choose_transfer(
    comm: Any,
    asked: str | Sequence[str],
    backend: Backend,
    gcn: Adjacency,
    counts: NDArray[np.int64],
    formats: Sequence[RowFormat],
    backward: Sequence[RowFormat | None],
    *,
    by_edge: bool = False,
) -> Choice:
    """Choose the transfer of each layer's rows. Collective.

    formats: of each layer's rows in an epoch's forward. backward: the same of its backward, None where that exchanges
    nothing. asked: of all layers, or of each; "auto" measures what a row costs by each transfer, and compares what the
    slowest rank would spend. by_edge: whether layers take EdgeKernels. Raises InputError where a transfer is asked for
    that the backend has not where some peer's memory is out of reach, or where there are more or fewer than layers.
    """
    if asked != "auto":
        each = (asked,) * len(formats) if isinstance(asked, str) else tuple(asked)
        with mpi.agree(comm):
            if len(each) != len(formats):
                raise InputError(
                    f"plan.transfer names {len(each)} transfers, and the model has {len(formats)} layers"
                )
            if "direct" in each and not backend.reaches_peers:
                raise InputError(
                    'plan.transfer is "direct", but ranks on other nodes are out of reach of pointers; '
                    'use "halo", "get" or "auto"'
                )
            if "get" in each and by_edge and not (backend.edge_gets or backend.reaches_peers):
                raise InputError(
                    'plan.transfer is "get", but ranks on other nodes are out of reach of pointers, and attention and '
                    'maxima on GPUs have their rows by "halo" then; use that, or "auto"'
                )
        return Choice(each, "asked for")
    plans = list({id(plan): plan for plan in (gcn.forward, gcn.backward)}.values())
    if comm.size == 1 or not any(comm.allgather(sum(plan.remote_edges for plan in plans))):
        needs_least = "direct" if backend.reaches_peers else "halo"
        return Choice((needs_least,) * len(formats), "no row is remote")
    widest = max([*formats, *filter(None, backward)], key=lambda format: format.row_bytes)
    halo_rows = sum(max(comm.allgather(len(plan.halo))) for plan in plans)
    backend.reserve(
        symmetric_bytes([gcn], counts, widest, comm.size)
        + 2 * halo_rows * widest.row_bytes
        + len(plans) * signal_bytes(halo.MOST_ROUNDS, comm.size)
        + probe.symmetric_bytes(backend.probe_rows, comm.size),
        int(counts.argmax()),
    )
    costs = probe.measure(comm, backend)
    if by_edge and not (backend.edge_gets or backend.reaches_peers):
        costs = {name: cost for name, cost in costs.items() if name != "get"}
    uses = {id(plan): halo.uses(plan) for plan in plans}
    directions = (
        (gcn.forward, [format.row_bytes for format in formats]),
        (gcn.backward, [0 if format is None else format.row_bytes for format in backward]),
    )
    mine = [cost_model.seconds(costs, uses[id(plan)], backend.cache_bytes, of) for plan, of in directions]
    every = comm.allgather({name: np.sum([each[name] for each in mine], axis=0) for name in costs})
    estimates = {name: np.max([each[name] for each in every], axis=0).tolist() for name in costs}
    chosen = tuple(cost_model.choose_each(estimates))
    shown = ", ".join(
        f"{name} {' + '.join(f'{seconds * 1e3:.1f}' for seconds in estimates[name])}"
        for name in cost_model.TRANSFERS
        if name in estimates
    )
    return Choice(chosen, f"remote rows, ms an epoch by layer: {shown}")


def routed(comm: Any, gcn: Adjacency, transfers: Sequence[str], rounds: int | None = None) -> list[Adjacency]:
    """Return the adjacency of each layer, with its remote rows reached by "direct", "get" or "halo". Collective.

    Layers of one transfer share plans. rounds: of a halo (`Backend.halo_rounds`).
    """
    made = {transfer: _routed(comm, gcn, transfer, rounds) for transfer in dict.fromkeys(transfers)}
    return [made[transfer] for transfer in transfers]


def _routed(comm: Any, gcn: Adjacency, transfer: str, rounds: int | None) -> Adjacency:
    forward, forward_weight = _plan(comm, gcn.forward, gcn.forward_weight, transfer, rounds)
    if gcn.backward is gcn.forward:
        return replace(
            gcn,
            forward=forward,
            backward=forward,
            forward_weight=forward_weight,
            backward_weight=forward_weight,
        )
    backward, backward_weight = _plan(comm, gcn.backward, gcn.backward_weight, transfer, rounds)
    return replace(
        gcn,
        forward=forward,
        backward=backward,
        forward_weight=forward_weight,
        backward_weight=backward_weight,
    )


def _plan(
    comm: Any, plan: Plan, weight: Tensor | None, transfer: str, rounds: int | None
) -> tuple[Plan, Tensor | None]:
    if transfer != "halo":
        return replace(plan, transfer=transfer), weight
    made, order = exchange.halo_in_rounds(comm, plan, rounds)
    return made, None if weight is None else weight[torch.from_numpy(order).to(weight.device)]
