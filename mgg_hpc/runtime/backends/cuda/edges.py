"""Kernels over edges on GPUs (interface: ../edges.py; kernels: cuda/gpu/edges).

Remote rows are read through pointers. With the transfer "halo" all of them arrive first, in a call that sums nothing,
and stay in their staging until the kernel has read them: transfer and computation do not overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from ....errors import InputError
from ....plan import cuda_grid, halo_messages
from ....plan.workload import Plan
from ..arguments import ChunkRows, RngKey, Rows
from ..edges import Attention, EdgeKernels, TailedRows, TapeArrays
from ..tape import Tape
from .arrays import edge_values, flat, name_of, rows_of
from .launches import DeviceLaunches
from .rows import native_key
from .tape_kernels import THREADS
from .tape_source import Source, tape_source

# Arrays of attention: float32 [n, heads], and float32 [E, heads]. Others have a row of all heads' columns.
OF_HEADS = ("score", "log_sum", "dot", "score_gradient", "above_weight")
OF_EDGES = ("edge_score", "edge_score_gradient")
NO_DROPOUT = RngKey(0.0, seed=0, epoch=0, stream=0)

_SOURCES: WeakKeyDictionary[Tape, dict[str, Source]] = WeakKeyDictionary()  # by name of the rows' dtype


class DeviceEdges(EdgeKernels):
    """Kernels over edges of one rank's GPU."""

    gets = False

    def __init__(self, launches: DeviceLaunches) -> None:
        self._launches, self.arrays = launches, launches.arrays

    def ready_edges(self, plan: Plan, src: Rows, layout: TailedRows, heads: int, channels: int) -> None:
        """Allocate all memory that calls over rows of this layout take; see `DeviceLaunches.ready`."""
        self._ready(plan, src, "ready_edges", layout, heads, channels)

    def ready_propagate(self, plan: Plan, src: Rows, tape: Tape) -> None:
        """Compile a tape, and allocate all memory that `propagate` takes; see `DeviceLaunches.ready`."""
        source = self._source(tape, name_of(src.format))
        layout = TailedRows(src.format.dtype, tape.far_columns)
        self._ready(
            plan, src, "ready_tape", layout, 1, tape.columns, source.lanes, source.columns, source.state
        )

    def _ready(
        self, plan: Plan, src: Rows, name: str, layout: TailedRows, heads: int, channels: int, *sizes: int
    ) -> None:
        if halo_messages.crosses(plan):
            self._launches.ready(self._launches.transfer_plan(plan), src)
        self._native(plan, name, src)(self._edge_rows(plan, src, layout, heads, channels), *sizes)

    def attend(
        self, plan: Plan, how: Attention, src: Rows, out: Any, *, bias: Any = None, **given: Any
    ) -> None:
        bias_at = flat(self.arrays, "bias", bias, how.columns)
        self._attend(plan, "attend", how, src, how.forward_rows, bias=bias_at, arrays={"out": out, **given})

    def attend_back(
        self, plan: Plan, how: Attention, src: Rows, out: Any, *, at_source: bool, **given: Any
    ) -> None:
        layout = how.backward_rows if at_source else how.forward_rows
        self._attend(plan, "attend_back", how, src, layout, arrays={"out": out, **given})

    def _attend(
        self,
        plan: Plan,
        name: str,
        how: Attention,
        src: Rows,
        layout: Callable[[np.dtype[Any]], TailedRows],
        *,
        arrays: dict[str, Any],
        **call: Any,
    ) -> None:
        """Run a kernel of attention. arrays: by name of the native call, which says how large they are; or None."""
        for array_name, array in arrays.items():
            if array is None:
                continue
            if array_name in OF_EDGES:
                call[array_name], heads = edge_values(self.arrays, array_name, array, plan.edges)
                if heads != how.heads or not how.additive:
                    raise ValueError(
                        f"{array_name}: of {heads} heads; expected {how.heads}, and additive attention"
                    )
                continue
            columns = how.heads if array_name in OF_HEADS else how.columns
            dtype = "float32" if array_name in (*OF_HEADS, "above") else name_of(src.format)
            call[array_name] = self._rows(plan, array_name, array, dtype, columns)
        ids = flat(self.arrays, "ids", how.ids, plan.destinations, "int64") if how.key is not None else 0
        key = native_key(self.arrays, self._launches.native, how.key or NO_DROPOUT)
        call |= {"slope": how.negative_slope, "scale": how.scale, "ids": ids, "key": key}
        self._run(plan, name, src, layout(src.format.dtype), how.heads, how.channels, **call)

    def max_ties(self, plan: Plan, src: Rows, out: Any, ties: Any) -> None:
        columns, layout = src.format.dim, TailedRows(src.format.dtype, src.format.dim)
        call = {
            "out": self._rows(plan, "out", out, name_of(src.format), columns),
            "ties": self._rows(plan, "ties", ties, "float32", columns),
        }
        self._run(plan, "max_ties", src, layout, 1, columns, **call)

    def max_back(self, plan: Plan, src: Rows, x: Any, out: Any) -> None:
        columns, layout = src.format.dim // 2, TailedRows(src.format.dtype, src.format.dim)
        call = {
            name: self._rows(plan, name, array, name_of(src.format), columns)
            for name, array in (("x", x), ("out", out))
        }
        self._run(plan, "max_back", src, layout, 1, columns, **call)

    def weighted(self, plan: Plan, src: Rows, weight: Any, out: Any) -> None:
        address, heads = edge_values(self.arrays, "weight", weight, plan.edges)
        rows = self._rows(plan, "out", out, name_of(src.format), src.format.dim)
        self._run_by_head(plan, "weighted", src, heads, weight=address, out=rows)

    def sddmm(self, plan: Plan, src: Rows, dst: Any, out_edge: Any) -> None:
        address, heads = edge_values(self.arrays, "out_edge", out_edge, plan.edges)
        rows = self._rows(plan, "y", dst, name_of(src.format), src.format.dim)
        self._run_by_head(plan, "sddmm", src, heads, out=address, y=rows)

    def propagate(self, plan: Plan, tape: Tape, src: Rows, given: TapeArrays) -> None:
        if isinstance(src, ChunkRows):
            with src.stream.chunk(plan) as (held, rows):
                self.propagate(held, tape, rows, given)
            return
        layout = TailedRows(src.format.dtype, tape.far_columns)
        _check_width("propagate", src, layout)
        arrays = self._tape_arrays(plan, tape, given)
        source = self._source(tape, name_of(src.format))
        with self._reachable(plan, src, layout, 1, tape.columns) as rows:
            begin = self._native(plan, "tape_arguments", src)
            workers, edges = begin(rows, source.lanes, source.columns, source.state)
            if workers == 0:
                return
            blocks = min(-(-workers * source.lanes // THREADS), cuda_grid.MOST_BLOCKS)
            struct = edges + arrays[: 3 + 2 * (len(given.out) + source.near)].tobytes()
            self._launches.tape_kernels.launch(source.text, struct, blocks, self.arrays.stream())

    def check_tapes(self) -> None:
        _ = self._launches.tape_kernels

    def _source(self, tape: Tape, kind: str) -> Source:
        """Return the source of a tape over rows of a dtype, whose kernel is loaded. Raises InputError without one."""
        sources = _SOURCES.setdefault(tape, {})
        if kind not in sources:
            sources[kind] = tape_source(tape, kind)
        self._launches.tape_kernels.load(sources[kind].text)
        return sources[kind]

    def _tape_arrays(self, plan: Plan, tape: Tape, given: TapeArrays) -> Any:
        """Return the fields of `DeviceTape` that follow its edges (cuda/gpu/edges/tape.cuh), as uint64.

        Raises ValueError for arrays of another type or size, and for a tape that reads an array that is missing.
        """

        def rows(name: str, arrays: Sequence[Any]) -> list[int]:
            words: list[int] = []
            for array in arrays:
                words += self._rows(plan, name, array, "float32", self.arrays.kind(array)[1][-1])
            return words

        (count,) = self.arrays.kind(given.shared)[1]
        edge_at, edge_columns = 0, 0
        if given.edge is not None:
            edge_at, edge_columns = edge_values(self.arrays, "edge", given.edge, plan.edges)
        words = [
            flat(self.arrays, "shared", given.shared, count),
            edge_at,
            edge_columns,
            *rows("out", given.out),
        ]
        sizes = {
            "near": len(given.near),
            "shared": count,
            "edge_columns": edge_columns,
            "out": len(given.out),
        }
        self._launches.native.check_tape(**tape.native, **sizes)
        # Addresses; 0 of no array.
        return np.array([*words, *rows("near", given.near), 0, 0], np.uint64)

    def _rows(self, plan: Plan, name: str, array: Any, dtype: str, columns: int) -> tuple[int, int]:
        """Return the address of rows of this rank's destinations, and the number of values between them."""
        return rows_of(self.arrays, name, array, dtype, (plan.destinations, columns))

    def _native(self, plan: Plan, name: str, src: Rows) -> Any:
        """Return a method of the native plan for rows of this dtype."""
        return getattr(self._launches.native_plan(plan), f"{name}_{name_of(src.format)}")

    def _run_by_head(self, plan: Plan, name: str, src: Rows, heads: int, **call: Any) -> None:
        layout = TailedRows(src.format.dtype, src.format.dim)
        self._run(plan, name, src, layout, heads, src.format.dim // heads, **call)

    def _run(
        self, plan: Plan, name: str, src: Rows, layout: TailedRows, heads: int, channels: int, **call: Any
    ) -> None:
        _check_width(name, src, layout)
        with self._reachable(plan, src, layout, heads, channels) as rows:
            self._native(plan, name, src)(rows, **call)

    @contextmanager
    def _reachable(
        self, plan: Plan, src: Rows, layout: TailedRows, heads: int, channels: int
    ) -> Iterator[Any]:
        """Yield native rows, all of which can be read inside. The call is metered.

        Raises InputError for gets of rows that no pointer reaches.
        """
        launches = self._launches
        if plan.transfer == "get" and launches.has_gets:  # the same on all ranks
            raise InputError(
                'plan.transfer is "get", but some GPUs are out of reach of pointers, and attention and maxima have '
                'their rows by "halo" then; use that, or "auto"'
            )
        began = launches.began()
        if not halo_messages.crosses(plan):
            yield self._edge_rows(plan, src, layout, heads, channels)
        else:
            transfer_plan, halo = launches.transfer_plan(plan), launches.halo(plan)
            made, nothing = (
                launches.launch(transfer_plan, src.format),
                launches.native.Sum("sum", 0, 0, 0, 0, False),
            )
            halo.aggregate(launches, transfer_plan, name_of(src.format), src, nothing, made, holds=True)
            yield self._edge_rows(plan, src, layout, heads, channels)
            _, crossed = halo.schedule(launches, transfer_plan, src.format.row_bytes)
            halo.exchange(launches).let_go(crossed, launches.one_warp())
        launches.count(plan, src.format, began)

    def _edge_rows(self, plan: Plan, src: Rows, layout: TailedRows, heads: int, channels: int) -> Any:
        launches = self._launches
        exchange = launches.halo(plan).exchange(launches) if halo_messages.crosses(plan) else None
        sizes = (src.format.dim, layout.values, layout.tail, heads, channels)
        return launches.native.EdgeRows(src.addresses, exchange, *sizes, self.arrays.stream())


def _check_width(call: str, src: Rows, layout: TailedRows) -> None:
    """Raise ValueError for rows that are too narrow for a layout."""
    expected = layout.format.dim if layout.tail or layout.with_id else layout.values
    if src.format.dim < expected:
        raise ValueError(f"{call}: rows of {src.format.dim} values; expected {expected}")
