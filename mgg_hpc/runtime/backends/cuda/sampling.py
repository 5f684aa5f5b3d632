"""Neighbour sampling on a GPU, hop by hop (kernels: cuda/gpu/sampling)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....errors import InputError
from ....plan.cuda_grid import LANES
from ...sampler import Hop, Sampled, Sampler
from ..sampling import SamplingKernels
from .context import DeviceContext, DeviceMemory

# SampleStage and DeviceHop of cuda/gpu/sampling/arguments.h.
STAGES = ("count", "evenly", "by weight", "enter", "mark", "number")
_FIELDS = (
    "indptr near_first near_source source near_weight weight ids wide seed step stream fanout count nodes slot place "
    "kept key limit begin edges edge factor row first shift entry rank indices found"
)
HOP = np.dtype([(name, np.uint64) for name in _FIELDS.split()])
STREAM = 0xE000  # of the first hop's draws (semantics.h)
ALL_EDGES = 1 << 62  # a fanout that no row has
# A warp draws k edges of a row in some k^2 / 32 steps. With larger fanouts the host samples.
MOST_DRAWN = 1024
MOST = (1 << 31) - 1  # edges of a row, and rows of a batch


class DeviceSampling(SamplingKernels):
    """Samplers of one rank's GPU."""

    def __init__(self, context: DeviceContext, memory: DeviceMemory) -> None:
        self._context, self._memory = context, memory

    def bind(self, host: Sampler, near_bytes: int, hottest: NDArray[np.int64] | None = None) -> Sampler:
        return DeviceSampler(self._context, self._memory.free(), host, near_bytes, hottest)


class DeviceSampler(Sampler):
    """Draws in-edges of a graph on a GPU. Results are in the host's memory, where blocks are planned.

    Calls from several threads share one CUDA stream, which is not the stream that trains.
    """

    def __init__(
        self,
        context: DeviceContext,
        free: int,
        host: Sampler,
        near_bytes: int,
        hottest: NDArray[np.int64] | None,
    ) -> None:
        """Copy or lock a graph's edges, as in `SamplingKernels.bind`. free: bytes free on the GPU."""
        vars(self).update(vars(host))  # which draws what is too large for a GPU's kernels
        indptr, indices, weight, ids = self.indptr, self.indices, self.weight, self.ids
        degree = np.diff(indptr)
        if degree.max(initial=0) > MOST:
            raise InputError(
                f"row {degree.argmax()} has more than 2^31 - 1 in-edges, too many for a GPU's kernels"
            )
        lists = {"source": indices} | ({} if weight is None else {"weight": weight})
        rows = np.arange(len(degree)) if hottest is None else hottest
        ends = np.cumsum(degree[rows])
        fits = int(
            np.searchsorted(ends, near_bytes // sum(each.itemsize for each in lists.values()), "right")
        )
        near: dict[str, NDArray[Any]] = {"indptr": indptr} | ({} if ids is None else {"ids": ids})
        kept = int(ends[fits - 1]) if fits else 0
        if fits == len(degree):
            near, lists = near | lists, {}
        elif fits:
            rows, first = rows[:fits], np.full(len(degree), -1)
            first[rows] = ends[:fits] - degree[rows]
            places = np.repeat(indptr[rows] - first[rows], degree[rows]) + np.arange(ends[fits - 1])
            near |= {"near_first": first, **{f"near_{name}": each[places] for name, each in lists.items()}}
        needed = 2 * sum(each.nbytes for each in near.values())  # twice while they cross
        if needed > free:
            raise InputError(
                f"a graph to be sampled takes {needed / 2**30:.1f} GiB on the GPU, and {free / 2**30:.1f} GiB are "
                "free; leave more of its edges in the host's memory"
            )
        self._context, self._rows, self._graph = context, len(degree), np.zeros(1, HOP)
        self.device_bytes, self.place = (
            needed // 2,
            f"GPU, {kept / max(1, len(indices)):.1%} of the edges there",
        )
        context.arrays.copies()  # a thread that has not begun to use the GPU would make its stream on another
        self._held = {name: context.upload_bytes(each) for name, each in near.items()}
        self._held |= {name: context.locked_bytes(each) for name, each in lists.items()}
        self._graph["wide"] = indices.itemsize == 8
        for name, array in self._held.items():
            self._graph[name] = context.arrays.address(array)
        context.arrays.finish()

    def _sampled(self, seeds: NDArray[np.int64], fanouts: list[int], *how: int) -> Sampled:
        if max(fanouts, default=0) > MOST_DRAWN:
            return super()._sampled(seeds, fanouts, *how)
        for refused in ((seeds, []), (seeds[:0], fanouts)):
            super()._sampled(*refused, *how)  # raises what the host's does
        seed, step, edges = how
        with self._context.arrays.aside():
            nodes, count, hops = self._context.upload_bytes(seeds), len(seeds), list[Hop]()
            for number, fanout in enumerate(fanouts):
                call = self._graph.copy()
                call["seed"], call["step"], call["stream"] = seed, step + 1, STREAM + number
                call["fanout"] = fanout if fanout >= 0 else ALL_EDGES
                hop, nodes, count = self._hop(call, nodes, count, edges=bool(edges))
                hops.append(hop)
            return Sampled(self._context.arrays.downloaded(nodes)[: 8 * count].view(np.int64), hops)

    def _hop(self, call: NDArray[Any], nodes: Any, count: int, *, edges: bool) -> tuple[Hop, Any, int]:
        """Draw the edges of one hop; return them, all rows of the batch so far, and the number of these rows.

        call: a HOP with the addresses of the graph's arrays, the seed and the fanout. nodes: int64 [count], the
        batch's rows before this hop.
        """
        context, arrays, made = self._context, self._context.arrays, dict[str, Any]()

        def room(nbytes: int, *names: str, counts: bool = False) -> None:
            for name in names:  # kernels write all that is read but the first count
                made[name] = arrays.zeros(nbytes) if counts else arrays.empty(nbytes)
                call[name] = arrays.address(made[name])

        def launch(stage: str, workers: int, lanes: int = 1) -> None:
            if workers:
                shape = context.spread(lanes, workers)
                context.native.sample_hop(STAGES.index(stage), call.view(np.uint8), shape)

        def total(name: str) -> int:
            """Replace counts by their running sums, and return the last one."""
            made[name] = arrays.running_sums(made[name])
            call[name] = arrays.address(made[name])
            return int(arrays.downloaded(made[name][-1:])[0])

        call["count"], call["nodes"], weighted = count, arrays.address(nodes), bool(call["weight"][0])
        room(8 * count + 8, "slot", "begin", counts=True)
        launch("count", count)
        drawn = total("slot")
        room(4 * drawn, "place")
        if weighted:
            room(8 * count, "limit")
            room(8 * (drawn + count), "key")
            room(4 * (drawn + count), "kept")
            launch("by weight", count, LANES)
            drawn = total("begin")
        else:
            launch("evenly", count, LANES)
            made["begin"], call["begin"] = made["slot"], call["slot"]
        # 2^bits slots: the table is at most half full.
        bits = max(1, (2 * min(count + drawn, self._rows)).bit_length())
        call["edges"], call["shift"] = drawn, 64 - bits
        room(8 << bits, "row", "first")
        made["row"][:] = made["first"][:] = 0xFF
        room(8 * drawn, "entry", *(["edge"] if edges else []))
        room(8 * (drawn if weighted else count), "factor")
        launch("enter", count, LANES)
        room(8 * drawn + 8, "rank", counts=True)
        launch("mark", drawn)
        rows = count + total("rank")
        if rows > MOST:
            raise ValueError("a batch needs more than 2^31 - 1 rows; make it smaller, or its fanouts")
        room(4 * drawn, "indices")
        room(8 * rows, "found")
        made["found"][: 8 * count] = nodes[: 8 * count]
        launch("number", drawn)
        self.scratch_bytes = max(
            self.scratch_bytes, sum(each.nbytes for each in made.values()) + nodes.nbytes
        )
        indptr, indices, factor = (arrays.downloaded(made[name]) for name in ("begin", "indices", "factor"))
        edge = arrays.downloaded(made["edge"]).view(np.int64) if edges else None
        return Hop(indptr, indices.view(np.int32), factor.view(np.float64), edge), made["found"], rows
