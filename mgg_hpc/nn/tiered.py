"""Features that are larger than memory, or than fast memory: a tensor whose rows lie in tiers."""

from __future__ import annotations

import hashlib
import operator
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from mmap import ALLOCATIONGRANULARITY
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from ..data import schema
from ..data.graph import csr_from_edges
from ..data.store import open_graph
from ..errors import InputError
from ..plan import scores
from ..plan.layout import RowFormat
from ..plan.order import inverse
from ..runtime import backends, mpi
from ..runtime.backends.arguments import Options
from ..runtime.backends.base import Backend
from ..runtime.backends.host.kernels import HostBackend, SerialBackend
from ..runtime.backends.simulated import World
from ..runtime.tiers.files import FileRows
from ..runtime.tiers.place import (
    AUTO,
    FILE,
    HOST,
    NEAR,
    PEERS,
    Placed,
    Slots,
    Source,
    Zeros,
    agreed,
    format_of,
    rows_of,
)
from ..runtime.watchdog import collective
from .workspace import Workspace, as_array

DEVICES = ("cpu", "cuda")


class TieredTensor:
    """A tensor [N, dim] whose rows are read by number from wherever they lie.

    Rows of the highest scores are copied into memory: ``near`` bytes of each rank, then ``peers`` bytes of each rank,
    whose rows all ranks read, then ``host`` bytes that the ranks of a node share. The rest stays in its file or array.
    Made by `open`, `from_numpy` or `from_torch`, and closed by its end as a context manager; both are collective::

        with mgg.TieredTensor.open("my.h5", near="1G", host="16G") as x:
            for batch in loader:
                out = model(x[batch.n_id], batch.edge_index)

    near, peers, host: bytes, or sizes as "4G". peers = "auto" divides near between both by the expected reads and the
    measured cost of a row of each tier. score: [N], higher for rows that are read more often: `mgg.expected_visits`, or
    counts of an epoch. [default: rows come as they lie, as `mgg partition --order visits` has put them] device: "cpu",
    or "cuda" for tiers near and peers in a GPU's memory, whose kernels read the host's, and for results there. comm:
    communicator of all ranks, which pass the same arguments and rows. [default: the launcher's, or this process alone]
    writable: whether `update` may write rows. No row has a second copy then: all ranks are of one node and a CPU,
    several ranks have no tier near, and rows without a tier lie in a scratch file in ``folder`` [default: the system's
    temporary one; on a tmpfs the file counts as memory]; neither file nor array of the rows is written. Raises
    InputError, the same on all ranks, for tiers, scores and rows that do not fit, and arguments that differ between
    ranks.
    """

    @collective("TieredTensor")
    def __init__(
        self,
        find: Callable[[], tuple[Source, Callable[[], Slots] | None]],
        *,
        near: int | str = 0,
        peers: int | str = 0,
        host: int | str = 0,
        score: ArrayLike | None = None,
        device: str = "cpu",
        writable: bool = False,
        folder: str | Path | None = None,
        comm: Any = None,
    ) -> None:
        """Place the rows of a source.

        find: returns an array [N, dim] or the rows of a file, and a function that returns the place of each row there.
        [default: its number]
        """
        self._comm = comm = ranks_of(comm)
        self._closed, self._failed, self.writable = False, False, writable
        self._rank, self._ranks, of_node = 0, 1, 1
        if comm is not None:
            self._rank, self._ranks, of_node = comm.rank, comm.size, mpi.node(comm).size
        scratch = Path(folder or tempfile.gettempdir()) if writable else None
        with agreed(comm):
            source, places = find()
            self._file = source if isinstance(source, FileRows) else None
            if not isinstance(source, FileRows | Zeros):
                _check_rows(source)
            format = format_of(source)
            self.shape, self.dtype = torch.Size([len(source), format.dim]), _torch_type(format.dtype)
            room = rows_of({NEAR: near, PEERS: peers, HOST: host}, format)
            given = None if score is None else _scores(score, len(source))
            if device not in DEVICES:
                raise InputError(f"device: {device!r} is none of {', '.join(DEVICES)}")
            if given is None and peers == AUTO:
                raise InputError(f'peers = "{AUTO}" needs a score, by which near is divided; pass bytes')
            if writable:
                _check_writable(self._ranks, of_node, device, room)
            elif folder is not None:
                raise InputError(
                    "folder is for the scratch file of writable=True, and the tensor is read-only"
                )
        if comm is not None:
            digest = None if given is None else hashlib.blake2b(np.ascontiguousarray(given).data).hexdigest()
            said = (self.shape, format.dtype.name, room, device, digest, writable)
            if any(each != said for each in comm.allgather(said)):
                raise InputError(
                    "TieredTensor: rows, tiers or scores differ between ranks; pass the same on all"
                )
        self._backend = backend_for(comm, device, shared=room[PEERS] != 0)
        with backends.closed_on_error(self._backend.memory.close):
            self._placed = Placed(
                self._backend, comm, source, room, score=given, places=places, scratch=scratch
            )
        self._table, self._workspace = self._placed.table, Workspace(self._backend, varying=True)
        if device != "cpu":
            self.gather([])  # the first call may allocate, which all ranks do together

    @classmethod
    def open(cls, path: str | Path, **how: Any) -> TieredTensor:
        """Return the features of a graph file, by the user's numbers of nodes, as `to_pyg` has them.

        how: as above. Raises InputError for a file without dense features.
        """

        def places() -> Slots:
            with open_graph(path) as opened, opened.compared():
                return inverse(opened.checked(schema.PERMUTATION, 0, opened.nodes))

        def find() -> tuple[FileRows, Callable[[], Slots] | None]:
            with open_graph(path) as opened:
                if opened.x_dtype is None:
                    raise InputError(f"{path}: has no dense features (/{schema.X})")
                rows = FileRows(
                    Path(path), opened.offset(schema.X), opened.nodes, opened.features, opened.x_dtype
                )
                return rows, places if schema.PERMUTATION in opened.contents.datasets else None

        return cls(find, **how)

    @classmethod
    def from_numpy(cls, array: NDArray[Any], **how: Any) -> TieredTensor:
        """Return a tensor over an array [N, dim], which may not change. how: as above.

        A memmap of whole contiguous rows, read-only or not, is read as its file, and not through the map. Maps of mode
        "c", which may differ from their files, are arrays.
        """

        def find() -> tuple[NDArray[Any] | FileRows, None]:
            mapped: Any = array
            of_file = isinstance(array, np.memmap) and None not in (mapped._mmap, mapped.filename)
            if not of_file or mapped.mode == "c":
                return array, None
            if array.ndim != 2 or not array.size or not array.flags.c_contiguous:
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

        def find() -> tuple[NDArray[Any], None]:
            of_torch = isinstance(tensor, Tensor)
            if not of_torch or tensor.layout != torch.strided or tensor.device.type != "cpu":
                kind = f"{tensor.layout} on {tensor.device}" if of_torch else type(tensor).__name__
                raise InputError(
                    f"from_torch: expected a dense tensor [N, dim] on the CPU, and this is {kind}"
                )
            try:
                return as_array(tensor), None
            except TypeError as error:  # a type that NumPy has not
                raise InputError(f"from_torch: rows are {tensor.dtype}: {error}") from error

        return cls(find, **how)

    @classmethod
    def zeros(cls, rows: int, dim: int, dtype: torch.dtype | None = None, **how: Any) -> TieredTensor:
        """Return a writable tensor of zeros [rows, dim], as for embedding tables. how: as above."""
        writable = how.pop("writable", True)

        def find() -> tuple[Zeros, None]:
            try:
                shape = operator.index(rows), operator.index(dim)
                kind = as_array(torch.empty(0, dtype=dtype or torch.get_default_dtype())).dtype
            except TypeError as error:
                raise InputError(f"zeros({rows!r}, {dim!r}, {dtype}): {error}") from error
            if shape[0] < 0 or shape[1] < 1:
                raise InputError(f"rows are [{rows}, {dim}]; expected at least one column")
            if max(1, shape[0]) * RowFormat(kind, shape[1]).row_bytes >= 1 << 63:
                raise InputError(f"rows are {kind} [{rows}, {dim}]; expected less than 2^63 bytes")
            if writable is not True:
                raise InputError(f"writable is {writable!r}; zeros are for writing, so leave it out")
            return Zeros(*shape, kind), None

        return cls(find, writable=True, **how)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        tiers = ", ".join(f"{each.name} {each.slots:,}" for each in self._table.tiers)
        file = self._table.file
        where = tiers if file is None else f"{tiers}{', ' if tiers else ''}{file}"
        return f"TieredTensor({list(self.shape)}, {self.dtype}, rows: {where})"

    def __getitem__(self, ids: Any) -> Tensor:
        """Return rows by number, [n, dim]: for integers in a tensor, array, list or slice, or a mask [N]."""
        return self.gather(ids)

    def gather(self, ids: Any, out: Tensor | None = None) -> Tensor:
        """Return rows by number, in ``out`` [n, dim] if it is given. ids: as in ``tensor[ids]``. Not collective.

        Raises IndexError for a number outside of the tensor, TypeError for numbers that are no integers, ValueError for
        an ``out`` that does not fit, and InputError for a file that has changed or a row of it that cannot be read.
        """
        if self._closed:
            raise ValueError("the tensor is closed")
        numbers, device = _numbers(ids, len(self)), self._backend.capabilities.device
        shape = [len(numbers), self.shape[1]]
        if out is not None and not isinstance(out, Tensor):
            raise ValueError(f"out is a {type(out).__name__}; expected a torch.Tensor")
        if out is not None and (list(out.shape), out.dtype, out.device.type) != (shape, self.dtype, device):
            raise ValueError(
                f"out is {list(out.shape)} of {out.dtype} on {out.device}; expected {shape} of {self.dtype} on {device}"
            )
        if device != "cpu":
            found = self._workspace.rows(len(numbers), self.shape[1], self.dtype)
        else:
            found = torch.empty(shape, dtype=self.dtype) if out is None else out
            threads = torch.get_num_threads()  # which differ in processes that load data
            if self._backend.options.threads != threads:
                self._backend.options = replace(self._backend.options, threads=threads)
        with self._of_this_rank():
            self._backend.gather(self._table, numbers, as_array(found))
        if device == "cpu":
            return found
        return found.contiguous() if out is None else out.copy_(found)

    @property
    def owned(self) -> range:
        """Rows that this rank may write: of P ranks, rank p owns rows N p // P .. N (p + 1) // P - 1."""
        return range(len(self) * self._rank // self._ranks, len(self) * (self._rank + 1) // self._ranks)

    def update(self, ids: Any, rows: Tensor | NDArray[Any]) -> None:
        """Set rows of ``owned`` by number; of equal numbers the last one counts. Not collective.

        This rank reads them as soon as the call returns, others after a barrier of ``comm``; processes that were forked
        before, such as workers of a DataLoader, may keep the old values of rows in memory. ids: as in `gather`. rows:
        [n, dim] of the tensor's dtype. Raises ValueError for a read-only or closed tensor, rows of other ranks, and
        ``rows`` that do not fit, IndexError and TypeError as `gather`, all before anything is written; and InputError
        where the scratch file cannot be written.
        """
        if self._closed or not self.writable:
            raise ValueError(f"the tensor is {'closed' if self._closed else 'read-only; pass writable=True'}")
        numbers, own = _numbers(ids, len(self)), self.owned
        given: NDArray[Any] = as_array(rows.detach().cpu()) if isinstance(rows, Tensor) else np.asarray(rows)
        expected = [len(numbers), self.shape[1]]
        if list(given.shape) != expected or given.dtype != self._table.format.dtype:
            raise ValueError(
                f"rows are {list(given.shape)} of {given.dtype}; expected {expected} of {self.dtype}"
            )
        others = numbers[(numbers < own.start) | (numbers >= own.stop)]
        if len(others) and 0 <= (number := others[0]) < len(self):
            raise ValueError(
                f"row {number} is another rank's; rank {self._rank} owns rows {own.start} to {own.stop - 1}"
            )
        with self._of_this_rank():
            cast(HostBackend, self._backend).update(self._table, numbers, np.ascontiguousarray(given))

    @contextmanager
    def _of_this_rank(self) -> Iterator[None]:
        """Record a file error within the context as an error of this rank, which other ranks need not have."""
        try:
            yield
        except InputError:
            self._failed = True
            raise

    def stats(self) -> dict[str, dict[str, int]]:
        """Return what this rank has read so far, by tier: {"near": {"rows": .., "bytes": ..}, ..}."""
        names = [each.name for each in self._table.tiers] + ([FILE] if self._table.file is not None else [])
        row_bytes = self.shape[1] * self.dtype.itemsize
        read = zip(names, self._table.read.tolist(), strict=False)
        return {name: {"rows": rows, "bytes": rows * row_bytes} for name, rows in read}

    @collective("TieredTensor.close")
    def close(self) -> None:
        """Close the file and free the tiers; tensors that were returned stay. Collective where ranks share rows."""
        if not self._closed:
            self._closed = True
            self._placed.close()
            self._backend.memory.close()
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> TieredTensor:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        # An error of one rank ends the job; closing would wait for the others.
        agreed = kind is None or (issubclass(kind, InputError) and not self._failed)
        if self._comm is None or agreed:
            self.close()


def expected_visits(
    edge_index: ArrayLike, train: ArrayLike, num_neighbors: Sequence[int], batch_size: int
) -> NDArray[np.float64]:
    """Return the probability that a batch reads each node's row, float64 [N]: a score for `mgg.TieredTensor`.

    edge_index: integers [2, E], sources and destinations, as PyG's; of DGL ``torch.stack(graph.edges())``. train: bool
    [N], the training nodes. num_neighbors, batch_size: as for `mgg.NeighborLoader` and PyG's; DGL's samplers take
    fanouts in the reverse order. It is computed from the edges alone, before training (SALIENT++, MLSys '23). Raises
    InputError for edges and masks that do not fit, and without training nodes.
    """
    edges, mask = np.asarray(edge_index), np.asarray(train)
    if edges.ndim != 2 or len(edges) != 2 or edges.dtype.kind not in "iu":
        raise InputError(f"edge_index is {edges.dtype} {list(edges.shape)}; expected integers [2, E]")
    if mask.ndim != 1 or mask.dtype.kind != "b":
        raise InputError(f"train is {mask.dtype} {list(mask.shape)}; expected bool [N], a mask of all nodes")
    try:
        nodes, fanouts = len(mask), list(map(operator.index, num_neighbors))
        batch = operator.index(batch_size)
    except TypeError:
        raise InputError(
            f"num_neighbors is {num_neighbors!r}, and batch_size {batch_size!r}; expected whole numbers: a list of one "
            "for each layer, and one"
        ) from None
    outside = (edges < 0) | (edges >= nodes)
    if outside.any():
        raise InputError(f"edge_index has node {edges[outside][0]}, and train is of nodes 0 to {nodes - 1}")
    if not fanouts or any(each < -1 or each == 0 for each in fanouts):
        raise InputError(
            f"num_neighbors is {fanouts}; expected one for each layer, at least 1, or -1 for all"
        )
    if batch < 1:
        raise InputError(f"batch_size is {batch}; it must be at least 1")
    indptr, indices, _ = csr_from_edges(edges[0].astype(np.int64), edges[1].astype(np.int64), nodes)
    pull = scores.puller(nodes, lambda: [(0, indptr, indices)])
    return scores.visits(pull, np.diff(indptr), mask, fanouts, batch, ids=np.arange(nodes))


def ranks_of(comm: Any) -> Any:
    """Return the communicator, by default the launcher's, or None where this process is alone."""
    if comm is None and mpi.launched():
        comm = mpi.world()
    return None if comm is None or comm.size == 1 else comm


def backend_for(comm: Any, device: str, *, shared: bool) -> Backend:
    """Return the backend that reads rows. Collective. shared: ranks read each other's rows."""
    threads = torch.get_num_threads()
    if device == "cpu" and (comm is None or not shared):
        return SerialBackend(0, World(1), Options(backends.DEFAULT_GEOMETRY, threads))
    if comm is None:
        from mpi4py import MPI

        comm = MPI.COMM_SELF
    chosen = backends.choose_cpu("auto", comm) if device == "cpu" else backends.choose("cuda", comm)
    return backends.make(chosen, comm, threads=threads)


def _check_writable(ranks: int, of_node: int, device: str, room: Mapping[str, int]) -> None:
    """Raise InputError for tiers that `update` cannot write to, or that hold copies of rows on several ranks.

    ranks: number of all ranks. of_node: number of ranks on this node. room: number of rows by tier, -1 for
    "auto".
    """
    if device != "cpu":
        raise InputError(f'writable=True is for device="cpu", and it is "{device}"')
    if of_node < ranks:
        raise InputError("writable=True is for the ranks of one node; pass a communicator of each node")
    if ranks > 1 and (room[NEAR] or room[PEERS] < 0):
        raise InputError(
            f"{NEAR} holds copies of rows on each rank, which update would not change; with writable=True and several "
            f"ranks pass bytes for {PEERS} and {HOST}"
        )


def _check_rows(source: NDArray[Any]) -> None:
    """Raise InputError unless ``source`` is an array of numbers [N, dim] with contiguous rows."""
    if not isinstance(source, np.ndarray) or isinstance(source, np.ma.MaskedArray):
        raise InputError(f"rows are a {type(source).__name__}; expected an array [N, dim]")
    if source.ndim != 2:
        raise InputError(f"rows are {source.dtype} {list(source.shape)}; expected numbers [N, dim]")
    apart = source.shape[1] > 1 and source.strides[1] != source.itemsize
    if source.size and (apart or (len(source) > 1 and source.strides[0] < source.shape[1] * source.itemsize)):
        raise InputError("the values of a row lie apart, or rows overlap; pass np.ascontiguousarray(...)")


def _torch_type(dtype: np.dtype[Any]) -> torch.dtype:
    """Return torch's type of a NumPy type of real numbers. Raises InputError for others, or foreign byte order."""
    found, real = getattr(torch, dtype.name, None), dtype.kind in "fiu" or dtype.name == "bfloat16"
    if not real or not isinstance(found, torch.dtype) or not dtype.isnative:
        raise InputError(
            f"rows are {dtype}; expected a type of real numbers that torch has, in this machine's byte order"
        )
    return found


def _scores(score: ArrayLike, count: int) -> NDArray[Any]:
    """Return scores [N] of rows. Raises InputError unless there is a number for each row."""
    found: NDArray[Any] = as_array(score) if isinstance(score, Tensor) else np.asarray(score)
    if found.shape != (count,) or found.dtype.kind not in "fiub" or not np.isfinite(found).all():
        raise InputError(
            f"score is {found.dtype} {list(found.shape)}; expected a finite number for each of {count:,} rows"
        )
    return found


def _numbers(ids: Any, count: int) -> NDArray[np.int64]:
    """Convert an index to numbers of rows, int64 [n]. Raises TypeError for what cannot index rows.

    count: number of rows. Raises IndexError for any number if there are no rows, and for one that exceeds
    int64.
    """
    if isinstance(ids, slice):
        return np.arange(*ids.indices(count))
    found = as_array(ids.cpu()) if isinstance(ids, Tensor) else np.asarray(ids)
    if found.dtype.kind == "b" and found.shape == (count,):
        return np.flatnonzero(found)
    if found.size == 0 and found.dtype.kind in "iuf" and found.ndim == 1:  # an empty list has floats
        return np.zeros(0, np.int64)
    mask = isinstance(ids, Tensor) and ids.dtype == torch.uint8  # torch takes these for one
    if isinstance(ids, tuple) or mask or found.ndim != 1 or found.dtype.kind not in "iu":
        one = found.ndim == 0 and found.dtype.kind in "iu"
        given = f"{type(ids).__name__} {list(found.shape)} of {found.dtype}"
        raise TypeError(
            f"rows are read by integers [n] or a mask of {count}, and "
            + (f"{found} is one integer: pass [{found}]" if one else f"these are {given}")
        )
    if not count:
        raise IndexError(f"row {found[0]}, and the tensor has no rows")
    if found.dtype == np.uint64 and found.max() >= 1 << 63:
        raise IndexError(f"row {found.max()}, and rows are 0 to {count - 1}")
    return np.ascontiguousarray(found, np.int64)
