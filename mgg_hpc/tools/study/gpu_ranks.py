"""The study of primitives over the ranks of a launcher, each with a GPU: NVSHMEM's own gets (OSDI '23, figure 10c).

One process that plays two PEs has no NVSHMEM, and copies through pointers. Here remote rows come by NVSHMEM's gets of a
thread, a warp or a CUDA block, into symmetric memory; also where pointers lead to them, over which NVSHMEM copies then.
Beside them stand MGG's own gets, with pointers and without, and loads. ps and dist are the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np

from ...data.graph import Graph
from ...errors import InputError
from ...nn.graph.handle import buffer_bytes
from ...plan import ranges, workload
from ...plan.layout import RowFormat
from ...runtime import backends, exit_code, mpi
from ...runtime.backends.cuda import heap
from ...runtime.backends.cuda.kernels import DeviceBackend
from ...runtime.backends.cuda.rank import RankBackend
from ...runtime.turns import take_turns
from ..bench.harness import graphs, timing, watch
from ..bench.harness.gpu import drawn_rows
from ..bench.overlap.studies import SCOPES, Ablation, AblationBackend, Unreached, only_own
from . import names
from .table import Files, Table

STUDY = "primitives"
KNOBS: dict[str, Any] = {"ps": 2, "dist": 2}  # as the paper fixes them
AT_ONCE = 5  # calls of a turn, so that launching one is hidden behind the call before
SHOWN = ("variant", "width_values", "median_ms", "min_ms", "max_ms", "times_first", "crossing_bytes")

Call = Callable[[], None]
Draw = Callable[[Table, Path], None]


class Subject:
    """A graph divided over ranks with a GPU each, ready to be summed by each primitive. Collective."""

    def __init__(self, comm: Any, chosen: backends.Chosen, graph: Graph, width: int) -> None:
        self.comm, self.graph = comm, graph
        self.format = format = RowFormat(np.dtype(np.float32), width)
        bounds = ranges.edge_balanced(graph.indptr, comm.size)
        low, high = int(bounds[comm.rank]), int(bounds[comm.rank + 1])
        indptr = graph.indptr[low : high + 1] - graph.indptr[low]
        indices = graph.indices[graph.indptr[low] : graph.indptr[high]]
        self.plan = workload.direct(workload.split(comm.rank, bounds, indptr, indices), "get")
        counts = np.diff(bounds)
        self.backend = cast(RankBackend, backends.make(chosen, comm, widest=format, **KNOBS))
        rings = heap.beside(0, self.backend.limits, self.backend.geometry)
        self.backend.memory.reserve(buffer_bytes(counts, format, comm.size) + rings)
        self.rows = self.backend.rows(counts, format, symmetric=True)
        self.rows.local[:] = self.backend.arrays.uploaded(drawn_rows(graph, format)[low:high])
        self.out = self.backend.memory.padded(self.plan.destinations, format)

    def calls(self) -> Mapping[str, Call]:
        """Return an aggregation by each primitive; the first is MGG's. Collective."""
        reaches = self.backend.reaches_peers
        found = {names.POINTERS if reaches else names.BY_LANES: self._call(self.backend, self.plan)}
        for scope in SCOPES:
            found[names.SCOPES[scope]] = self._call(self._by_transport(Ablation(scope=scope)), self.plan)
        if reaches:
            found[names.BY_LANES] = self._call(self._by_transport(Ablation()), self.plan)
            found[names.LOADS] = self._call(self.backend, replace(self.plan, transfer="direct"))
        return found

    def _by_transport(self, ablation: Ablation) -> DeviceBackend:
        """Return a backend that reaches other ranks' rows by NVSHMEM's calls alone."""
        mine = self.backend
        assert mine.peers is not None  # since memory was reserved
        world = Unreached(mine.peers)
        made = AblationBackend(mine.rank, world, mine.options, mine.native, mine.arrays, ablation)
        made.share, made.alone = mine.share, mine.alone
        return made

    def _call(self, backend: DeviceBackend, plan: workload.Plan) -> Call:
        """Return an aggregation over a plan, whose memory is allocated. Collective."""
        rows = self.rows
        if backend is not self.backend:
            rows = replace(rows, addresses=only_own(rows.addresses, self.comm.rank))
        backend.prepare(plan, self.format)
        return partial(backend.aggregate, plan, "copy", "sum", rows, self.out)

    def ms(self, call: Call) -> float:
        """Return the slowest rank's ms of a call: the mean of a few, one after another. Collective."""
        stream = self.backend.stream
        self.backend.publish(self.rows)
        began = stream.stamp()
        for _ in range(AT_ONCE):
            call()
        seconds = stream.since(began)
        stream.finish()
        return 1e3 * max(self.comm.allgather(seconds())) / AT_ONCE

    def measure(self, turns: int) -> dict[str, list[float]]:
        """Return each primitive's ms in each turn. Raises AssertionError where sums differ in any bit. Collective."""
        calls, wanted = self.calls(), None
        for name, call in calls.items():
            self.out[:] = float("nan")
            self.ms(call)
            with mpi.agree(self.comm):
                wanted = self.out + 0 if wanted is None else wanted
                if count := int((self.out != wanted).sum()):
                    raise AssertionError(f"{name}: {count} sums differ from those of the first")
        return take_turns({name: partial(self.ms, call) for name, call in calls.items()}, turns)

    def conditions(self) -> dict[str, Any]:
        """Return the columns that all rows of a width have. Collective."""
        gpu, plan = self.backend.gpu, self.plan
        edges = self.comm.allgather((plan.local_edges, plan.remote_edges, len(plan.halo)))
        local, remote, halo = (sum(counts) for counts in zip(*edges, strict=True))
        return {
            "graph": self.graph.name,
            "nodes": self.graph.nodes,
            "edges": self.graph.edges,
            "device": gpu.module.limits()["name"],
            "backend": "cuda",
            "ranks": self.comm.size,
            "ranks_per_gpu": max(self.comm.allgather(gpu.assignment.ranks)),
            "width_values": self.format.dim,
            "ps_edges": KNOBS["ps"],
            "dist_edges": KNOBS["dist"],
            "wpb_partitions": self.backend.geometry.wpb,
            "local_edges": local,
            "remote_edges": remote,
            "halo_rows": halo,
            "crossing_bytes": remote * self.format.row_bytes,
        }


def run(graph: str, widths: list[int], files: Files, turns: int, draw: Draw) -> int:
    """Measure on all ranks, which must all call this; rank 0 prints and writes.

    Raises InputError, the same on all ranks, for fewer than two of them and where one has no GPU.
    """
    comm = mpi.world()
    with mpi.agree(comm):
        files.check()
        if comm.size < 2:
            raise InputError(f"mgg study {STUDY} --device cuda: one rank has no peers; start two or more")
        read = graphs.read(graph)
    chosen = backends.choose("cuda", comm, share_gpu=True)
    table = Table(STUDY, {})
    for width in widths:
        subject = Subject(comm, chosen, read, width)
        with watch.cell(read.name, f"width {width}"):
            ms = subject.measure(turns)
        table.same = subject.conditions()
        first = next(iter(ms.values()))
        for name, taken in ms.items():
            over = timing.ratios(taken, first)["median"]
            table.add(name, timing.spread(taken), len(taken), over)
        subject.backend.memory.close()
    if len(widths) > 1:
        del table.same["width_values"]
    if comm.rank == 0:
        table.finish(files, draw, SHOWN)
    exit_code.record(0)
    return 0
