"""A graph whose rows are in stores, of which layers hold a part in memory at a time (NGra, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Never

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...data import schema
from ...data.graph import SparseRows
from ...errors import InputError
from ...plan.grid import ROWS
from ...plan.layout import RowFormat
from ...runtime import cores, mpi
from ...runtime.backends.arguments import Rows
from ...runtime.backends.base import Backend
from ...runtime.streaming import store as stores
from ...runtime.streaming.buffer import ChunkBuffer, slot_bytes
from ...runtime.streaming.chains import copy_bandwidth, from_tree, measured_tree
from ...runtime.streaming.files import FileStore, Pages
from ...runtime.streaming.store import Store, WriteBehind
from ..graph.dist_graph import DistGraph
from ..graph.loading import Part
from ..graph.view import GraphView
from ..inputs.features import divide_by_sums, read
from ..inputs.host import Input, lengths
from ..workspace import accumulator, row_format
from .planning import Direction, Grids
from .rows import StorePool, StreamedRows, write
from .spill import Spill

IO_THREADS = 2
LARGE = 256 << 10  # bytes from which freed arrays are returned to the system: the size of blocks of rows
SCHEDULES = ("accumulator", "stage", "destination")


@dataclass(frozen=True)
class Streaming:
    """How a graph is streamed.

    memory: bytes for plans, chunks, and the sums of intervals; on a GPU, of its memory. folder: of scratch files; None
    keeps rows in the host's memory, in addition to ``memory``. direct: read and write files with O_DIRECT. copies: copy
    rows in the host's memory into chunks, as GPUs do, instead of reading them in place. schedule: one of SCHEDULES
    (sweep.py). ahead: load chunks while others are summed, and read and write rows of slow stores meanwhile. rate:
    bytes per second that all stores of a rank read and write at most, for studies; 0 for no limit. chains: which ranks
    load chunks, and which receive them from another rank (`runtime.streaming.chains`): a tree of bandwidths,
    "measured", or "none".
    """

    memory: int
    folder: Path | str | None = None
    direct: bool = True
    copies: bool = False
    schedule: str = "accumulator"
    ahead: bool = True
    rate: float = 0.0
    chains: Mapping[str, Any] | str = "measured"

    def __post_init__(self) -> None:
        if self.schedule not in SCHEDULES:
            raise InputError(f"schedule: {self.schedule!r} is not one of {', '.join(SCHEDULES)}")

    @property
    def in_place(self) -> bool:
        """Whether rows are read in place."""
        return self.folder is None and not self.copies and not self.rate


class StreamedGraph(DistGraph):
    """A rank's part of a graph whose rows stay in stores (`mgg.open(..., streaming=...)`).

    Layers are programs (`nn.saga`) that run in one pass over the edges. Their inputs, as ``x``, and outputs are
    `StreamedRows`. Labels, masks, losses and the rest are as in `DistGraph`. normalize:
    train.normalize_features of a job. block_rows: number of rows that are computed at a time. grids: the grids
    of the layers called so far. swapped: bytes of partial sums that were written out of memory and read back.
    pace: counts the bytes of all stores.
    """

    streams = True

    def __init__(
        self,
        comm: Any,
        part: Part,
        backend: Backend,
        dtype: torch.dtype,
        streaming: Streaming,
        normalize: str = "none",
    ) -> None:
        reads_host, device = backend.memory.holds_stores, backend.capabilities.device
        with mpi.agree(comm):
            if not reads_host and accumulator(dtype) != dtype:
                raise InputError("graphs are streamed through GPUs in float32 (train.dtype)")
            if mpi.node(comm).size != comm.size:
                raise InputError("graphs are streamed on the ranks of one node, and these are on several")
            if streaming.schedule == "destination" and accumulator(dtype) != dtype:
                raise InputError("schedule: the destination order is for float32 and float64")
        if streaming.folder is not None:  # new pages for each block cost as much as sums of rows in memory
            cores.return_freed_memory(LARGE)
        # Threads that read and write slow stores while others compute.
        threads = ThreadPoolExecutor(IO_THREADS) if streaming.folder is not None or streaming.rate else None
        self.io = threads if streaming.ahead else None
        self._normalize = normalize
        width = row_format(max(1, part.features), dtype).row_bytes
        self.block_rows = _block_rows(streaming, width, reads_host)
        self.streaming, self._pages = streaming, Pages()
        with mpi.agree(comm):
            self.spill = Spill(streaming.folder, threads, self._pages, direct=streaming.direct, device=device)
        self.pace, self.swapped = stores.Pace(streaming.rate), 0
        self._stores = StorePool(self._new_store)
        self._chunks: ChunkBuffer | None = None
        self.in_place = streaming.in_place and reads_host
        self._chains = _chains(comm, streaming) if reads_host else []
        self.grids = Grids(
            comm,
            part,
            dtype,
            memory=streaming.memory,
            in_place=self.in_place,
            by_destination=streaming.schedule == "destination",
            cells=not reads_host,
            device=device,
            chains=self._chains,
        )
        super().__init__(comm, part, backend, dtype, "auto", 0)
        self.on_close(self.spill.close)
        self.on_close(self._stores.close)
        self.on_close(self._free)
        if threads is not None:
            self.on_close(threads.shutdown)

    @property
    def first(self) -> int:
        """Number of this rank's first row in the whole graph."""
        return int(self.part.bounds[self.rank])

    def _input(self) -> Input | None:
        # Streamed rows.
        part, how = self.part, self.streaming
        if not part.features:
            return None
        file, format, first = part.file, row_format(part.features, self.dtype), self.first
        stays = how.folder is not None and self._normalize == "none"
        stays = stays and file is not None and file.x_dtype == format.dtype
        store = None if stays else self.new_store(part.features)
        with mpi.agree(self.comm):
            for block in _dense_blocks(part, first, self.rows, self.dtype, self._normalize):
                if store is not None:  # else the blocks were read to check them
                    write(store, first, block)
                    first += len(block)
            if store is None:
                assert file is not None
                path, offset, options = file.path, file.offset(schema.X), self._file_options
                store = FileStore.over(path, offset, format, part.nodes, **options)
                self.on_close(store.close)
        part.close()
        self.meet()
        return StreamedRows(self, store, torch.zeros((), device=self.device))  # type: ignore[return-value]

    @property
    def _file_options(self) -> dict[str, Any]:
        return {"direct": self.streaming.direct, "rate": self.pace, "pages": self._pages}

    @property
    def chained(self) -> bool:
        """Whether ranks receive chunks from others."""
        return bool(self._chains)

    def __dir__(self) -> list[str]:
        return sorted([*super().__dir__(), "plan"])

    def edge_data(self, name: str) -> Tensor:
        # In the host's memory.
        return self._edge_data(name)

    def new_store(self, width: int) -> Store:
        """Return a store, uninitialised, for rows of all ranks with ``width`` columns. Collective."""
        self.check_open()
        return self._stores.take(row_format(width, self.dtype))

    def _new_store(self, format: RowFormat) -> Store:
        how, node = self.streaming, self.comm if self.ranks > 1 else None
        made: Store
        if how.folder is None:
            lock = self.backend.memory.lock
            made = stores.HostStore(format, self.num_nodes, node=node, rate=self.pace, lock=lock)
        else:
            made = FileStore(format, self.num_nodes, Path(how.folder), node=node, **self._file_options)
        return made if self.io is None else WriteBehind(made, self.io)

    @property
    def store_row_bytes(self) -> int:
        """Bytes per row, summed over all stores that `new_store` has made."""
        return self._stores.row_bytes

    def drop(self, store: Store) -> None:
        """Give a store of `new_store` back to be reused; do nothing for other stores. Collective."""
        self._stores.give(store)

    def _free(self) -> None:
        """Free plans, chunks and features, which are large."""
        self.x = None
        self.grids.clear()
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def meet(self) -> None:
        """Wait until the rows that all ranks have written to stores can be read. Collective."""
        if self.ranks > 1:  # a single rank reads its own rows
            self._stores.settle()
            mpi.barrier(self.comm)

    def plan(self, kind: str, source_columns: int, target_columns: int, *, widest: int) -> None:
        """Cut the grid of an adjacency for all layers to come, so that it is cut once. Collective.

        kind, source_columns, target_columns: as for `Grids.get`, the most of any layer. widest: columns of the widest
        inputs and outputs of layers; blocks have fewer rows if these are wide. Raises InputError as `Grids.get` does.
        """
        row_bytes = row_format(max(1, widest, self.part.features), self.dtype).row_bytes
        self.block_rows = _block_rows(self.streaming, row_bytes, self.backend.memory.holds_stores)
        self.grids.get(kind, source_columns, target_columns)

    @contextmanager
    def streamed(self, store: Store, direction: Direction) -> Iterator[Rows]:
        """Yield rows whose chunks stream past, for one call over each of a direction's plans, in order."""
        order, buffer = direction.order, None
        if not self.in_place:
            nbytes = order.slots * slot_bytes(order.capacity, store.format)
            if self._chunks is None or self._chunks.nbytes < nbytes:
                if self._chunks is not None:
                    self._chunks.close()
                self._chunks = ChunkBuffer(self.backend, nbytes, self._chains)
            buffer = self._chunks
        with self.backend.stream_rows(store, order, buffer, ahead=self.streaming.ahead) as rows:
            yield rows


def _block_rows(streaming: Streaming, row_bytes: int, reads_host: bool) -> int:
    """Return the number of rows that are computed at a time; with files, several such blocks are in memory at once.

    On a GPU as many as fit into a small part of its memory, since each block takes several kernel launches.
    """
    if not reads_host:
        return min(max(1024, streaming.memory // 64 // row_bytes // ROWS * ROWS), 1 << 16)
    if streaming.folder is None:
        return 4096
    return min(max(1024, streaming.memory // 256 // row_bytes // ROWS * ROWS), 4096)


def _chains(comm: Any, streaming: Streaming) -> list[list[int]]:
    """Return the chains of ranks that pass chunks on; none if each rank reads its own chunks. Collective."""
    tree = streaming.chains
    if comm.size == 1 or streaming.in_place or tree == "none":
        return []
    with mpi.agree(comm):
        if isinstance(tree, str) and tree != "measured":
            raise InputError(f'chains: {tree!r} is neither a tree of bandwidths nor "measured" or "none"')
    if isinstance(tree, str):
        # A file, or a store with a limited rate, is as fast for one rank as for several together.
        shared = streaming.folder is not None or streaming.rate > 0
        tree = measured_tree(*((1.0, 1.0) if shared else copy_bandwidth(comm)), comm.size)
    with mpi.agree(comm):
        return from_tree(comm.bcast(tree), comm.size)


def _dense_blocks(part: Part, first: int, rows: int, dtype: torch.dtype, normalize: str) -> Iterator[Tensor]:
    """Yield the features of a rank's rows in dense blocks, and remove them from the part.

    first: number of the rank's first row. normalize: "none", or "row" to divide each row by its sum. Raises InputError
    for a damaged file.
    """
    held, low = part.take_features(), 0
    for count in lengths(rows, row_format(part.features, dtype).row_bytes):
        block = torch.empty(count, part.features, dtype=dtype)
        if part.file is not None:
            read(part.file, first + low, [block], "cpu", lambda rows: None)
        elif held is not None:
            block.copy_(_dense(held, low, low + count))
        if normalize == "row":
            divide_by_sums(block)
        yield block
        low += count


def _dense(held: NDArray[Any] | SparseRows, low: int, high: int) -> Tensor:
    """Return rows low .. high - 1 as a dense tensor."""
    if not isinstance(held, SparseRows):
        return torch.from_numpy(np.ascontiguousarray(held[low:high]))
    begin, end = int(held.indptr[low]), int(held.indptr[high])
    arrays = held.data[begin:end], held.indices[begin:end], held.indptr[low : high + 1] - begin
    shape = high - low, held.shape[1]
    import scipy.sparse  # takes 12 MiB of each rank, and only sparse features need it

    return torch.from_numpy(scipy.sparse.csr_array(arrays, shape=shape).toarray())


class BlockView(GraphView):
    """Rows ``low`` .. ``high`` - 1 of a streamed graph's rank, as a graph without edges.

    Modules that compute each row by itself accept it: linear maps, activations and dropout.
    """

    def __init__(self, graph: GraphView, low: int, high: int) -> None:
        self.backend, self.dtype, self.device = graph.backend, graph.dtype, graph.device
        self.workspace, self.comm = graph.workspace, graph.comm
        self.rank, self.ranks = graph.rank, graph.ranks
        self.ids = graph.ids[low:high]
        self._low, self._graph = low, graph

    @property
    def rows(self) -> int:
        return len(self.ids)

    @property
    def destinations(self) -> int:
        return len(self.ids)

    @property
    def numbers(self) -> NDArray[np.int64]:
        return self._graph.numbers[self._low : self._low + self.rows]

    def _refuse(self, *args: Any, **kwargs: Any) -> Never:
        raise TypeError(
            "a layer of a graph that is streamed sees a block of its rows here, and not the graph"
        )

    adjacency = edge_values = exchange = publish = _refuse
    all_destinations = property(_refuse)
