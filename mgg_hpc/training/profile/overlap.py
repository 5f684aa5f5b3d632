"""How much of each layer's transfer its sums hid: measured after training, over the run's own plans."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import Tensor

from ...nn.graph.handle import GraphHandle
from ...nn.workspace import as_array, row_format
from ...plan import overlap
from ...plan.workload import Plan
from ...runtime import mpi
from ...runtime.timing import interleaved
from ..job import Job

TURNS = 7  # of which the fastest counts: what else a machine does only adds


@dataclass(frozen=True)
class LayerExchange:
    """A layer's aggregation in one direction, of rows of this width."""

    layer: int
    direction: str
    plan: Plan
    weight: Tensor | None
    width: int


def exchanges(job: Job) -> Iterator[LayerExchange]:
    """Yield the exchanges of a training step; of a graph that is streamed there are none."""
    if job.streamed is not None:
        return
    widths, back = job.model.exchanged(job.sparse), job.model.exchanged_back(job.sparse)
    for i, (adjacency, width) in enumerate(zip(job.layers, widths, strict=True)):
        yield LayerExchange(i + 1, "forward", adjacency.forward, adjacency.forward_weight, width)
        if back[i]:
            yield LayerExchange(i + 1, "backward", adjacency.backward, adjacency.backward_weight, back[i])


def measure(job: Job, graph: GraphHandle, step: Callable[[str], None]) -> list[dict[str, Any]]:
    """Return for each exchange, as in summary.json, ms of the slowest rank in the fastest turn: both, sums alone, the
    transfer alone, and the share that is hidden; or why none is known. Collective.

    step: called with what is measured.
    """
    known: dict[tuple[int, int], dict[str, Any]] = {}
    found = []
    for each in exchanges(job):
        step(f"measuring what layer {each.layer} hides {each.direction}")
        key = (id(each.plan), each.width)  # of a symmetric graph both directions are the same
        if key not in known:
            known[key] = _measured(job, graph, each)
        about = {"layer": each.layer, "direction": each.direction, "width": each.width}
        found.append(about | {"transfer": each.plan.transfer} | known[key])
    return found


def _measured(job: Job, graph: GraphHandle, each: LayerExchange) -> dict[str, Any]:
    backend, plan, comm = job.backend, each.plan, job.comm
    if not any(comm.allgather(plan.remote_edges)):
        return {"unknown": "no row is remote"}
    if not all(comm.allgather(_has_room(job, each))):
        return {"unknown": "no room on a GPU for the parts"}
    rows, _ = graph.exchange(each.width)
    out = backend.memory.padded(plan.destinations, rows.format)
    op, edge = "copy" if each.weight is None else "mul", as_array(each.weight)
    alone = backend.profiling.phases(plan, op, rows, out, edge=edge)

    def both() -> None:
        backend.aggregate(plan, op, "sum", rows, out, edge=edge)

    def timed(action: Callable[[], None]) -> float:
        mpi.barrier(comm)
        began = backend.stream.stamp()
        action()
        ended = backend.stream.since(began)
        backend.stream.finish()
        return ended()

    actions = {"transfer": alone.transfer_only, "both": both, "sums": alone.compute_only}
    taken = interleaved({name: partial(timed, action) for name, action in actions.items()}, 1 + TURNS)
    # The first turn allocates. Of the others the fastest counts, as its slowest rank took.
    ranks = comm.allgather({name: seconds[1:] for name, seconds in taken.items()})
    transfer, together, sums = (
        1e3 * min(max(turn) for turn in zip(*(rank[name] for rank in ranks), strict=True)) for name in actions
    )
    share = overlap.hidden_share(sums, transfer, together)
    times = {"both_ms": together, "sums_ms": sums, "transfer_ms": transfer}
    return times | ({"unknown": "a part takes no time"} if math.isnan(share) else {"hidden_share": share})


def _has_room(job: Job, each: LayerExchange) -> bool:
    """Return whether this rank's GPU has room for the parts."""
    free = job.backend.memory.free()
    rows = each.plan.destinations + overlap.held_here(each.plan)[1]
    return (
        free is None or 2 * each.plan.nbytes + 2 * rows * row_format(each.width, job.dtype).row_bytes < free
    )
