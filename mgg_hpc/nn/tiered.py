"""Features that are larger than memory, or than fast memory: a tensor whose rows lie in tiers."""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
from ..plan.order import inverse
from ..runtime import cores, mpi
from ..runtime.tiers import FileRows, Tier, TieredRows, placed, slot_type
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

    near, host: bytes, or sizes as "4G". score: [N], for example expected visits. [default: rows come as they lie, as
    `mgg partition --order visits` has put them] comm: communicator of all ranks, which pass the same arguments and
    rows. [default: the launcher's, or this process alone] Raises InputError, the same on all ranks, for tiers, scores
    and rows that do not fit, and arguments that differ between ranks.
    """

    @collective("TieredTensor")
    def __init__(
        self,
        find: Callable[[], tuple[NDArray[Any] | FileRows, NDArray[np.integer] | None]],
        *,
        near: int | str = 0,
        host: int | str = 0,
        score: ArrayLike | None = None,
        comm: Any = None,
    ) -> None:
        """Place the rows of a source.

        find: returns an array [N, dim] or the rows of a file, and the place of each row there. [default: its number]
        """
        if comm is None and mpi.launched():
            comm = mpi.world()
        self._comm = comm = None if comm is None or comm.size == 1 else comm
        self._node = None if comm is None else mpi.node(comm)
        self._window: mpi.SharedWindow | None = None
        self._file: FileRows | None = None
        self._closed = False
        with _agreed(comm):
            source, places = find()
            self._file = source if isinstance(source, FileRows) else None
            count, dim = (source.count, source.dim) if isinstance(source, FileRows) else _shape(source)
            self.shape, self.dtype = torch.Size([count, dim]), _torch_type(source.dtype)
            order = None if score is None else _order(score, count)
            ranks = 1 if self._node is None else self._node.size
            rows = _rows_of_tiers({NEAR: near, HOST: host}, dim * source.dtype.itemsize, count, ranks)
            kept, held = sum(rows.values()), [] if isinstance(source, FileRows) else [Tier(ARRAY, [source])]
            # Places of the rows that are copied, the nearest first.
            first = (
                np.arange(kept) if order is None else order[:kept] if places is None else places[order[:kept]]
            )
            whole, shape = TieredRows(count, held, self._file), (dim, source.dtype)
            tiers = []
            if rows[NEAR]:
                tiers.append(Tier(NEAR, [_copied(whole, first[: rows[NEAR]], *shape)]))
        if comm is not None:
            said = (count, dim, source.dtype.name, rows, hashlib.blake2b(first.tobytes()).hexdigest())
            if any(each != said for each in comm.allgather(said)):
                raise InputError(
                    "TieredTensor: rows, tiers or scores differ between ranks; pass the same on all"
                )
        if rows[HOST]:
            tiers.append(Tier(HOST, [self._shared(whole, first[rows[NEAR] :], *shape)]))
        if order is not None and kept:
            slots: NDArray[np.integer] | None = placed(order, kept, places)
        else:
            slots = places
            held = [Tier(ARRAY, [each.rows[0][kept:]]) for each in held]
        skipped = 0 if order is not None and kept else kept
        self._rows = TieredRows(count, [*tiers, *held], self._file, slots=slots, first=skipped)

    @classmethod
    def open(cls, path: str | Path, **how: Any) -> TieredTensor:
        """Return the features of a graph file, by the user's numbers of nodes, as `to_pyg` has them.

        how: as above. Raises InputError for a file without dense features.
        """

        def find() -> tuple[FileRows, NDArray[np.integer] | None]:
            with open_graph(path) as opened:
                if opened.x_dtype is None:
                    raise InputError(f"{path}: has no dense features (/{schema.X})")
                rows = FileRows(
                    Path(path), opened.offset(schema.X), opened.nodes, opened.features, opened.x_dtype
                )
                if schema.PERMUTATION not in opened.contents.datasets:
                    return rows, None
                with opened.compared():
                    ids = opened.checked(schema.PERMUTATION, 0, opened.nodes)
                return rows, inverse(ids).astype(slot_type(2 * opened.nodes))

        return cls(find, **how)

    @classmethod
    def from_numpy(cls, array: NDArray[Any], **how: Any) -> TieredTensor:
        """Return a tensor over an array [N, dim], which may not change. how: as above.

        A memmap of whole rows that writes to its file is read as the file, and not through the map.
        """

        def find() -> tuple[NDArray[Any] | FileRows, None]:
            mapped: Any = array
            of_file = (
                isinstance(array, np.memmap) and mapped._mmap is not None and mapped.filename is not None
            )
            if (
                not of_file
                or mapped.mode == "c"
                or array.ndim != 2
                or not array.size
                or not array.flags.c_contiguous
            ):
                return array, None
            begin = mapped.offset - mapped.offset % ALLOCATIONGRANULARITY  # of what is mapped, in the file
            offset = begin + array.ctypes.data - np.frombuffer(mapped._mmap, np.uint8).ctypes.data
            path = Path(mapped.filename)
            rows = FileRows(path, offset, len(array), array.shape[1], array.dtype)
            if not rows.is_mapped_at(array.ctypes.data):
                raise InputError(f"{path}: is another file now than the one that is mapped; map it again")
            return rows, None

        return cls(find, **how)

    @classmethod
    def from_torch(cls, tensor: Tensor, **how: Any) -> TieredTensor:
        """Return a tensor over another one on the CPU, which may not change. how: as above."""
        return cls(lambda: (as_array(tensor), None), **how)

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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An error of one rank ends the job; closing would wait for the others.
        if self._comm is None or kind is None or issubclass(kind, InputError):
            self.close()

    def _shared(
        self, whole: TieredRows, places: NDArray[Any], dim: int, dtype: np.dtype[Any]
    ) -> NDArray[Any]:
        """Return copies of rows that the ranks of a node share, [n, dim]. Collective."""
        node = self._node
        if node is None:
            return _copied(whole, places, dim, dtype)
        self._window = mpi.SharedWindow(node, len(places) * dim * dtype.itemsize, one=True)
        rows: NDArray[Any] = self._window.buffer(0).view(dtype).reshape(len(places), dim)
        cuts = len(places) * np.arange(node.size + 1) // node.size  # each rank copies a part
        part = slice(cuts[node.rank], cuts[node.rank + 1])
        try:
            with _agreed(self._comm):
                rows[part] = _copied(whole, places[part], dim, dtype)
        except BaseException:
            self._window.free()
            raise
        self._window.sync()
        node.Barrier()
        self._window.sync()
        return rows


def _agreed(comm: Any) -> AbstractContextManager[None]:
    """Return `mpi.agree`, or a context that does nothing where there is one rank."""
    return nullcontext() if comm is None else mpi.agree(comm)


def _copied(whole: TieredRows, places: NDArray[Any], dim: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return copies of rows, [n, dim]."""
    rows = np.empty((len(places), dim), dtype)
    whole.gather(np.ascontiguousarray(places, np.int64), rows, threads=torch.get_num_threads())
    return rows


def _shape(source: NDArray[Any]) -> tuple[int, int]:
    """Return the shape of an array of rows. Raises InputError for anything but numbers [N, dim] in a row each."""
    if not isinstance(source, np.ndarray) or isinstance(source, np.ma.MaskedArray):
        raise InputError(f"rows are a {type(source).__name__}; expected an array [N, dim]")
    if source.ndim != 2 or (source.dtype.kind not in "fiu" and source.dtype.name != "bfloat16"):
        raise InputError(f"rows are {source.dtype} {list(source.shape)}; expected numbers [N, dim]")
    apart = source.shape[1] > 1 and source.strides[1] != source.itemsize
    if source.size and (apart or (len(source) > 1 and source.strides[0] < source.shape[1] * source.itemsize)):
        raise InputError("the values of a row lie apart, or rows overlap; pass np.ascontiguousarray(...)")
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
    return scores.order(found)


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
    if found.size == 0 and found.dtype.kind in "iuf" and found.ndim == 1:  # an empty list has floats
        return np.zeros(0, np.int64)
    mask = isinstance(ids, Tensor) and ids.dtype == torch.uint8  # torch takes these for one
    if isinstance(ids, tuple) or mask or found.ndim != 1 or found.dtype.kind not in "iu":
        raise TypeError(
            f"rows are read by integers [n] or a mask of {count}, and these are {type(ids).__name__} "
            f"{list(found.shape)} of {found.dtype}"
        )
    if found.dtype == np.uint64 and found.max() >= 1 << 63:
        raise IndexError(f"row {found.max()}, and rows are 0 to {count - 1}")
    return np.ascontiguousarray(found, np.int64)
