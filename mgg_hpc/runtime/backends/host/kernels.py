"""The backend of CPUs: schedules and kernels of the native module, over any memory for symmetric rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from numpy.typing import NDArray

from ....plan.grid import Pass
from ....plan.layout import RowFormat
from ....plan.overlap import transfer_only
from ....plan.workload import Plan
from ... import cores
from ...streaming.buffer import ChunkBuffer
from ...streaming.store import Store
from ..arguments import ChunkRows, Epilogue, Geometry, Options, RngKey, Rows, check_operation
from ..base import Backend, Capabilities, Phases
from ..phases import separate
from .components import HostCollectives, HostMemory, HostStream
from .edges import HostEdges
from .exchange import Exchange, make_exchange
from .streaming import stream_rows
from .traversal import HostTraversal

HUB_BLOCKS = 4  # blocks whose edges a destination may have without being shared by threads


def _block_edges(geometry: Geometry) -> int:
    """Return the edges that a thread claims at once."""
    return geometry.ps * geometry.wpb


class HostBackend(Backend):
    """Kernels over rows that this process holds, reads through pointers, fetches, or is sent.

    memory: says where symmetric rows live, and by which transport they move.
    """

    def __init__(
        self, memory: HostMemory, collectives: HostCollectives, options: Options, capabilities: Capabilities
    ) -> None:
        self.options = options
        self._memory, self._collectives, self._stream = memory, collectives, HostStream()
        # Beside a rank's own rows a cache holds as many of its peers, and indices and sums.
        self._capabilities = replace(capabilities, cache_bytes=cores.cache_bytes() // 4)
        self._schedules: WeakKeyDictionary[Plan, dict[int, Any]] = WeakKeyDictionary()
        self._tuned: WeakKeyDictionary[Plan, dict[int, Geometry]] = WeakKeyDictionary()
        self._exchanges: WeakKeyDictionary[Plan, Exchange] = WeakKeyDictionary()
        self._streams: WeakSet[ChunkRows] = WeakSet()
        memory.on_close(self._end_streams)
        # Tensors that are alive at exit keep this backend alive, so `close` drops its native objects.
        memory.on_close(self._schedules.clear)
        memory.on_close(self._exchanges.clear)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def memory(self) -> HostMemory:
        return self._memory

    @property
    def stream(self) -> HostStream:
        return self._stream

    @property
    def collectives(self) -> HostCollectives:
        return self._collectives

    @property
    def edges(self) -> HostEdges:
        return HostEdges(self.schedule, self.called)

    @property
    def traversal(self) -> HostTraversal:
        return HostTraversal(self.memory, self.collectives, self.options.threads)

    def rows(self, counts: NDArray[np.int64], format: RowFormat, symmetric: bool) -> Rows:
        return self.memory.symmetric(counts, format) if symmetric else self.memory.private(counts, format)

    def publish(self, rows: Rows) -> None:
        began = time.perf_counter()
        self.memory.publish(rows)
        self.stream.meter.waited += time.perf_counter() - began

    def prepare(self, plan: Plan, widest: RowFormat) -> None:
        lists = plan.lists
        if plan.transfer != "halo" or lists is None:
            return
        narrower = self._exchanges.get(plan)
        if narrower is not None:
            if widest.row_bytes <= narrower.staging.format.row_bytes:
                return
            del self._exchanges[plan]
            self.memory.release(narrower.staging)
            self.memory.release(narrower.signals)
        self._exchanges[plan] = make_exchange(self.memory, lists, widest)

    def retune(self, plan: Plan, format: RowFormat, geometry: Geometry) -> None:
        # Hubs stay cut as `options.geometry` says, so that every geometry gives the same bits.
        tuned = self._tuned.setdefault(plan, {})
        tuned[format.row_bytes] = geometry
        used = {_block_edges(each) for each in (*tuned.values(), self.options.geometry)}
        made = self._schedules.get(plan, {})
        for block_edges in made.keys() - used:
            del made[block_edges]
        self.schedule(plan, format)  # now, since peers wait for the pushes of a call

    def schedule(self, plan: Plan, format: RowFormat) -> Any:
        """Return the native schedule of a plan for rows of this format, made once for each size of blocks."""
        geometry = self._tuned.get(plan, {}).get(format.row_bytes, self.options.geometry)
        made, block_edges = self._schedules.setdefault(plan, {}), _block_edges(geometry)
        if block_edges not in made:
            # A hub's parts go through another core's cache, so a destination of up to four blocks stays with a thread.
            part_edges = HUB_BLOCKS * _block_edges(self.options.geometry)
            schedule = self.memory.native.Schedule(
                plan.chunks.view(np.uint8),
                plan.segments.view(np.uint8),
                plan.indices,
                plan.destinations,
                block_edges,
                part_edges,
                gets=plan.transfer == "get",
            )
            for other in made.values():
                schedule.sweep_as(other)
                break
            made[block_edges] = schedule
        made[block_edges].dist = geometry.dist
        return made[block_edges]

    def stream_rows(
        self, store: Store, order: Pass, buffer: ChunkBuffer | None, *, ahead: bool = True
    ) -> ChunkRows:
        rows = stream_rows(self.memory, store, order, buffer, ahead=ahead)
        self._streams.add(rows)
        return rows

    def _end_streams(self) -> None:
        for rows in self._streams:
            rows.close()

    def aggregate(
        self,
        plan: Plan,
        op: str,
        reduce: str,
        src: Rows,
        out: Any,
        *,
        edge: Any = None,
        epilogue: Epilogue | None = None,
        arrived: bool = False,
    ) -> None:
        """Sum rows, as `Backend.aggregate` does. arrived: sum what `transfer_only` brought, and exchange nothing."""
        check_operation(op, reduce, edge)
        if tuple(out.shape) != (plan.destinations, src.format.dim) or out.dtype != src.format.dtype:
            raise ValueError(
                f"aggregate: rows of {src.format.dim} x {src.format.dtype} into {list(out.shape)} of {out.dtype}, "
                f"for {plan.destinations} destinations"
            )
        epilogue = epilogue or Epilogue()
        kernel = getattr(self.schedule(plan, src.format), f"aggregate_{src.format.dtype.name}")
        with self.called(plan, src, arrived) as source:
            kernel(
                weight=edge,
                out=out if out.dtype.itemsize > 2 else out.view(np.uint16),
                scale=epilogue.scale,
                bias=epilogue.bias,
                relu=epilogue.relu,
                reduce=reduce,
                **source,
            )

    @contextmanager
    def called(self, plan: Plan, src: Rows, arrived: bool = False) -> Iterator[dict[str, Any]]:
        """Yield the arguments by which native calls reach a plan's rows; the call is metered.

        Raises ValueError for a plan with rounds that is not prepared, and for a grid's over rows that do not stream.
        """
        exchange = self._exchanges.get(plan)
        if plan.transfer == "halo" and exchange is None:
            raise ValueError("aggregate: a plan with rounds must be prepared first (Backend.prepare)")
        stream = src.stream if isinstance(src, ChunkRows) else None
        if (plan.transfer == "stream") != (stream is not None):
            raise ValueError("aggregate: plans of a grid take rows that stream, and others do not")
        began = time.perf_counter()
        transport = self.memory.transport_address if plan.transfer == "get" else 0
        native, rank = exchange.native if exchange else stream, self.collectives.rank
        yield {
            "addresses": src.addresses,
            "counts": src.counts,
            "rank": rank,
            "threads": self.options.threads,
            "exchange": native,
            "arrived": arrived,
            "transport": transport,
        }
        if plan.transfer == "none":
            return
        meter = self.stream.meter
        meter.took(plan, src.format, time.perf_counter() - began)
        if stream:
            loaded, passed = stream.take_rows_loaded(), stream.take_rows_passed()
            meter.count(0, loaded + passed, src.format, 0)
            meter.count_stored(loaded, src.format, stream.take_seconds_loading())
            meter.waited += stream.take_seconds_waited()
            return
        rows = exchange.native.take_rows_pushed() if exchange else plan.remote_edges
        messages = exchange.native.take_messages_pushed() if exchange else 0
        meter.count(plan.local_edges, rows, src.format, rows if plan.transfer == "get" else messages)
        if exchange:
            meter.waited += exchange.native.take_seconds_waited()
        if exchange and meter.exchanges is not None:
            meter.exchanges.append((plan, exchange.native.stamps()))

    def transfer_only(self, plan: Plan, src: Rows) -> None:
        """Exchange the halo of a prepared plan and sum nothing; `aggregate` with ``arrived`` sums it. Collective."""
        address = int(src.addresses[self.collectives.rank])
        self._exchanges[plan].native.transfer(address, src.format.row_bytes)

    def phases(self, plan: Plan, op: str, src: Rows, out: Any, *, edge: Any = None) -> Phases:
        if plan.transfer == "halo":
            return Phases(
                lambda: self.transfer_only(plan, src),
                lambda: self.aggregate(plan, op, "sum", src, out, edge=edge, arrived=True),
            )
        return separate(self, plan, transfer_only(plan, edges=True), op, src, out, edge)

    def gather(
        self,
        src: Rows,
        bounds: NDArray[np.int64],
        ids: NDArray[np.int64],
        out: Any,
        *,
        own: int | None = None,
    ) -> None:
        # It counts this rank's own rows itself.
        format = src.format
        if tuple(out.shape) != (len(ids), format.dim) or out.dtype != format.dtype:
            raise ValueError(
                f"gather: {len(ids)} rows of {format.dim} x {format.dtype} into {list(out.shape)} of {out.dtype}"
            )
        local, remote, messages = self.memory.native.gather_rows(
            ids,
            bounds,
            src.addresses,
            src.counts,
            rank=self.collectives.rank,
            row_bytes=format.row_bytes,
            out=out if out.dtype.itemsize > 2 else out.view(np.uint16),
            transport=self.memory.transport_address if src.symmetric else 0,
            threads=self.options.threads,
        )
        self.stream.meter.count(local, remote, format, messages)

    def dropout(
        self, x: Any, out: Any, ids: NDArray[np.int64], key: RngKey, csr: tuple[Any, Any] | None = None
    ) -> None:
        native, threads = self.memory.native, self.options.threads
        if csr is not None:
            indptr, index = csr
            native.dropout_csr(indptr, index, x, out, ids, key.p, key.seed, key.epoch, key.stream, threads)
            return
        kernel = native.dropout_rows
        if x.dtype.itemsize == 2:  # NumPy's exchange of arrays knows no bfloat16
            kernel = getattr(native, f"dropout_rows_{x.dtype.name}")
            x, out = x.view(np.uint16), out.view(np.uint16)
        kernel(x, out, ids, key.p, key.seed, key.epoch, key.stream, threads)
