"""Arguments of a backend's calls: rows, the operations on them, and how schedules cut the work."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ...plan.layout import RowFormat
from ..tiers.files import FileRows

REDUCTIONS = ("sum", "mean", "max")
BY_WIDTH = -1  # value of Geometry.dist: prefetch `rows_ahead` rows ahead


def rows_ahead(row_bytes: int) -> int:
    """Return how many rows ahead BY_WIDTH prefetches on CPUs: 16 KiB of rows (cuda/python/host_schedule.cpp)."""
    return min(256, max(8, (16 << 10) // row_bytes))


@dataclass(frozen=True)
class Geometry:
    """How a schedule cuts the work (MGG, OSDI '23, sections 4.1 and 5.1).

    On a CPU a block of wpb * ps edges is claimed by one thread, and rows are prefetched ``dist`` edges ahead (or
    BY_WIDTH).

    far_ps: ps of rows that no pointer reaches, which are fetched in smaller partitions (section 4.1's note on several
    machines), or None for ps.
    """

    ps: int
    dist: int
    wpb: int
    far_ps: int | None = None


@dataclass(frozen=True)
class Epilogue:
    """Operations on a destination's sum before it is stored: scale it, add the bias, apply ReLU.

    scale: [n] or None. bias: [dim] or None. Both of the rows' dtype.
    """

    scale: Any = None
    bias: Any = None
    relu: bool = False


@dataclass(frozen=True)
class RngKey:
    """Key of dropout's random draws, together with node and column: seed, epoch, and a stream for each use in a model.

    epoch_at: int32 [1] on the backend's device that holds the same epoch, which CUDA graphs read at each replay, or
    None. CPUs read ``epoch``.
    """

    p: float
    seed: int
    epoch: int
    stream: int
    epoch_at: Any = None


@dataclass(eq=False)
class Rows:
    """Rows of all PEs in one format. ``local`` is this rank's part; kernels read the others.

    addresses: uint64 [P], address of each PE's row 0 in this process's address space, 0 where it is not reachable.
    counts: int64 [P], number of rows of each PE.
    buffer: uint8, this rank's storage: a NumPy array, or a tensor on a GPU. It may be larger than the rows.
    symmetric: whether peers can read the rows.
    """

    format: RowFormat
    addresses: NDArray[np.uint64]
    counts: NDArray[np.int64]
    buffer: Any
    rank: int
    symmetric: bool

    @property
    def local(self) -> Any:
        """This rank's rows, [count, dim], in place: row i starts ``stride`` values after row i - 1."""
        count, format = int(self.counts[self.rank]), self.format
        dtype: Any = format.dtype
        if not isinstance(self.buffer, np.ndarray):
            import torch

            dtype = getattr(torch, dtype.name)
        flat = self.buffer[: count * format.row_bytes].view(dtype)
        return flat.reshape(count, format.stride)[:, : format.dim]

    def shaped(self, dim: int, counts: NDArray[np.int64] | None = None) -> Rows:
        """Return the same storage as rows of another width.

        counts: int64 [P], other numbers of rows. [default: the same] Raises ValueError where such rows do not fit.
        """
        format = self.format if dim == self.format.dim else RowFormat(self.format.dtype, dim)
        counts = self.counts if counts is None else counts
        if int(counts[self.rank]) * format.row_bytes > len(self.buffer):
            raise ValueError(f"rows of width {dim} do not fit storage made for width {self.format.dim}")
        return Rows(format, self.addresses, counts, self.buffer, self.rank, self.symmetric)


@dataclass(frozen=True, eq=False)
class Tier:
    """The next slots of a table, which lie on some ranks in turn: slot s of the tier is row s // R of ranks[s % R].

    name: in statistics. slots: number of slots. addresses: uint64 [R], of each rank's row 0; 0 where no pointer reaches
    it, and rows are fetched. ranks: int64 [R]. row_bytes: from one row to the next. mine: address of this rank's own
    rows of the same symmetric allocation, 0 if it is not symmetric. kept: owner of the memory.
    """

    name: str
    slots: int
    addresses: NDArray[np.uint64]
    ranks: NDArray[np.int64]
    row_bytes: int
    mine: int = 0
    kept: Any = None

    @classmethod
    def of_array(cls, name: str, rows: NDArray[Any], rank: int = 0) -> Tier:
        """Return a tier of this process's rows [n, dim], whose values are contiguous in each row."""
        row_bytes = rows.strides[0] if len(rows) > 1 else rows.shape[1] * rows.itemsize
        return cls(
            name, len(rows), np.array([rows.ctypes.data], np.uint64), np.array([rank]), row_bytes, kept=rows
        )

    @property
    def on_host(self) -> bool:
        """Whether the rows are an array of the host's memory, whatever the backend."""
        return isinstance(self.kept, np.ndarray)


class TieredRows:
    """A table of rows [N, dim] in tiers, the nearest first, and the rest in a file, if there is one.

    rows: N. format: of a row. slots: int32 or int64 [N], the slot of each row; None where a row's number is its slot.
    file: its slots follow those of the tiers. first: row of the file's first slot. read: number of rows that
    `Backend.gather` has read, int64 [tiers + 1], the file's last.
    """

    def __init__(
        self,
        rows: int,
        format: RowFormat,
        tiers: Sequence[Tier],
        file: FileRows | None = None,
        *,
        slots: NDArray[np.integer] | None = None,
        first: int = 0,
    ) -> None:
        self.rows, self.format, self.tiers, self.file = rows, format, tuple(tiers), file
        self.slots, self.first = slots, first
        self.read = np.zeros(len(tiers) + 1, np.int64)

    @classmethod
    def of_ranks(cls, src: Rows, bounds: NDArray[np.int64]) -> TieredRows:
        """Return all ranks' published rows as a table, where rank p's are numbered bounds[p] .. bounds[p + 1] - 1.

        bounds: int64 [P + 1], from 0. Raises ValueError for bounds of more rows than ranks have published.
        """
        counts = np.diff(bounds)
        if (
            len(counts) != len(src.counts)
            or bounds[0] != 0
            or (counts < 0).any()
            or (counts > src.counts).any()
        ):
            raise ValueError(
                f"bounds {bounds.tolist()} are not of ranks that have {src.counts.tolist()} rows"
            )
        mine = int(src.addresses[src.rank]) if src.symmetric else 0
        tiers = [
            Tier(
                f"rank {p}",
                int(counts[p]),
                src.addresses[p : p + 1],
                np.array([p]),
                src.format.row_bytes,
                mine,
                src,
            )
            for p in range(len(counts))
        ]
        return cls(int(bounds[-1]), src.format, tiers)

    def fault(self, slot: int, error: int, what: str = "read") -> InputError:
        """Return the error of a row of the file that could not be read or written.

        error: errno, or 0 at the end of the file.
        """
        assert self.file is not None
        if self.file.scratch:
            row = f"row {slot if self.slots is None else int(np.argmax(self.slots == slot)):,}"
        else:
            row = f"row {slot - sum(each.slots for each in self.tiers) + self.first:,} of it"
        why = os.strerror(error) if error else "the file ends before it"
        return InputError(f"{self.file}: {row} cannot be {what}: {why}")


@dataclass(eq=False)
class ChunkRows(Rows):
    """Rows of a store whose chunks are brought into a buffer, one after another, for one pass (`Backend.stream_rows`).

    A context manager, which ends the pass. It has no rows of this rank's own. stream: loader of the chunks. kept:
    objects that have to live as long as the pass.
    """

    stream: Any
    kept: tuple[Any, ...]

    def __enter__(self) -> ChunkRows:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End the pass."""
        self.stream.close()


@dataclass(frozen=True)
class Options:
    """Options of a backend. geometry: default of how schedules cut the work. threads: of this rank, on CPUs.

    searches: whether a search will call `Backend.retune` with other geometries, for which GPUs reserve memory.
    """

    geometry: Geometry
    threads: int = 1
    searches: bool = False
