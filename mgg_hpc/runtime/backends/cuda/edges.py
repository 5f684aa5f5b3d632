"""The edge kernels of GPUs (the protocol is ../edges.py; the kernels are in cuda/gpu/edges).

Remote rows are read through pointers. With the transfer "halo" all of them arrive first, in a call that sums nothing,
and stay in their staging until the kernel has read them: nothing overlaps yet.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from ....errors import InputError
from ....plan import halo_messages
from ....plan.workload import Plan
from ..arguments import ChunkRows, RngKey, Rows
from ..edges import Attention, EdgeKernels, TailedRows
from ..tape import Tape
from . import dropout
from .arrays import edge_values, flat, name_of, rows_of
from .launches import DeviceLaunches
from .tapes import calls as tapes

Array = tuple[int, int]  # an address, and values between rows
NO_DROPOUT = RngKey(0.0, seed=0, epoch=0, stream=0)


class DeviceEdges(EdgeKernels):
    """Kernels of GPUs."""

    def __init__(self, launches: DeviceLaunches) -> None:
        self._launches, self.arrays = launches, launches.arrays

    def ready_edges(self, plan: Plan, src: Rows, layout: TailedRows, heads: int, channels: int) -> None:
        """Allocate all that calls below of these rows take; see `DeviceBackend.ready`."""
        if halo_messages.crosses(plan):
            self._launches.ready(self._launches.transfer_plan(plan), src)
        rows = self._edge_rows(src, self._exchange(plan), layout, heads, channels)
        getattr(self._launches.native_plan(plan), f"ready_edges_{name_of(src.format)}")(rows)

    def attend(
        self,
        plan: Plan,
        how: Attention,
        src: Rows,
        out: Any,
        *,
        score: Any = None,
        h: Any = None,
        bias: Any = None,
        log_sum: Any = None,
        above: Any = None,
        above_weight: Any = None,
        edge_score: Any = None,
    ) -> None:
        given = {"score": score, "log_sum": log_sum, "above_weight": above_weight}
        call: dict[str, Any] = dict(self._arrays(plan, "float32", how.heads, given))
        call |= self._arrays(plan, "float32", how.columns, {"above": above})
        call |= self._arrays(plan, name_of(src.format), how.columns, {"out": out, "h": h})
        call |= self._attention(plan, how) | {"bias": flat(self.arrays, "bias", bias, how.columns)}
        call |= self._of_edges(plan, how, edge_score=edge_score)
        layout = how.forward_rows(src.format.dtype)
        with self._over(plan, src, layout, how.heads, how.channels, "attend") as (kernel, rows):
            kernel(rows, **call)

    def attend_back(
        self,
        plan: Plan,
        how: Attention,
        src: Rows,
        out: Any,
        *,
        at_source: bool,
        h: Any,
        score: Any = None,
        gradient: Any = None,
        log_sum: Any = None,
        dot: Any = None,
        score_gradient: Any = None,
        edge_score: Any = None,
        edge_score_gradient: Any = None,
    ) -> None:
        given = {"score": score, "log_sum": log_sum, "dot": dot, "score_gradient": score_gradient}
        rows_given = {"out": out, "h": h, "gradient": gradient}
        call: dict[str, Any] = dict(self._arrays(plan, "float32", how.heads, given))
        call |= self._arrays(plan, name_of(src.format), how.columns, rows_given)
        call |= self._attention(plan, how)
        call |= self._of_edges(plan, how, edge_score=edge_score, edge_score_gradient=edge_score_gradient)
        layout = (how.backward_rows if at_source else how.forward_rows)(src.format.dtype)
        with self._over(plan, src, layout, how.heads, how.channels, "attend_back") as (kernel, rows):
            kernel(rows, **call)

    def max_ties(self, plan: Plan, src: Rows, out: Any, ties: Any) -> None:
        columns = src.format.dim
        call = self._arrays(plan, name_of(src.format), columns, {"out": out})
        call |= self._arrays(plan, "float32", columns, {"ties": ties})
        with self._over(plan, src, TailedRows(src.format.dtype, columns), 1, columns, "max_ties") as (
            kernel,
            rows,
        ):
            kernel(rows, **call)

    def max_back(self, plan: Plan, src: Rows, x: Any, out: Any) -> None:
        columns = src.format.dim // 2
        call = self._arrays(plan, name_of(src.format), columns, {"x": x, "out": out})
        layout = TailedRows(src.format.dtype, 2 * columns)
        with self._over(plan, src, layout, 1, columns, "max_back") as (kernel, rows):
            kernel(rows, **call)

    def weighted(self, plan: Plan, src: Rows, weight: Any, out: Any) -> None:
        columns, (weight_at, heads) = src.format.dim, edge_values(self.arrays, "weight", weight, plan.edges)
        call = self._arrays(plan, name_of(src.format), columns, {"out": out})
        layout = TailedRows(src.format.dtype, columns)
        with self._over(plan, src, layout, heads, columns // heads, "weighted") as (kernel, rows):
            kernel(rows, weight=weight_at, **call)

    def sddmm(self, plan: Plan, src: Rows, dst: Any, out_edge: Any) -> None:
        columns, (out_at, heads) = src.format.dim, edge_values(self.arrays, "out_edge", out_edge, plan.edges)
        call = self._arrays(plan, name_of(src.format), columns, {"y": dst})
        layout = TailedRows(src.format.dtype, columns)
        with self._over(plan, src, layout, heads, columns // heads, "sddmm") as (kernel, rows):
            kernel(rows, out=out_at, **call)

    def propagate(
        self,
        plan: Plan,
        tape: Tape,
        src: Rows,
        *,
        near: Sequence[Any],
        shared: Any,
        out: Sequence[Any],
        edge: Any = None,
    ) -> None:
        # Compiled where CuPy is installed, else interpreted.
        # Raises InputError for a tape that is too large to be interpreted where nothing compiles it.
        if isinstance(src, ChunkRows):
            with src.stream.chunk(plan) as (held, rows):
                self.propagate(held, tape, rows, near=near, shared=shared, out=out, edge=edge)
            return
        kind, layout = name_of(src.format), TailedRows(src.format.dtype, tape.far_columns)
        given = tapes.operands(self.arrays, plan, near=near, shared=shared, out=out, edge=edge)
        call = tapes.native_call(self._launches.native, tape, given)
        source = tapes.compiled(self._launches.tape_kernels, tape, kind)
        if source is None and not call.fits:
            raise InputError(
                f"a program of edges with {tape.registers} registers of columns and {len(tape.steps)} steps is too "
                "large to be interpreted on a GPU: install CuPy, which compiles it (pip install cupy-cuda13x)"
            )
        with self._over(plan, src, layout, 1, tape.columns, "propagate") as (kernel, rows):
            if source is None:
                kernel(rows, call)
            else:
                tapes.launch(self._launches, plan, rows, source, given, kind)

    def ready_propagate(self, plan: Plan, src: Rows, tape: Tape) -> None:
        """Allocate and compile all that `propagate` of a tape over these rows takes; see `DeviceBackend.ready`."""
        layout = TailedRows(src.format.dtype, tape.far_columns)
        self.ready_edges(plan, src, layout, 1, tape.columns)
        tapes.compiled(self._launches.tape_kernels, tape, name_of(src.format))
        rows = self._edge_rows(src, self._exchange(plan), layout, 1, tape.columns)
        tapes.ready(self._launches, plan, rows, tape, name_of(src.format))

    def _arrays(self, plan: Plan, dtype: str, columns: int, given: dict[str, Any]) -> dict[str, Array]:
        """Return rows of this rank's destinations as native calls take them, without those that are None."""
        shape = plan.destinations, columns
        return {
            name: rows_of(self.arrays, name, array, dtype, shape)
            for name, array in given.items()
            if array is not None
        }

    def _of_edges(self, plan: Plan, how: Attention, **given: Any) -> dict[str, int]:
        """Return the addresses of values of edges [E, H], without those that are None."""
        found = {}
        for name, array in given.items():
            if array is None:
                continue
            found[name], heads = edge_values(self.arrays, name, array, plan.edges)
            if heads != how.heads or not how.additive:
                raise ValueError(f"{name}: of {heads} heads; expected {how.heads}, and additive attention")
        return found

    def _attention(self, plan: Plan, how: Attention) -> dict[str, Any]:
        """Return the arguments of native calls for an Attention."""
        ids = flat(self.arrays, "ids", how.ids, plan.destinations, "int64") if how.key is not None else 0
        key = dropout.native_key(self.arrays, self._launches.native, how.key or NO_DROPOUT)
        return {"slope": how.negative_slope, "scale": how.scale, "ids": ids, "key": key}

    @contextmanager
    def _over(
        self, plan: Plan, src: Rows, layout: TailedRows, heads: int, channels: int, name: str
    ) -> Iterator[tuple[Any, Any]]:
        """Yield the native kernel over a plan, and its rows, which can all be read inside. The call is metered.

        Raises ValueError for rows that are too narrow, InputError for gets of rows that no pointer reaches.
        """
        expected = layout.format.dim if layout.tail or layout.with_id else layout.values
        if src.format.dim < expected:
            raise ValueError(f"{name}: rows of {src.format.dim} values; expected {expected}")
        kind = name_of(src.format)
        began, exchange = self._launches.began(), None
        if halo_messages.crosses(plan):
            transfer_plan, halo = self._launches.transfer_plan(plan), self._launches.halo(plan)
            made, nothing = (
                self._launches.launch(transfer_plan, src.format),
                self._launches.native.Sum("sum", 0, 0, 0, 0, False),
            )
            halo.aggregate(self._launches, transfer_plan, kind, src, nothing, made, holds=True)
            exchange = halo.exchange(self._launches)
        elif plan.transfer == "get" and self._launches.has_gets:  # the same on all ranks
            raise InputError(
                'plan.transfer is "get", but some GPUs are out of reach of pointers, and attention and maxima have '
                'their rows by "halo" then; use that, or "auto"'
            )
        kernel = getattr(self._launches.native_plan(plan), f"{name}_{kind}")
        yield kernel, self._edge_rows(src, exchange, layout, heads, channels)
        if exchange is not None:
            _, crossed = halo.schedule(self._launches, transfer_plan, src.format.row_bytes)
            exchange.let_go(crossed, self._launches.one_warp())
        self._launches.count(plan, src.format, began)

    def _exchange(self, plan: Plan) -> Any:
        """Return the exchange whose staging holds a plan's remote rows; None where pointers reach them."""
        return self._launches.halo(plan).exchange(self._launches) if halo_messages.crosses(plan) else None

    def _edge_rows(self, src: Rows, exchange: Any, layout: TailedRows, heads: int, channels: int) -> Any:
        return self._launches.native.EdgeRows(
            src.addresses,
            exchange,
            src.format.dim,
            layout.values,
            layout.tail,
            heads,
            channels,
            self.arrays.stream(),
        )
