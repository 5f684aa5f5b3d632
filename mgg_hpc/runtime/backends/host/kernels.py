"""The backends of CPUs: schedules and kernels of the native module, over any memory for symmetric rows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import numpy as np
from numpy.typing import NDArray

from ....plan.grid import Pass
from ....plan.layout import RowFormat
from ....plan.workload import Plan
from ...streaming.buffer import ChunkBuffer
from ...streaming.store import Store
from ..arguments import ChunkRows, Epilogue, Geometry, Options, RngKey, Rows, TieredRows
from ..base import Backend, Capabilities
from ..edges import Attention, EdgeKernels, TapeArrays
from ..profiling import Phases, Profiling
from ..simulated import World
from ..tape import Tape
from .components import Exchange, HostCollectives, HostMemory, HostStream, SerialMemory, SharedMemory
from .streaming import stream_rows
from .traversal import HostTraversal

HUB_BLOCKS = 4  # blocks whose edges a destination may have without being shared by threads


def _block_edges(geometry: Geometry) -> int:
    return geometry.ps * geometry.wpb


class HostBackend(Backend):
    """Kernels over rows that this process holds, reads through pointers, fetches, or is sent.

    memory: allocates symmetric rows, and has the transport that moves them. comm: communicator of all ranks, or None
    where one process simulates them.
    """

    def __init__(
        self, memory: HostMemory, options: Options, capabilities: Capabilities, comm: Any = None
    ) -> None:
        self.options, self._memory, self._stream = options, memory, HostStream()
        self._collectives = HostCollectives(memory.rank, memory.size, comm)
        self._capabilities, self._profiling = capabilities, HostProfiling(self)
        self._schedules: WeakKeyDictionary[Plan, dict[int, Any]] = WeakKeyDictionary()
        self._tuned: WeakKeyDictionary[Plan, dict[int, Geometry]] = WeakKeyDictionary()
        self._exchanges: WeakKeyDictionary[Plan, Exchange] = WeakKeyDictionary()
        self._tables: WeakKeyDictionary[TieredRows, Any] = WeakKeyDictionary()
        self._streams: WeakSet[ChunkRows] = WeakSet()
        memory.on_close(self._end_streams)
        # Tensors that are alive at exit keep this backend alive, so `close` drops its native objects.
        memory.on_close(self._schedules.clear)
        memory.on_close(self._tables.clear)
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
        return HostEdges(self)

    @property
    def traversal(self) -> HostTraversal:
        return HostTraversal(self.memory, self.collectives, self.options.threads)

    @property
    def profiling(self) -> Profiling:
        return self._profiling

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
        self._exchanges[plan] = self.memory.exchange(lists, widest)

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

    def _aggregate(
        self,
        plan: Plan,
        reduce: str,
        src: Rows,
        out: Any,
        edge: Any,
        epilogue: Epilogue,
        arrived: bool = False,
    ) -> None:
        # arrived: sum the halo that `transfer_only` brought.
        if tuple(out.shape) != (plan.destinations, src.format.dim) or out.dtype != src.format.dtype:
            raise ValueError(
                f"aggregate: rows of {src.format.dim} x {src.format.dtype} into {list(out.shape)} of {out.dtype}, "
                f"for {plan.destinations} destinations"
            )
        kernel = getattr(self.schedule(plan, src.format), f"aggregate_{src.format.type_name}")
        with self.called(plan, src, arrived) as reach:
            kernel(reach, weight=edge, out=_bits(out), **vars(epilogue), reduce=reduce)

    @contextmanager
    def called(self, plan: Plan, src: Rows, arrived: bool = False) -> Iterator[Any]:
        """Yield the native Reach by which a call finds a plan's rows, and meter the call.

        Raises ValueError for a plan with rounds that is not prepared, and for a plan of a grid if the rows are
        not streamed, or the other way round.
        """
        exchange = self._exchanges.get(plan)
        if plan.transfer == "halo" and exchange is None:
            raise ValueError("aggregate: a plan with rounds must be prepared first (Backend.prepare)")
        stream = src.stream if isinstance(src, ChunkRows) else None
        if (plan.transfer == "stream") != (stream is not None):
            raise ValueError("aggregate: plans of a grid take rows that stream, and others do not")
        native = exchange.native if exchange else stream
        began = time.perf_counter()
        yield self._reach(src, native, arrived=arrived, gets=plan.transfer == "get")
        if plan.transfer == "none":
            return
        meter = self.stream.meter
        meter.took(plan, src.format, time.perf_counter() - began)
        if native is None:
            rows = plan.remote_edges
            meter.count(plan.local_edges, rows, src.format, rows if plan.transfer == "get" else 0)
            return
        rows, passed, messages, waited, loading = native.take_moved()
        meter.waited += waited
        if stream:
            meter.count(0, rows + passed, src.format, 0)
            meter.count_stored(rows, src.format, loading)
            return
        meter.count(plan.local_edges, rows, src.format, messages)
        if self._profiling.exchanges is not None:
            self._profiling.exchanges.append((plan, native.stamps()))

    def _reach(self, src: Rows, native: Any = None, *, arrived: bool = False, gets: bool) -> Any:
        """Return the native Reach of a call. native: its exchange. gets: rows may be fetched by the transport."""
        return self.memory.native.Reach(
            src.addresses,
            src.counts,
            self.collectives.rank,
            threads=self.options.threads,
            exchange=native,
            arrived=arrived,
            transport=self.memory.transport_address if gets else 0,
        )

    def transfer_only(self, plan: Plan, src: Rows) -> None:
        """Exchange the halo of a prepared plan, which `_aggregate` with ``arrived`` sums later. Collective."""
        address = int(src.addresses[self.collectives.rank])
        self._exchanges[plan].native.transfer(address, src.format.row_bytes)

    def gather(self, src: TieredRows, ids: NDArray[np.int64], out: Any) -> None:
        format, file = src.format, src.file
        if tuple(out.shape) != (len(ids), format.dim) or out.dtype != format.dtype:
            raise ValueError(
                f"gather: {len(ids)} rows of {format.dim} x {format.dtype} into {list(out.shape)} of {out.dtype}"
            )
        if file is not None:
            file.check()
        began = time.perf_counter()
        own, got, stored, slot, error = self._table(src).gather(
            ids, _bits(out), src.read, self.options.threads
        )
        meter = self.stream.meter
        meter.count(own, len(ids) - own, format, got)
        if file is not None:
            meter.count_stored(stored, format, time.perf_counter() - began)
        if slot >= 0:
            raise src.fault(slot, error)

    def update(self, src: TieredRows, ids: NDArray[np.int64], rows: Any) -> None:
        """Set row ids[i] of a table to rows[i]; of equal ids the last one counts. Not collective.

        src: a table of which all rows can be written, through pointers or to its file. ids: int64 [n]. rows:
        [n, dim], laid out as ``out`` of `gather`. Raises IndexError for an id outside the table, before
        anything is written, and InputError if a row of the file cannot be written.
        """
        slot, error = self._table(src).update(ids, _bits(rows))
        if slot >= 0:
            raise src.fault(slot, error, "written")

    def _table(self, src: TieredRows) -> Any:
        """Return the native table of rows."""
        if (table := self._tables.get(src)) is not None:
            return table
        file, filed = src.file, (0, -1, 0)
        if file is not None:
            filed = (file.count - src.first, file.descriptor, file.offset + src.first * file.row_bytes)
        table = self._tables[src] = self.memory.native.Table(
            src.rows,
            src.format.dim * src.format.dtype.itemsize,
            src.slots,
            [(each.slots, each.addresses, each.ranks, each.row_bytes, each.mine) for each in src.tiers],
            filed,
            self.collectives.rank,
            self.memory.transport_address,
        )
        return table

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
            x, out = _bits(x), _bits(out)
        kernel(x, out, ids, key.p, key.seed, key.epoch, key.stream, threads)


def _bits(value: Any) -> Any:
    """Return an array as native calls take it: half rows as their bits, other values as they are."""
    return value.view(np.uint16) if isinstance(value, np.ndarray) and value.dtype.itemsize == 2 else value


class HostProfiling(Profiling):
    """Profiles of CPUs. With a halo, the sums alone are over the rows that the last exchange brought."""

    def phases(self, plan: Plan, src: Rows, out: Any, *, edge: Any = None) -> Phases:
        backend = self._backend
        if plan.transfer != "halo":
            return super().phases(plan, src, out, edge=edge)
        return Phases(
            lambda: backend.transfer_only(plan, src),
            lambda: backend._aggregate(plan, "sum", src, out, edge, Epilogue(), arrived=True),
        )


class SerialBackend(HostBackend):
    """One rank of a World, all of whose ranks this process simulates: a lone rank, or tests.

    Ranks may take turns as long as rows are read on their owners; with a halo, each runs in its own thread.
    """

    def __init__(self, rank: int, world: World, options: Options) -> None:
        super().__init__(SerialMemory(rank, world), options, Capabilities("serial"))


class SharedBackend(HostBackend):
    """One rank of a node: rows of peers lie in MPI shared-memory windows and are read by pointer."""

    def __init__(self, comm: Any, options: Options) -> None:
        super().__init__(SharedMemory(comm), options, Capabilities("shm"), comm)


class HostEdges(EdgeKernels):
    """Native kernels over edges."""

    def __init__(self, backend: HostBackend) -> None:
        self._backend = backend

    def _run(self, plan: Plan, name: str, src: Rows, **given: Any) -> None:
        kernel = getattr(self._backend.schedule(plan, src.format), f"{name}_{src.format.type_name}")
        with self._backend.called(plan, src) as reach:
            kernel(reach, **{name: _bits(value) for name, value in given.items() if value is not None})

    def attend(self, plan: Plan, how: Attention, src: Rows, out: Any, **given: Any) -> None:
        self._run(plan, "attend", src, out=out, **_call(how), **given)

    def attend_back(
        self, plan: Plan, how: Attention, src: Rows, out: Any, *, at_source: bool, **given: Any
    ) -> None:
        self._run(plan, "attend_back", src, out=out, at_source=at_source, **_call(how), **given)

    def max_ties(self, plan: Plan, src: Rows, out: Any, ties: Any) -> None:
        self._run(plan, "max_ties", src, out=out, ties=ties)

    def max_back(self, plan: Plan, src: Rows, x: Any, out: Any) -> None:
        self._run(plan, "max_back", src, x=x, out=out)

    def weighted(self, plan: Plan, src: Rows, weight: Any, out: Any) -> None:
        self._run(plan, "weighted", src, weight=weight, out=out)

    def sddmm(self, plan: Plan, src: Rows, dst: Any, out_edge: Any) -> None:
        self._run(plan, "sddmm", src, y=dst, out=out_edge)

    def propagate(self, plan: Plan, tape: Tape, src: Rows, given: TapeArrays) -> None:
        self._run(plan, "propagate", src, **tape.native, **vars(given))


def _call(how: Attention) -> dict[str, Any]:
    """Return the arguments of native calls for an Attention."""
    call: dict[str, Any] = {"heads": how.heads, "channels": how.channels}
    call |= {"slope": how.negative_slope, "scale": how.scale}
    if how.key is not None:
        key = how.key
        call |= {"p": key.p, "seed": key.seed, "epoch": key.epoch, "stream": key.stream, "ids": how.ids}
    return call
