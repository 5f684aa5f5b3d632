"""Exchange of values of rows with the ranks that have these rows in their halo, for traversals."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....plan.layout import RowFormat
from ....plan.workload import HaloLists, prefix_sum
from ... import exchange
from ..arguments import TieredRows
from .context import DeviceCollectives, DeviceContext, DeviceMemory

Fetch = Callable[[TieredRows, Any, Any], None]  # see DeviceBackend.fetch


@dataclass(frozen=True)
class Ranks:
    """This rank's GPU, its memory, all ranks, and how rows of others are fetched."""

    context: DeviceContext
    memory: DeviceMemory
    collectives: DeviceCollectives
    fetch: Fetch


PACK = RowFormat(np.dtype(np.float32), 4)  # unit of fetching: 16 bytes
BYTES_PER_ROW = 60  # of tables and values, for each row that is sent or arrives


@dataclass(frozen=True)
class _Layout:
    """Places of values of one size.

    Attributes:
        place: index of each sent value in the outbox, int64 [n] on the GPU.
        arrived: index of each value of the halo in ``packs``, int64 [H] on the GPU.
        ids: numbers of the packs to fetch, int64 on the GPU.
        packs: rows of PACK that they are fetched into.
        nbytes: bytes sent.
    """

    place: Any
    arrived: Any
    ids: Any
    packs: Any
    nbytes: int


class Crossing:
    """Exchange of values of 4 or 8 bytes, packed by rank into an outbox, from which the others fetch them.

    All calls are collective, and go to the current stream. All ranks must synchronise after each call, once their
    streams have finished it, so that none packs while another one fetches.
    """

    def __init__(
        self, ranks: Ranks, lists: HaloLists, number: NDArray[np.int32], halo: NDArray[np.int32]
    ) -> None:
        """number: int32 [n], of this rank's rows among its sources. halo: int32 [H], of the halo's rows."""
        self._ranks, context = ranks, ranks.context
        self._send, self._receive = lists.send_counts.sum(0), lists.receive_counts.sum(0)
        self._sent, self._halo = (context.upload_bytes(each) for each in (number[lists.send_rows], halo))
        most = -ranks.collectives.least(-int(_packs(self._send, 8).sum()))
        ranks.memory.reserve(most * PACK.row_bytes)
        self._outbox = context.symmetric(most, PACK)
        self._bounds = np.arange(context.size + 1, dtype=np.int64) * most
        self._table = TieredRows.of_ranks(self._outbox, self._bounds)
        self._layouts = {item: self._layout(item) for item in (4, 8)}

    def _layout(self, item: int) -> _Layout:
        ranks, each = self._ranks, PACK.row_bytes // item
        context = ranks.context
        sent, arriving = _packs(self._send, item), _packs(self._receive, item)
        begin = prefix_sum(sent)[:-1]
        ones = np.ones(context.size, np.int64)
        of_others = exchange.send(ranks.collectives.comm, begin, ones)  # where what comes from each begins
        ids = _runs(self._bounds[:-1] + of_others, arriving)
        return _Layout(
            place=context.upload_bytes(_runs(begin * each, self._send)),
            arrived=context.upload_bytes(_runs(prefix_sum(arriving)[:-1] * each, self._receive)),
            ids=context.arrays.uploaded(ids),
            packs=ranks.memory.padded(len(ids), PACK),
            nbytes=int(sent.sum()) * PACK.row_bytes,
        )

    def cross(self, item: int, values: Any, *, all: bool, following: Any = None, found: Any = None) -> int:
        """Replace the halo's values by those of their owners, or only those that are more; return the bytes sent.

        item: bytes of a value. values: [S], compared as unsigned integers. following: uint8 [S], set to 1 where a value
        is replaced; found: int32, set to 1 if any is.
        """
        context, layout = self._ranks.context, self._layouts[item]
        at, native = context.arrays.address, context.native
        count, halo = int(self._send.sum()), int(self._receive.sum())
        native.pack_values(
            item, count, at(self._sent), at(layout.place), at(values),
            int(self._outbox.addresses[context.rank]), context.spread(1, count),
        )  # fmt: skip
        self._ranks.fetch(self._table, layout.ids, layout.packs)
        native.arrive_values(
            item, halo, at(self._halo), at(layout.arrived), at(layout.packs), at(values), all,
            0 if following is None else at(following), 0 if found is None else at(found), context.spread(1, halo),
        )  # fmt: skip
        return layout.nbytes


def _packs(counts: NDArray[np.int64], item: int) -> NDArray[np.int64]:
    """Return how many packs hold so many values each."""
    return -(-counts * item // PACK.row_bytes)


def _runs(begin: NDArray[np.int64], count: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return begin[0], begin[0] + 1, ... of count[0] numbers, then those of begin[1], and so on."""
    return np.repeat(begin - prefix_sum(count)[:-1], count) + np.arange(count.sum())
