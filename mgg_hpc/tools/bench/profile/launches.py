"""Launches that `mgg bench profile` measures: each kernel once to warm up, and once more between marks for a profiler.

Run under Nsight Compute as ``python -m mgg_hpc.tools.bench.profile.launches REQUEST``, a JSON object; what was
launched, and what it should cost, goes to the file that it names. A profiler takes kernels one at a time: so the
owner of remote rows has pushed them all before the halo's kernel begins, and what is seen is its work without any
waiting.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ....data.graph import Graph
from ....errors import WRONG_INPUT, InputError
from ....plan import launch as launching
from ....plan import workload
from ....plan.layout import RowFormat
from ....plan.workload import Plan
from ....runtime.backends.cuda.kernels import DeviceBackend
from ..aggregate import gpu_baselines
from ..harness import document, graphs
from ..harness.expected import beside_rows, bytes_of
from ..harness.gpu import Call, Device, edges_of, problem_of
from ..overlap.gpu_transfers import Subject

# The kernels of each way of reaching rows.
FUNCTIONS = {
    "local": "aggregate_direct",
    "direct": "aggregate_direct",
    "get": "aggregate_get",
    "halo": "aggregate_halo",
    "floor": "gather_floor",
}
SHARE = 0.3  # of rows that the second PE owns, where there is one
FLOOR = 1  # of the gather floors, the one of blocks of 256 threads


def cuda_marks() -> AbstractContextManager[Any]:
    """Return a context in which launches are profiled."""
    import torch

    profile: AbstractContextManager[Any] = torch.cuda.profiler.profile()
    return profile


def model_of(backend: DeviceBackend, plan: Plan, format: RowFormat, sources: Any) -> dict[str, Any]:
    """Return an aggregation's expected cost: its launch by MGG's equations, and bytes. sources: of its edges."""
    launch, row_bytes = backend.launch(plan, format), format.row_bytes
    tasks = int(backend.native_plan(plan).tasks)
    pieces = max(tasks, len(np.unique(plan.segments[["chunk", "destination"]])))
    read = tasks if plan.remote_edges or pieces != tasks else parts_of_hubs(backend, plan)
    beside = beside_rows(read, pieces, plan.destinations, row_bytes)
    threads = backend.limits.threads_per_multiprocessor
    return {
        "launch": asdict(launch),
        "occupancy": min(1.0, launch.resident * launch.threads / threads),
        "grid": [launch.blocks, launch.threads],
        "bytes": bytes_of(plan.edges, len(np.unique(sources)), row_bytes, beside),
    }


def parts_of_hubs(backend: DeviceBackend, plan: Plan) -> int:
    """Return the number of tasks that are parts of a hub."""
    knobs, segments = backend.options.geometry, plan.segments
    most = launching.part_edges(knobs.ps, knobs.dist)
    degree = np.bincount(segments["destination"], weights=segments["count"], minlength=plan.destinations)
    return int(np.ceil(degree[degree > most] / most).sum())


Launches = tuple[dict[str, Any], list[Call]]  # what the last one should cost


class Launcher:
    """The launches of each way of reaching rows of one width."""

    def __init__(self, device: Device, graph: Graph, width: int) -> None:
        self.graph = graph
        self.problem = problem_of(device, graph, "float32", width, None, edges_of(graph))
        self.subject = Subject(device, graph, SHARE, self.problem.format)

    def of(self, name: str) -> Launches:
        """Return the expected cost and the launches of a kernel. name: a key of FUNCTIONS."""
        return getattr(self, name)() if name in ("local", "floor") else self.way(name)

    def local(self) -> Launches:
        """Return the launch of a kernel over local rows, as in `mgg bench aggregate`."""
        problem = self.problem
        backend, rows, out = problem.backend, problem.sources[0], problem.outputs[0]
        plan = workload.direct(problem.edges)
        cost = model_of(backend, plan, problem.format, self.graph.indices)
        return cost, [partial(backend.aggregate, plan, "copy", "sum", rows, out)]

    def floor(self) -> Launches:
        """Return the launch of the gather floor, which has no outputs and reads no offsets."""
        problem, floor = self.problem, gpu_baselines.floors(self.problem)[FLOOR]
        used = len(np.unique(self.graph.indices))
        moved = bytes_of(self.graph.edges, used, problem.format.row_bytes, 0)

        def call() -> None:
            assert floor.kept  # what it reads by address
            floor.calls[0]()

        return {"launch": None, "occupancy": None, "grid": None, "bytes": moved}, [call]

    def way(self, name: str) -> Launches:
        """Return the launch of the first PE's kernel; before it the owner's, where that one pushes."""
        way = self.subject.way(name, near=True)

        def of(rank: int) -> Call:
            out = way.out[: way.plans[rank].destinations]
            return partial(way.backends[rank].aggregate, way.plans[rank], "copy", "sum", way.rows[rank], out)

        sources = self.graph.indices[: way.plans[0].edges]
        cost = model_of(way.backends[0], way.plans[0], self.subject.format, sources)
        return cost, [of(1), of(0)] if name == "halo" else [of(0)]


def launch_all(
    device: Device, graph: Graph, widths: Sequence[int], transfers: Sequence[str]
) -> dict[str, Any]:
    """Launch each kernel for rows of each width; return the device, the graph and the cases in order of launch."""
    found: dict[str, Any] = {"device": device.module.limits(), "copy_gb_per_s": device.copy_gb_per_s()}
    found |= document.about(graph) | {"share": SHARE, "cases": []}
    for width in widths:
        launcher = Launcher(device, graph, width)
        for name in transfers:
            cost, calls = launcher.of(name)
            for call in (*calls, *calls[:-1]):
                call()
            device.arrays.finish()
            with cuda_marks():
                calls[-1]()
                device.arrays.finish()
            found["cases"].append({"name": name, "function": FUNCTIONS[name], "width": width, **cost})
    return found


def main(request: str) -> int:
    """Launch the requested kernels. An error that the user can mend goes to the file too."""
    asked = json.loads(request)
    try:
        graph = graphs.read(asked["graph"])
        found = launch_all(Device.current(), graph, asked["widths"], asked["transfers"])
    except InputError as error:
        found = {"failed": str(error)}
    Path(asked["file"]).write_text(json.dumps(found))
    return WRONG_INPUT if "failed" in found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
