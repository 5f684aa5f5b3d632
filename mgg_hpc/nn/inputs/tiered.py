"""Dense features in tiers, for training on batches: the rows that batches read most often lie nearest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data import schema
from ...errors import InputError
from ...plan import scores
from ...runtime import cores, mpi
from ...runtime.backends.base import Backend
from ...runtime.backends.host.kernels import SerialBackend
from ...runtime.backends.simulated import World
from ...runtime.tiers.files import FileRows
from ...runtime.tiers.place import FILE, NEAR, PEERS, Placed, format_of, rows_of
from ...sizes import shown
from ..graph.loading import Part
from ..workspace import Workspace, as_array, row_format
from .features import divide_by_sums
from .host import BLOCK_BYTES, HostFeatures, even_lengths, on_host

# A node of the graph that computing visits, or another score, takes on each rank.
VISITS_BYTES, SCORE_BYTES = 192, 48


@dataclass(frozen=True)
class Reads:
    """The batches by whose reads rows are placed.

    part: this rank's part of the graph, with its edges. score: "visits", "pagerank", "degree", or "none" for rows as
    they lie. train: bool [n], whether rows of this rank are training nodes. fanouts, batch: as train.fanouts and
    train.batch_size.
    """

    part: Part
    score: str
    train: NDArray[np.bool_]
    fanouts: Sequence[int]
    batch: int

    def scores(
        self, comm: Any, *, divides: bool
    ) -> tuple[NDArray[np.float64] | None, NDArray[np.float64] | None]:
        """Return how often a batch is expected to read each row of the graph, [N], and the rows' scores. Collective.

        The former only where it is the score, or divides near. Raises InputError, the same on all ranks, where memory
        has no room for the computation.
        """
        part, by_visits = self.part, divides or self.score == "visits"
        if not by_visits and self.score == "none":
            return None, None
        with mpi.agree(comm):
            asked = part.nodes * (VISITS_BYTES if by_visits else SCORE_BYTES) * mpi.node(comm).size
            if asked > (left := cores.memory_available()):
                raise InputError(
                    f"the scores of {part.nodes:,} nodes need {shown(asked)} of this node's memory, and {shown(left)} "
                    'are available: renumber the rows by mgg partition --order visits, and set features.score = "none"'
                )
        first, rows = int(part.bounds[comm.rank]), part.slice
        degree = np.diff(rows.indptr)
        mine = scores.puller(part.nodes, lambda: [(0, rows.indptr, rows.indices)])

        def pull(values: scores.Values) -> scores.Values:
            out = mine(values)
            mpi.sum_in_rank_order(comm, out)
            return out[first : first + len(degree)]

        def whole(score: scores.Values) -> scores.Values:
            return np.concatenate(comm.allgather(score))

        def total(value: float) -> float:
            return float(sum(comm.allgather(value)))

        how = (self.fanouts, self.batch)
        visits = None
        if by_visits:
            visits = whole(scores.visits(pull, degree, self.train, *how, ids=rows.ids, total=total))
        if self.score == "visits":
            return visits, visits
        if self.score == "pagerank":
            return visits, whole(scores.training_pagerank(pull, degree, self.train, total=total))
        if self.score == "degree":
            return visits, whole(scores.out_degree(pull, len(degree)))
        return visits, None


class TieredFeatures(HostFeatures):
    """Input rows [n, F] of this rank, and those of all ranks by number. Collective to make and to place.

    part: this rank's part of the graph, whose file keeps the rows without a tier. normalize: as
    train.normalize_features. sizes: bytes of the tiers by name (`rows_of`). reads: of the batches. [default: no batches
    are read] Raises InputError, the same on all ranks, for features that cannot be placed.

    expected: share of the reads of batches that each tier is expected to have, by name, once the rows are placed; {}
    where expected visits are not computed.
    """

    def __init__(
        self,
        backend: Backend,
        comm: Any,
        part: Part,
        dtype: torch.dtype,
        normalize: str,
        sizes: Mapping[str, int | str],
        reads: Reads | None = None,
    ) -> None:
        self._backend, self._comm = backend, comm
        self._first, self.shape = int(part.bounds[comm.rank]), (len(part.slice.ids), part.features)
        self._normalize, self.dtype, self._dropout, self.on_device = normalize, dtype, None, False
        with mpi.agree(comm):
            if part.file is None or part.file.x_dtype is None:
                raise InputError(
                    f"{part.path}: [features] is for dense features (/{schema.X}), and it has others"
                )
            offset, stored = part.file.offset(schema.X), part.file.x_dtype
            self._file = FileRows(part.path, offset, part.nodes, part.features, stored)
            self._format = format_of(self._file)
            self._room = rows_of(sizes, self._format)
        part.close()
        self._stored: torch.dtype = getattr(torch, stored.name)
        self._reads = None if reads is None else reads.scores(comm, divides=self._room[PEERS] < 0)
        self.score = "none" if reads is None else reads.score
        self._workspace = Workspace(backend, varying=True)
        self._lengths = even_lengths(self.shape[0], BLOCK_BYTES // self._format.row_bytes)
        self.expected: dict[str, float] = {}
        self._host: SerialBackend | None = None  # reads all rows, where a device holds none of them

    @property
    def scores(self) -> NDArray[np.float64] | None:
        """Scores by which rows will be placed, [N], until they are; None for rows as they lie."""
        return None if self._reads is None else self._reads[1]

    @property
    def symmetric_bytes(self) -> int:
        """Bytes of symmetric memory that `place` allocates on each rank, at most."""
        shared = self._room[PEERS] != 0 and self._comm.size > 1
        rows = min(self._room[NEAR] + max(self._room[PEERS], 0), self._file.count)
        return rows * self._format.row_bytes if shared else 0

    def place(self, reserve: Callable[[int], None] | None = None) -> None:
        """Copy rows into their tiers. Collective. reserve: as in `Placed`."""
        reads, score = self._reads or (None, None)
        self._placed = Placed(
            self._backend, self._comm, self._file, self._room, score=score, reads=reads, reserve=reserve
        )
        self._table, self._reads = self._placed.table, None
        self._backend.stream.finish()  # before another stream reads the rows
        if reads is not None:
            ends = np.cumsum([each.slots for each in self._table.tiers])
            slots = self._table.slots
            tier = np.searchsorted(ends, np.arange(len(reads)) if slots is None else slots, side="right")
            total = np.bincount(tier, reads, minlength=len(ends) + 1)
            self.expected = dict(zip(self.names, (total / max(total.sum(), 1e-300)).tolist(), strict=True))
        backend = self._backend
        if not backend.memory.holds_stores and all(each.on_host for each in self._table.tiers):
            world = World(backend.collectives.size)
            options = replace(backend.options, threads=1)  # several threads gather, each a batch
            self._host = SerialBackend(backend.collectives.rank, world, options)
            self._host.stream.meter = backend.stream.meter

    @property
    def names(self) -> list[str]:
        """Names of the tiers, and of the file."""
        return [*(each.name for each in self._table.tiers), FILE]

    @property
    def rows(self) -> dict[str, int]:
        """Number of rows of each tier, by name."""
        held = {each.name: each.slots for each in self._table.tiers}
        return held | {FILE: self._file.count - sum(held.values())}

    @property
    def nbytes(self) -> int:
        return self._placed.pool_bytes

    @property
    def device_nbytes(self) -> int:
        return max(self._lengths, default=0) * self.shape[1] * (self._stored.itemsize + self.dtype.itemsize)

    @property
    def blocks(self) -> Iterator[Tensor]:  # type: ignore[override]
        """This rank's rows, read in blocks."""
        return (rows for _, rows in self._blocks())

    def taken(self) -> dict[str, float]:
        """Return the share of each tier in what batches of all ranks have read since the last call. Collective."""
        found: NDArray[np.int64] = self._table.read.copy()
        self._table.read[:] = 0
        mpi.sum_in_rank_order(self._comm, found)
        return dict(zip(self.names, (found / max(1, found.sum())).tolist(), strict=True))

    @property
    def by_pointers(self) -> bool:
        """Whether any thread may gather: the host reads all rows through pointers, or from the file."""
        on_host = self._backend.memory.holds_stores
        return on_host and all(bool(each.addresses.all()) for each in self._table.tiers)

    def gather(self, numbers: NDArray[np.int64], workspace: Workspace) -> Tensor:
        """Return rows of any ranks by number, [k, F], in the type of all rows and normalised."""
        found = workspace.rows(len(numbers), self.shape[1], self._stored)
        self._backend.gather(self._table, numbers, as_array(found))
        return self._finished(found, workspace)

    @property
    def read_by_host(self) -> bool:
        """Whether `gather_on_host` reads rows, since no device holds any."""
        return self._host is not None

    def gather_on_host(self, numbers: NDArray[np.int64]) -> Tensor | None:
        """Return rows as they are stored, page-locked and padded, if no device holds any; else None. For any thread."""
        if self._host is None:
            return None
        columns = self.shape[1]
        found = on_host(len(numbers), row_format(columns, self._stored).stride, self._stored)
        self._host.gather(self._table, numbers, as_array(found)[:, :columns])
        return found

    def sent(self, rows: Tensor, workspace: Workspace) -> Tensor:
        """Return what `gather` does from rows of `gather_on_host`, which one copy brings to the device."""
        found = workspace.rows(len(rows), self.shape[1], self._stored)
        found.as_strided(rows.shape, rows.stride()).copy_(rows, non_blocking=True)
        return self._finished(found, workspace)

    def _finished(self, found: Tensor, workspace: Workspace) -> Tensor:
        if self._stored != self.dtype:
            found = workspace.rows(len(found), self.shape[1], self.dtype).copy_(found)
        if self._normalize == "row":
            divide_by_sums(found)
        return found

    def _blocks(self, into: Tensor | None = None) -> Iterator[tuple[slice, Tensor]]:
        # Of an evaluation, which has no dropout. Its reads are not those of batches.
        counted, first = self._table.read.copy(), 0
        for count in self._lengths:
            rows = slice(first, first + count)
            numbers = np.arange(rows.start, rows.stop) + self._first
            try:
                block = self.gather(numbers, self._workspace)
            except InputError as error:
                if self._comm.size == 1:
                    raise
                # It is this rank's own: ranks in the middle of a layer cannot agree on one.
                raise RuntimeError(f"features: {error}") from error
            yield rows, block
            first = rows.stop
        self._table.read[:] = counted

    def close(self) -> None:
        """Free the tiers, but for symmetric rows. Collective."""
        self._placed.close()
        self._file.close()
