"""How remote rows reach the kernel: chosen from counts and measured costs, or as asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..plan import model, waves
from ..plan.layout import RowFormat
from ..plan.workload import Plan
from ..runtime import cores, exchange, mpi, probe
from ..runtime.backends.base import Backend
from .graph import Adjacency, signal_bytes, symmetric_bytes


def choose_transfer(
    comm: Any,
    asked: str,
    backend: Backend,
    gcn: Adjacency,
    counts: NDArray[np.int64],
    formats: Sequence[RowFormat],
) -> tuple[str, str]:
    """(transfer, why) for rows of these formats, one for each aggregation of an epoch's forward. Collective.

    "auto" measures what a row costs by each transfer, and compares what the slowest rank would spend. Raises
    InputError where ``direct`` is asked for and some peer's memory is out of reach.
    """
    if asked == "direct" and not backend.reaches_peers:
        with mpi.agree(comm):
            raise InputError(
                'plan.transfer is "direct", but ranks on other nodes are out of reach of pointers; '
                'use "halo", "get" or "auto"'
            )
    if asked != "auto":
        return asked, "asked for"
    plans = list({id(plan): plan for plan in (gcn.forward, gcn.backward)}.values())
    if comm.size == 1 or not any(comm.allgather(sum(plan.remote_edges for plan in plans))):
        return ("direct" if backend.reaches_peers else "halo"), "no row is remote"
    widest = max(formats, key=lambda format: format.row_bytes)
    halo = sum(max(comm.allgather(len(plan.halo))) for plan in plans)
    backend.reserve(
        max(
            symmetric_bytes(gcn, counts, widest, comm.size),
            2 * halo * widest.row_bytes + len(plans) * signal_bytes(waves.MOST_WAVES, comm.size),
        )
        + probe.symmetric_bytes(comm.size)
    )
    costs = probe.measure(comm, backend)
    sizes = [format.row_bytes for format in formats]
    uses = {id(plan): waves.uses(plan) for plan in plans}
    cache = cores.cache_bytes() // 4  # beside this rank's own rows, as many again, and indices and sums
    mine = [model.seconds(costs, uses[id(plan)], cache, sizes) for plan in (gcn.forward, gcn.backward)]
    every = comm.allgather({name: sum(each[name] for each in mine) for name in costs})
    estimates = {name: max(each[name] for each in every) for name in costs}
    chosen = model.choose(estimates)
    shown = ", ".join(f"{name} {estimates[name] * 1e3:.1f}" for name in model.TRANSFERS if name in estimates)
    return chosen, f"ms an epoch for remote rows: {shown}"


def routed(comm: Any, gcn: Adjacency, transfer: str) -> Adjacency:
    """The same matrix, its remote rows reached by ``transfer``: "direct", "get" or "halo". Collective."""
    forward, forward_weight = _routed(comm, gcn.forward, gcn.forward_weight, transfer)
    if gcn.backward is gcn.forward:
        return replace(
            gcn,
            forward=forward,
            backward=forward,
            forward_weight=forward_weight,
            backward_weight=forward_weight,
        )
    backward, backward_weight = _routed(comm, gcn.backward, gcn.backward_weight, transfer)
    return Adjacency(forward, backward, gcn.scale, forward_weight, backward_weight)


def _routed(
    comm: Any, plan: Plan, weight: NDArray[Any] | None, transfer: str
) -> tuple[Plan, NDArray[Any] | None]:
    if transfer != "halo":
        return replace(plan, transfer=transfer), weight
    made, order = exchange.halo_in_waves(comm, plan)
    return made, None if weight is None else weight[order]
