"""Share of each layer's transfer that is hidden by its sums, measured after training over the run's own plans."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from ...nn.graph.handle import GraphHandle
from ...nn.workspace import as_array
from ...plan import overlap
from ...runtime import mpi
from ...runtime.timing import interleaved
from ...runtime.watchdog import Watchdog
from ..job import Exchange, Job

TURNS = 7  # the fastest counts, as other work on a machine only adds time


def measure(job: Job, graph: GraphHandle, dog: Watchdog) -> list[dict[str, Any]]:
    """Return an entry of the profile's summary.json for each exchange of a training step. Collective.

    It has the times in ms of the whole aggregation, of its sums alone and of its transfer alone, and the share
    of the transfer that is hidden; or the reason why the share is unknown. A time is the slowest rank's, in the
    fastest of TURNS repetitions.
    """
    known: dict[tuple[int, int], dict[str, Any]] = {}
    found = []
    for each in job.exchanges():
        dog.step(f"measuring what layer {each.layer} hides {each.direction}")
        width = each.format.dim
        key = (id(each.plan), width)  # both directions of a symmetric graph are the same
        if key not in known:
            known[key] = _measured(job, graph, each)
        about = {"layer": each.layer, "direction": each.direction, "width": width}
        found.append(about | {"transfer": each.plan.transfer} | known[key])
    return found


def _measured(job: Job, graph: GraphHandle, each: Exchange) -> dict[str, Any]:
    backend, plan, comm = job.backend, each.plan, job.comm
    if not any(comm.allgather(plan.remote_edges)):
        return {"unknown": "no row is remote"}
    if not all(comm.allgather(_has_room(job, each))):
        return {"unknown": "no room on a GPU for the parts"}
    rows, _ = graph.exchange(each.format.dim)
    out = backend.memory.padded(plan.destinations, rows.format)
    edge = as_array(each.weight)
    alone = backend.profiling.phases(plan, rows, out, edge=edge)

    def both() -> None:
        backend.aggregate(plan, "sum", rows, out, edge=edge)

    def timed(action: Callable[[], None]) -> float:
        mpi.barrier(comm)
        began = backend.stream.stamp()
        action()
        ended = backend.stream.since(began)
        backend.stream.finish()
        return ended()

    actions = {"transfer": alone.transfer_only, "both": both, "sums": alone.compute_only}
    taken = interleaved({name: partial(timed, action) for name, action in actions.items()}, 1 + TURNS)
    ranks = comm.allgather({name: seconds[1:] for name, seconds in taken.items()})  # the first turn allocates
    transfer, together, sums = (
        1e3 * min(max(turn) for turn in zip(*(rank[name] for rank in ranks), strict=True)) for name in actions
    )
    share = overlap.hidden_share(sums, transfer, together)
    times = {"both_ms": together, "sums_ms": sums, "transfer_ms": transfer}
    return times | ({"unknown": "a part takes no time"} if math.isnan(share) else {"hidden_share": share})


def _has_room(job: Job, each: Exchange) -> bool:
    """Return whether this rank's GPU has room for the arrays that time the sums and the transfer separately."""
    free = job.backend.memory.free()
    rows = each.plan.destinations + overlap.held_here(each.plan)[1]
    return free is None or 2 * each.plan.nbytes + 2 * rows * each.format.row_bytes < free
