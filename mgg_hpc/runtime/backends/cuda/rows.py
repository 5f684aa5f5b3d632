"""Gather rows of tiered tables from all ranks, and apply dropout with the same draws as on the host.

The kernels are in cuda/gpu/rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from ....plan import cuda_grid
from ....plan.cuda_grid import PACK
from ....plan.layout import ROW_ALIGNMENT, TIER, RowFormat
from ....plan.workload import prefix_sum
from ..arguments import RngKey, Rows, Tier, TieredRows
from .arrays import checked_name, flat, padded_rows, rows_of
from .context import THREADS, DeviceContext
from .device_arrays import DeviceArrays
from .reads import FileReads

# Bytes of symmetric memory, where rows that no pointer reaches arrive; heap.SMALL includes them.
STAGED_BYTES = 4 << 20
CSR_LANES = 8  # dropout_csr_lanes


class _Table:
    """Description of a tiered table in device memory, as gather kernels take it, and their launch sizes.

    Attributes: lanes: number of threads that copy a row. most: largest number of CUDA blocks of a launch.
    unreached: bool [P], True for ranks some of whose rows no pointer reaches. reads: reads of the table's file,
    by stream.
    """

    def __init__(self, context: DeviceContext, src: TieredRows) -> None:
        format, tiers = src.format, [each for each in src.tiers if each.slots]
        value_bytes = format.dim * format.dtype.itemsize
        made, ranks = np.zeros(len(tiers), TIER), np.concatenate([[], *(each.ranks for each in tiers)])
        made["first"] = prefix_sum(np.array([len(each.ranks) for each in tiers], np.int64))[:-1]
        self.unreached = np.zeros(context.size, bool)
        for row, tier in zip(made, tiers, strict=True):
            missing = tier.ranks[tier.addresses == 0]
            self.unreached[missing] = True
            if len(missing) and context.has_gets and not tier.mine:
                raise ValueError(
                    f"gather: {tier.name} of PE {missing[0]} is not symmetric, and not reached by pointer"
                )
            row["row_bytes"], row["mine"], row["count"] = tier.row_bytes, tier.mine, len(tier.ranks)
            row["inverse"] = -((-1 << 64) // len(tier.ranks)) if len(tier.ranks) > 1 else 0
            row["unit"] = _unit(tier, value_bytes)
        self.native = context.native.Gathers(
            prefix_sum(np.array([each.slots for each in tiers], np.int64))[:-1].tolist(),
            made.view(np.uint8),
            [int(each) for tier in tiers for each in tier.addresses],
            ranks.astype(int).tolist(),
            format.row_bytes,
            value_bytes,
        )
        self.lanes = cuda_grid.lanes_of(-(-value_bytes // int(made["unit"].min(initial=PACK))))
        on_host = any(each.on_host for each in tiers)
        self.most = cuda_grid.link_blocks(context.limits, THREADS) if on_host else cuda_grid.MOST_BLOCKS
        self.reads: dict[int, FileReads] = {}


def _unit(tier: Tier, value_bytes: int) -> int:
    """Return how many bytes of a tier's rows a thread reads at once.

    Raises ValueError for rows at odd addresses.
    """
    begins = int(np.bitwise_or.reduce(tier.addresses)) | tier.row_bytes
    for unit in (PACK, 4, 2):
        if begins % unit == 0 and (unit == PACK or value_bytes % unit == 0):
            return unit
    raise ValueError(f"gather: rows of {tier.name} lie at odd addresses, and GPUs read 2 bytes at once")


class Gathers:
    """Gathers rows for one rank. Descriptions of tables in device memory are cached."""

    def __init__(self) -> None:
        self._tables: WeakKeyDictionary[TieredRows, _Table] = WeakKeyDictionary()
        self._staging: Rows | None = None
        # By stream, numbers of the last call, which launches may still read.
        self._sent: dict[int, list[Any]] = {}

    def by_number(self, context: DeviceContext, src: TieredRows, ids: NDArray[np.int64], out: Any) -> None:
        """Implement `Backend.gather` for ids in a NumPy array, and count the rows read from each tier."""
        outside = (ids < 0) | (ids >= src.rows)
        if outside.any():
            raise IndexError(f"row {ids[outside][0]}, and rows are 0 to {src.rows - 1}")
        slots = ids if src.slots is None else src.slots[ids].astype(np.int64)
        firsts = prefix_sum(np.array([each.slots for each in src.tiers], np.int64))
        end = firsts[-1] + (0 if src.file is None else src.file.count - src.first)
        if ((slots < 0) | (slots >= end)).any():
            raise ValueError("gather: slots that no tier has")
        tier = np.zeros(len(slots), np.int64)
        for first in firsts[1:]:  # faster than a search for each row
            tier += slots >= first
        read, own, got = np.bincount(tier, minlength=len(firsts)), 0, 0
        for number, each in enumerate(src.tiers):
            rows = read[number : number + 1]
            if len(each.ranks) > 1:
                places = slots[tier == number] - firsts[number]
                rows = np.bincount(places % len(each.ranks), minlength=len(each.ranks))
            own += int(rows[each.ranks == context.rank].sum())
            got += int(rows[each.addresses == 0].sum())
        filed, sent = np.flatnonzero(tier == len(src.tiers)), list[Any]()
        if src.file is not None:
            src.file.check()
        if len(filed):
            filed = filed[np.argsort(slots[filed], kind="stable")]
            reads, stream = self._table(context, src).reads, context.arrays.stream()
            if stream not in reads:
                reads[stream] = FileReads(context, src)
            reads[stream].begin(context, slots[filed] - firsts[-1])
        if src.tiers:  # even where all rows are the file's: it may be the call that is collective
            near = slots if not len(filed) else np.where(tier < len(src.tiers), slots, -1)
            sent.append(context.arrays.sent(near))
            self.anywhere(context, src, sent[-1], out)
        if len(filed):
            arrived, seconds = reads[stream].finish()
            context.stream.meter.count_stored(len(filed), src.format, seconds)
            places = np.full(len(ids), -1)
            places[filed] = np.arange(len(filed))
            sent.append(context.arrays.sent(places))
            self.rows(context, arrived, sent[-1], out)
            reads[stream].used()
        self._sent[context.arrays.stream()] = sent
        src.read += read
        context.stream.meter.count(own, len(ids) - own, src.format, got)

    def anywhere(self, context: DeviceContext, src: TieredRows, ids: Any, out: Any) -> None:
        """Gather as `rows` does, but ``out`` may be in any memory of the GPU.

        If no pointer reaches some rows, they arrive in symmetric memory first, and the first call is
        collective.
        """
        if not context.has_gets or not self._table(context, src).unreached.any():
            self.rows(context, src, ids, out)
            return
        held = self._staged(context, src.format)
        for first in range(0, len(ids), len(held)):
            part = ids[first : first + len(held)]
            self.rows(context, src, part, held[: len(part)])
            out[first : first + len(part)] = held[: len(part)]

    def _staged(self, context: DeviceContext, format: RowFormat) -> Any:
        """Return symmetric rows [n, dim], as many as STAGED_BYTES hold, for `anywhere`.

        The first call is collective.
        """
        if self._staging is None:
            packs = RowFormat(np.dtype(np.uint8), ROW_ALIGNMENT)
            self._staging = context.symmetric(STAGED_BYTES // ROW_ALIGNMENT, packs)
        count = np.full(context.size, STAGED_BYTES // format.row_bytes)
        return replace(self._staging, format=format, counts=count).local

    def rows(self, context: DeviceContext, src: TieredRows, ids: Any, out: Any) -> None:
        """Copy rows of a table: out[i] = the row in slot ids[i]; unchanged if ids[i] is negative.

        Args:
            ids: int64 [n], a tensor on the device. Its values are not checked, since that would wait for the
                GPU.
            out: [n, dim], padded rows of the table's dtype. If no pointer reaches some rank's rows, it must be
                in symmetric memory, to which the transport can write.
        """
        memory, count, table = context.arrays, len(ids), self._table(context, src)
        ids_at = flat(memory, "ids", ids, count, "int64")
        context.check_reached("gather", table.unreached)
        out_at = padded_rows(memory, "out", out, count, src.format)
        table.native.rows(ids_at, count, out_at, context.spread(table.lanes, count, most=table.most))

    def _table(self, context: DeviceContext, src: TieredRows) -> _Table:
        if src not in self._tables:
            self._tables[src] = _Table(context, src)
        return self._tables[src]


def unreached(rows: Rows) -> NDArray[np.bool_]:
    """Return a mask of the ranks that have rows which no pointer from this rank reaches, bool [P]."""
    return (rows.addresses == 0) & (rows.counts > 0)


def drop_rows(context: DeviceContext, x: Any, out: Any, ids: Any, key: RngKey) -> None:
    """Apply dropout to dense rows, as `Backend.dropout`."""
    memory = context.arrays
    dtype, shape, _ = memory.kind(out)
    lanes, _ = cuda_grid.shape(RowFormat(np.dtype(dtype), shape[1]))
    getattr(context.native, f"dropout_{checked_name(dtype)}")(
        *rows_of(memory, "x", x, dtype, shape),
        *rows_of(memory, "out", out, dtype, shape),
        flat(memory, "ids", ids, shape[0], "int64"),
        *shape,
        native_key(memory, context.native, key),
        context.spread(lanes, shape[0]),
    )


def drop_values(
    context: DeviceContext, csr: tuple[Any, Any], values: Any, out: Any, ids: Any, key: RngKey
) -> None:
    """Apply dropout to the stored values of a CSR matrix, as `Backend.dropout` with ``csr``."""
    memory, (indptr, indices) = context.arrays, csr
    (count,), (stored,) = memory.kind(ids)[1], memory.kind(values)[1]
    context.native.dropout_csr(
        flat(memory, "indptr", indptr, count + 1, "int64"),
        flat(memory, "indices", indices, stored, "int32"),
        flat(memory, "values", values, stored),
        flat(memory, "out", out, stored),
        flat(memory, "ids", ids, count, "int64"),
        count,
        native_key(memory, context.native, key),
        context.spread(CSR_LANES, count),
    )


def native_key(memory: DeviceArrays, native: Any, key: RngKey) -> Any:
    """Return ``key`` as an object of the native module."""
    epoch_at = flat(memory, "epoch_at", key.epoch_at, 1, "int32")
    return native.RngKey(key.p, key.seed, key.epoch, key.stream, epoch_at)
