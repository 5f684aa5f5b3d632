"""`mgg bench huge --device cuda`: a layer over a table of features as large as ogbn-papers100M's, on one GPU.

111 million rows of 128 float32 values times a matrix [128, 16], and sums of the result over 1.6 billion edges, all of
it drawn on the device (random_graph.py). The plan names the indices where they lie (``Plan.of_csr``); the host sees
their offsets, from which it makes tasks. Sums are compared with float64 on a sample of rows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ....errors import InputError
from ....plan import launch
from ....plan.layout import RowFormat
from ....runtime import cores
from ....runtime.backends.cuda.launches import DEFAULT_GEOMETRY
from ....runtime.turns import take_turns
from ..harness import document, timing, watch
from ..harness.document import Sheet, cell
from ..harness.gpu import Call, Device, gather_floor, release
from ..harness.options import BenchOptions
from . import random_graph
from .random_graph import DrawnGraph

PLAN_ROW_BYTES = 24 + 24 + 4  # a task, a segment and a degree
MULTIPLIED = 1 << 22  # rows at once
SAMPLE = 1024  # rows whose sums are compared
WHOLE = {"rows": 111_059_956, "edges": 1_615_685_872}  # of ogbn-papers100M
SHARE_OF_FREE = 0.9  # of free memory that is taken at most: allocators and libraries take some, too
FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Size:
    """The size of the problem. features, width: values of a row before and after the transform."""

    rows: int
    edges: int
    features: int
    width: int
    distribution: str
    seed: int

    @property
    def format(self) -> RowFormat:
        """Format of the rows that are summed."""
        return RowFormat(FLOAT, self.width)

    @property
    def table_bytes(self) -> int:
        """Bytes of the table of features."""
        return self.rows * self.features * FLOAT.itemsize

    @property
    def needed(self) -> dict[str, int]:
        """Bytes on the device, by purpose. The plan's are those of a graph without hubs; their parts add a little."""
        return {
            "features": self.table_bytes,
            "rows": 2 * self.rows * self.format.row_bytes,
            "indices": 4 * self.edges,
            "plan": PLAN_ROW_BYTES * self.rows,
            "drawing": 8 * (self.rows + 1) + random_graph.block_bytes(max(self.rows, self.edges)),
        }

    @property
    def host_needed(self) -> int:
        """Bytes on the host: offsets, and the plan while it is made."""
        return (8 + 2 * PLAN_ROW_BYTES) * self.rows

    @property
    def transform_bytes(self) -> int:
        """Bytes of the transform: each row read and written."""
        return self.table_bytes + self.rows * self.width * FLOAT.itemsize

    @property
    def sum_bytes(self) -> int:
        """Bytes of the sums: each edge's row and index, each output and offset, as `mgg bench aggregate` counts."""
        row = self.width * FLOAT.itemsize
        return self.edges * (row + 4) + self.rows * (row + 8)


def fitting(free: int, host_free: int, **asked: Any) -> Size:
    """Return a size of papers100M's shape, or of as large a part of it as memory is free for.

    asked: fields of a Size; rows and edges that are None are chosen, and so many edges a row kept.
    """
    chosen = [name for name in WHOLE if asked[name] is None]
    for share in range(100, 0, -1):
        size = Size(**(asked | {name: WHOLE[name] * share // 100 for name in chosen}))
        fits = (
            sum(size.needed.values()) <= SHARE_OF_FREE * free
            and size.host_needed <= SHARE_OF_FREE * host_free
        )
        if fits or not chosen:
            return size
    return size


def check_memory(size: Size, free: int, host_free: int) -> None:
    """Raise InputError where either memory is too small, before anything is allocated."""
    for needed, there, where in (
        (sum(size.needed.values()), free, "the GPU"),
        (size.host_needed, host_free, "the host"),
    ):
        if needed > there:
            raise InputError(
                f"{size.rows:,} rows of {size.features} features and {size.edges:,} edges take {needed:,} bytes of "
                f"{where}'s memory, where {there:,} are free; give fewer --rows, --edges or --features"
            )


@dataclass(frozen=True)
class Step:
    """A part of the layer that is timed, and the bytes that it must move."""

    name: str
    calls: Sequence[Call]
    moved: int


class Layer:
    """A table of features, its transform, and its sums over a drawn graph, all on the device.

    x: float32 [N, F]; weight: [F, D]; rows: Rows of D values; out: padded rows [N, D].
    """

    def __init__(self, device: Device, size: Size) -> None:
        self.device, self.size = device, size
        self.seconds: dict[str, float] = {}
        self.graph: DrawnGraph = self._timed(
            "graph", lambda: random_graph.draw(device, size.rows, size.edges, size.distribution, size.seed)
        )
        self.plan: Any = self._timed("plan", self._plan)
        self.x, self.weight = self._timed("features", self._features)
        self.backend = device.backend()
        self.rows = self.backend.rows(np.array([size.rows]), size.format, symmetric=False)
        self.out = self.backend.memory.padded(size.rows, size.format)

    def _timed(self, name: str, made: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        with watch.cell(name):
            result = made()
            self.device.arrays.finish()
        self.seconds[name] = time.perf_counter() - began
        return result

    def _plan(self) -> Any:
        knobs = DEFAULT_GEOMETRY
        at, part_edges = self.graph.indices.data_ptr(), launch.part_edges(knobs.ps, knobs.dist)
        return self.device.module.Plan.of_csr(self.graph.indptr, at, self.size.rows, part_edges)

    def _features(self) -> tuple[Any, Any]:
        """Draw normally distributed values. What torch draws depends on the device."""
        import torch

        size, device = self.size, self.device
        x = (
            device.tensor(device.arrays.zeros(size.table_bytes))
            .view(torch.float32)
            .reshape(-1, size.features)
        )
        generator = torch.Generator(x.device).manual_seed(size.seed)
        for low, high in random_graph.blocks(size.rows, MULTIPLIED):
            x[low:high].normal_(generator=generator)
        weight = torch.empty(size.features, size.width, device=x.device).normal_(generator=generator)
        return x, weight / size.features**0.5

    def transform(self) -> None:
        """Compute rows = x weight."""
        import torch

        into = self.device.tensor(self.rows.local)
        for low, high in random_graph.blocks(self.size.rows, MULTIPLIED):
            torch.mm(self.x[low:high], self.weight, out=into[low:high])

    def steps(self) -> list[Step]:
        """Return the transform, the sums, both, and the gather floor: the same rows read in the same order."""
        size, module, memory = self.size, self.device.module, self.device.arrays
        knobs, limits = self.backend.options.geometry, self.backend.limits
        pieces = self.graph.pieces(knobs.ps)
        made = launch.direct(
            pieces, 0, size.format, ps=knobs.ps, dist=knobs.dist, wpb=knobs.wpb, limits=limits
        )
        rows = module.Rows(self.rows.addresses, size.width)
        total = module.Sum("sum", 0, memory.address(self.out), 0, 0, False)
        sums = partial(self.plan.aggregate_float32, rows, total, self.backend.launch_shape(made))
        indices, first = self.graph.indices.data_ptr(), int(self.rows.addresses[0])
        floor = gather_floor(self.device, indices, size.edges, first, size.format)
        return [
            Step("transform", [self.transform], size.transform_bytes),
            Step("sums", [sums], size.sum_bytes),
            Step("both", [self.transform, sums], size.transform_bytes + size.sum_bytes),
            Step("gather floor", [floor], size.edges * (size.width * FLOAT.itemsize + 4)),
        ]

    def check(self) -> dict[str, int]:
        """Compare transforms and sums with float64 on a sample of rows, the one with most edges among them.

        Raises AssertionError for one that is further off than rounding allows.
        """
        import torch

        rng, size = np.random.default_rng(self.size.seed), self.size
        degree = np.diff(self.graph.indptr)
        picked = np.unique([int(degree.argmax()), *rng.integers(size.rows, size=SAMPLE).tolist()])
        rows, out = self.device.tensor(self.rows.local), self.device.tensor(self.out)
        eps = torch.finfo(torch.float32).eps
        for row in picked.tolist():
            low, high = self.graph.indptr[row : row + 2].tolist()
            x, terms = self.x[row].double(), rows[self.graph.indices[low:high].long()].double()
            weight = self.weight.double()
            rounding = eps * size.features**0.5 * (x.abs() @ weight.abs())
            near(f"row {row}, transformed", rows[row], x @ weight, rounding)
            near(f"sum of row {row}", out[row], terms.sum(0), eps * (high - low) ** 0.5 * terms.abs().sum(0))
        return {"rows": len(picked), "most_edges": int(degree.max())}


def near(what: str, found: Any, right: Any, limit: Any) -> None:
    """Raise AssertionError where a value is further from the right one than the limit."""
    wrong = len(right) - int(((found.double() - right).abs() <= limit).sum())
    if wrong:
        raise AssertionError(f"{what}: {wrong} of {len(right)} values differ from float64")


def run_huge(*, turns: int, json: Path | None, table: Path | None, **asked: Any) -> int:
    """Measure, print and write. Raises InputError where there is no GPU, no GPU kernels, or too little memory."""
    options = BenchOptions(turns=turns, json=json, table=table)
    options.check()
    device = Device.current()
    free, host_free = device.free_bytes(), cores.memory_available()
    size = fitting(free, host_free, **asked)
    check_memory(size, free, host_free)
    found = document.begin("huge", options, device)
    release()  # the plan's memory is not torch's
    layer = Layer(device, size)
    steps = {step.name: step for step in layer.steps()}
    for step in steps.values():
        with watch.cell(step.name):
            device.clock.ms(step.calls)
    with watch.cell("check"):
        checked = layer.check()
    found |= asdict(size) | {"seconds": layer.seconds, "checked": checked}
    found["bytes"] = size.needed | {"free": free, "taken": free - device.free_bytes()}
    made = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in layer.seconds.items())
    found["notes"] += [
        f"{size.rows:,} rows of {size.features} float32 values, {size.edges:,} edges, {size.distribution}, "
        f"{found['checked']['most_edges']:,} of them for one row; seed {size.seed}",
        f"made before, with allocation: {made}; {found['checked']['rows']:,} rows are those of float64 to rounding",
    ]
    timed = {name: partial(step_ms, device, step) for name, step in steps.items()}
    ms: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(turns):
        for name, taken in take_turns(timed, 1).items():
            ms[name] += taken
        found["cases"] = [case_of(step, ms[name], found["copy_gb_per_s"]) for name, step in steps.items()]
        document.write(found, sheets(found), options)  # what is measured stays, whatever ends the rest
    document.finish(found, sheets(found), options)
    return 0


def step_ms(device: Device, step: Step) -> float:
    """Return the ms of all calls of a step."""
    with watch.cell(step.name):
        return device.clock.ms(step.calls) * len(step.calls)


def case_of(step: Step, ms: Sequence[float], copy: float) -> dict[str, Any]:
    """Return a step's times, and its rate as measured and beside that of copying."""
    spread = timing.spread(ms)
    rate = step.moved / spread["median"] / 1e6
    return {
        "name": step.name,
        "ms": spread,
        "bytes": step.moved,
        "gb_per_s": rate,
        "of_copy": rate / copy,
        "copy_ms": step.moved / copy / 1e6,
    }


def sheets(found: dict[str, Any]) -> list[Sheet]:
    """Return the tables of times and memory."""
    times = [
        [
            case["name"],
            cell(case["ms"], 3),
            f"{case['bytes'] / 1e9:,.1f}",
            f"{case['copy_ms']:.3f}",
            f"{case['gb_per_s']:,.0f}",
            f"{case['of_copy']:.2f}",
        ]
        for case in found["cases"]
    ]
    copy = found["copy_gb_per_s"]
    columns = ["", "ms, median (min .. max)", "moved, GB", f"ms at {copy:,.0f} GB/s", "GB/s", "of copying"]
    memory = [[name, f"{size / 1e9:,.2f}"] for name, size in found["bytes"].items()]
    return [
        Sheet(f"a layer, {found['features']} to {found['width']} values a row", columns, times),
        Sheet("memory of the device", ["for", "GB"], memory),
    ]
