"""Features that are larger than memory, or than fast memory: a tensor whose rows lie in tiers."""

from __future__ import annotations

import operator
from contextlib import nullcontext
from mmap import ALLOCATIONGRANULARITY
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from .. import sizes
from ..data import schema
from ..data.store import open_graph
from ..errors import InputError
from ..plan import scores
from ..runtime import cores, mpi
from ..runtime.tiers import FileRows, Tier, TieredRows, placed
from ..runtime.watchdog import collective
from .workspace import as_array

NEAR, HOST, FILE, ARRAY = "near", "host", "file", "array"


class TieredTensor:
    """A read-only tensor [N, dim] whose rows are read by number from wherever they lie.

    Rows of the highest scores are copied into memory: ``near`` bytes of each rank, then ``host`` bytes that the ranks
    of a node share. The rest stays in its file or array. Made by `open`, `from_numpy` or `from_torch`, and closed by
    its end as a context manager; both are collective::

        with mgg.TieredTensor.open("my.h5", near="1G", host="16G") as x:
            for batch in loader:
                out = model(x[batch.n_id], batch.edge_index)

    source: array [N, dim] of floats or integers, or rows of a file. near, host: bytes, or sizes as "4G". score: [N],
    for example expected visits. [default: rows come by their numbers, which `mgg partition --order visits` has given by
    such a score] comm: communicator of all ranks. [default: the launcher's, or this process alone] Raises InputError,
    the same on all ranks, for tiers and scores that do not fit.
    """

    @collective("TieredTensor")
    def __init__(
        self,
        source: NDArray[Any] | FileRows,
        *,
        near: int | str = 0,
        host: int | str = 0,
        score: ArrayLike | None = None,
        comm: Any = None,
    ) -> None:
        if comm is None and mpi.launched():
            comm = mpi.world()
        self._node = None if comm is None or comm.size == 1 else mpi.node(comm)
        self._file = source if isinstance(source, FileRows) else None
        array = None if isinstance(source, FileRows) else source
        self._window: mpi.SharedWindow | None = None
        self._closed = False
        with nullcontext() if comm is None else mpi.agree(comm):
            count, dim = (source.count, source.dim) if isinstance(source, FileRows) else _shape(source)
            self.shape, self.dtype = torch.Size([count, dim]), _torch_type(source.dtype)
            order = None if score is None else _order(score, count)
            ranks = 1 if self._node is None else self._node.size
            rows = _rows_of_tiers({NEAR: near, HOST: host}, dim * source.dtype.itemsize, count, ranks)
        kept, rest = sum(rows.values()), [] if array is None else [Tier(ARRAY, [array])]
        whole = TieredRows(count, rest, self._file)
        first = np.arange(kept) if order is None else order[:kept]
        tiers = [
            Tier(name, [make(whole, numbers, dim, source.dtype)])
            for name, make, numbers in (
                (NEAR, _copied, first[: rows[NEAR]]),
                (HOST, self._shared, first[rows[NEAR] :]),
            )
            if len(numbers)
        ]
        if order is None and array is not None:
            rest = [Tier(ARRAY, [array[kept:]])]
        slots = None if order is None or not kept else placed(order, kept)
        skipped = kept if order is None else 0
        self._rows = TieredRows(count, [*tiers, *rest], self._file, slots=slots, first=skipped)

    @classmethod
    def open(cls, path: str | Path, **how: Any) -> TieredTensor:
        """Return the features of a graph file, which stay in it but for the tiers. how: as in the constructor.

        Raises InputError for a file without dense features.
        """
        with open_graph(path) as opened:
            if opened.x_dtype is None:
                raise InputError(f"{path}: has no dense features (/{schema.X})")
            offset = opened.offset(schema.X)
            return cls._of_file(Path(path), offset, opened.nodes, opened.features, opened.x_dtype, **how)

    @classmethod
    def from_numpy(cls, array: NDArray[Any], **how: Any) -> TieredTensor:
        """Return a tensor over an array [N, dim], which may not change. A memmap is read as a file, and not copied."""
        mapped: Any = array
        if (
            not isinstance(array, np.memmap)
            or mapped.mode == "c"
            or array.ndim != 2
            or not array.flags.c_contiguous
        ):
            return cls(array, **how)
        begin = mapped.offset - mapped.offset % ALLOCATIONGRANULARITY  # of what is mapped, in the file
        offset = begin + array.ctypes.data - np.frombuffer(mapped._mmap, np.uint8).ctypes.data
        return cls._of_file(Path(mapped.filename), offset, len(array), array.shape[1], array.dtype, **how)

    @classmethod
    def _of_file(
        cls, path: Path, offset: int, count: int, dim: int, dtype: np.dtype[Any], **how: Any
    ) -> TieredTensor:
        rows = FileRows(path, offset, count, dim, dtype)
        try:
            return cls(rows, **how)
        except BaseException:
            rows.close()
            raise

    @classmethod
    def from_torch(cls, tensor: Tensor, **how: Any) -> TieredTensor:
        """Return a tensor over another one on the CPU, which may not change."""
        return cls(as_array(tensor), **how)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        tiers = ", ".join(f"{each.name} {each.slots:,}" for each in self._rows.tiers)
        where = tiers if self._file is None else f"{tiers}{', ' if tiers else ''}{self._file.path}"
        return f"TieredTensor({list(self.shape)}, {self.dtype}, rows: {where})"

    def __getitem__(self, ids: Any) -> Tensor:
        """Return rows by number, [n, dim]: for integers in a tensor, array, list or slice, or a mask [N]."""
        if isinstance(ids, slice):
            ids = np.arange(*ids.indices(len(self)))
        return self.gather(ids)

    def gather(self, ids: Any, out: Tensor | None = None) -> Tensor:
        """Return rows by number, in ``out`` [n, dim] if it is given. ids: as in ``tensor[ids]``. Not collective.

        Raises IndexError for a number outside of the tensor, TypeError for numbers that are no integers, and ValueError
        for an ``out`` that does not fit.
        """
        if self._closed:
            raise ValueError("the tensor is closed")
        numbers = _numbers(ids, len(self))
        if out is None:
            out = torch.empty(len(numbers), self.shape[1], dtype=self.dtype)
        elif out.shape != (len(numbers), self.shape[1]) or out.dtype != self.dtype or out.is_cuda:
            raise ValueError(
                f"out is {list(out.shape)} of {out.dtype} on {out.device}; expected "
                f"{[len(numbers), self.shape[1]]} of {self.dtype} on the CPU"
            )
        self._rows.gather(numbers, as_array(out), threads=torch.get_num_threads())
        return out

    def stats(self) -> dict[str, dict[str, int]]:
        """Return what this rank has read so far, by tier: {"near": {"rows": .., "bytes": ..}, ..}."""
        names = [each.name for each in self._rows.tiers] + ([FILE] if self._file is not None else [])
        row_bytes = self.shape[1] * self.dtype.itemsize
        read = zip(names, self._rows.read.tolist(), strict=False)
        return {name: {"rows": rows, "bytes": rows * row_bytes} for name, rows in read}

    @collective("TieredTensor.close")
    def close(self) -> None:
        """Close the file and free the tiers; tensors that were returned stay. Collective where ranks share rows."""
        self._closed = True
        if self._file is not None:
            self._file.close()
        if self._window is not None:
            window, self._window = self._window, None
            window.free()

    def __enter__(self) -> TieredTensor:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _shared(
        self, whole: TieredRows, numbers: NDArray[np.int64], dim: int, dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Return copies of rows that the ranks of a node share, [n, dim]. Collective over the node."""
        node = self._node
        if node is None:
            return _copied(whole, numbers, dim, dtype)
        self._window = mpi.SharedWindow(node, len(numbers) * dim * dtype.itemsize, one=True)
        rows: NDArray[Any] = self._window.buffer(0).view(dtype).reshape(len(numbers), dim)
        cuts = len(numbers) * np.arange(node.size + 1) // node.size  # each rank copies a part
        part = slice(cuts[node.rank], cuts[node.rank + 1])
        with mpi.agree(node):
            whole.gather(numbers[part], rows[part], threads=torch.get_num_threads())
        self._window.sync()
        node.Barrier()
        self._window.sync()
        return rows


def _copied(whole: TieredRows, numbers: NDArray[np.int64], dim: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return copies of rows, [n, dim]."""
    rows = np.empty((len(numbers), dim), dtype)
    whole.gather(numbers, rows, threads=torch.get_num_threads())
    return rows


def _shape(source: NDArray[Any]) -> tuple[int, int]:
    """Return the shape of an array of rows. Raises InputError for anything but numbers [N, dim] in a row each."""
    if source.ndim != 2 or (source.dtype.kind not in "fiu" and source.dtype.name != "bfloat16"):
        raise InputError(f"rows are {source.dtype} {list(source.shape)}; expected numbers [N, dim]")
    if source.size and (
        source.strides[1] != source.itemsize or source.strides[0] < source.shape[1] * source.itemsize
    ):
        raise InputError(
            "the values of a row lie apart, or rows go backwards; pass np.ascontiguousarray(...)"
        )
    return source.shape[0], source.shape[1]


def _torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    """Return torch's type of a NumPy type. Raises InputError where torch has none, or for foreign byte order."""
    found = getattr(torch, dtype.name, None)
    if not isinstance(found, torch.dtype) or not dtype.isnative:
        raise InputError(f"rows are {dtype}; expected a type that torch has, in this machine's byte order")
    return found


def _order(score: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return rows by descending score. Raises InputError unless there is a number for each row."""
    found = as_array(score) if isinstance(score, Tensor) else np.asarray(score)
    if found.shape != (count,) or found.dtype.kind not in "fiub" or not np.isfinite(found).all():
        raise InputError(
            f"score is {found.dtype} {list(found.shape)}; expected a finite number for each of {count:,} rows"
        )
    return scores.order(found.astype(np.int64) if found.dtype.kind in "ub" else found)


def _rows_of_tiers(room: dict[str, int | str], row_bytes: int, count: int, ranks: int) -> dict[str, int]:
    """Return how many rows each tier holds. room: bytes by name. ranks: of this node.

    Raises InputError for a size that is none, and for more memory than is available.
    """
    rows, left = {}, count
    for name, given in room.items():
        try:
            nbytes = sizes.parse(given) if isinstance(given, str) else operator.index(given)
        except (ValueError, TypeError) as error:
            raise InputError(f"{name}: {error}") from error
        if nbytes < 0:
            raise InputError(f"{name} is {nbytes}; expected a number of bytes, or a size as 4G")
        rows[name] = min(left, nbytes // max(1, row_bytes))
        left -= rows[name]
    needed, free = (rows[NEAR] * ranks + rows[HOST]) * row_bytes, cores.memory_available()
    if needed > free:
        raise InputError(
            f"tiers need {sizes.shown(needed)} of this node: near {sizes.shown(rows[NEAR] * row_bytes)} for each of "
            f"{ranks} ranks, host {sizes.shown(rows[HOST] * row_bytes)}; {sizes.shown(free)} are available"
        )
    return rows


def _numbers(ids: Any, count: int) -> NDArray[np.int64]:
    """Return numbers of rows, int64 [n], of anything that indexes a tensor. Raises TypeError for anything else."""
    found = as_array(ids.cpu()) if isinstance(ids, Tensor) else np.asarray(ids)
    if found.dtype.kind == "b" and found.shape == (count,):
        return np.flatnonzero(found)
    if found.size == 0:
        return np.zeros(0, np.int64)
    if found.ndim != 1 or found.dtype.kind not in "iu":
        raise TypeError(f"rows are read by integers [n], and these are {found.dtype} {list(found.shape)}")
    if found.dtype == np.uint64 and found.max() >= 1 << 63:
        raise IndexError(f"row {found.max()}, and rows are 0 to {count - 1}")
    return np.ascontiguousarray(found, np.int64)
