"""A graph whose rows lie in stores, and of which layers hold a part at a time (NGra, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import InputError
from ...plan.grid import ROWS
from ...plan.layout import RowFormat
from ...runtime import cores, mpi
from ...runtime.backends.arguments import Rows
from ...runtime.backends.base import Backend
from ...runtime.streaming import ring
from ...runtime.streaming import store as stores
from ...runtime.streaming.bandwidth import copy_bandwidth
from ...runtime.streaming.behind import Behind
from ...runtime.streaming.buffer import ChunkBuffer, slot_bytes
from ...runtime.streaming.direct import Pages
from ...runtime.streaming.file_store import FileStore
from ...runtime.streaming.store import Store
from ..graph.dist_graph import DistGraph
from ..graph.loading import Part
from ..inputs.host import Input
from ..workspace import accumulator, row_format
from . import features
from .block_view import BlockView
from .planning import Direction, Grid, Grids
from .pool import StorePool
from .rows import StreamedRows, write
from .spill import Spill

IO_THREADS = 2
LARGE = 256 << 10  # bytes of arrays whose pages are given back when they are freed: those of blocks of rows
SCHEDULES = ("accumulator", "stage", "destination")


@dataclass(frozen=True)
class Streaming:
    """How a graph is streamed.

    memory: bytes for plans, chunks, and what intervals keep; on a GPU, of its memory. folder: of scratch files; None
    keeps rows in the host's memory, beside ``memory``. direct: read and write files past the page cache. copies: copy
    rows in the host's memory into chunks, as devices do, instead of reading them in place. schedule: one of SCHEDULES
    (`sweep`), NGra's first. ahead: whether chunks are loaded while others are summed, and other rows of slow stores are
    read and written meanwhile. rate: bytes per second that all stores of a rank read and write at most, for studies; 0:
    any number. chains: which ranks load and which take chunks from the rank before them (`runtime.streaming.ring`): by
    a tree of bandwidths, "measured", or "none".
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
        """Whether rows are read where they lie."""
        return self.folder is None and not self.copies and not self.rate


class StreamedGraph(DistGraph):
    """A rank's part of a graph whose rows stay in stores (`mgg.open(..., streaming=...)`).

    Layers are programs (`nn.saga`) that run in one pass over the edges. They take and return `StreamedRows`, as ``x``
    is. Labels, masks, losses and the rest are as in `DistGraph`. normalize: as train.normalize_features of a job.
    block_rows: number of rows that are computed at a time.
    """

    def __init__(
        self,
        comm: Any,
        part: Part,
        backend: Backend,
        dtype: torch.dtype,
        streaming: Streaming,
        normalize: str = "none",
    ) -> None:
        with mpi.agree(comm):
            if not backend.capabilities.reads_host and accumulator(dtype) != dtype:
                raise InputError("graphs are streamed through GPUs in float32 (train.dtype)")
            if mpi.node(comm).size != comm.size:
                raise InputError("graphs are streamed on the ranks of one node, and these are on several")
            if streaming.schedule == "destination" and accumulator(dtype) != dtype:
                raise InputError("schedule: the destination order is for float32 and float64")
        if streaming.folder is not None:  # new pages for each block cost as much as sums of rows in memory
            cores.return_freed_memory(LARGE)
        # Threads that read and write slow stores, beside those that compute.
        threads = ThreadPoolExecutor(IO_THREADS) if streaming.folder is not None or streaming.rate else None
        self.io = threads if streaming.ahead else None
        self._normalize = normalize
        self.block_rows = _block_rows(
            streaming, row_format(max(1, part.features), dtype).row_bytes, backend.capabilities.reads_host
        )
        self.streaming, self._pages = streaming, Pages()
        with mpi.agree(comm):
            device, direct = backend.capabilities.device, streaming.direct
            self.spill = Spill(streaming.folder, threads, self._pages, direct=direct, device=device)
        self.pace, self.swapped = stores.Pace(streaming.rate), 0
        self._stores = StorePool(self._made)
        self._chunks: ChunkBuffer | None = None
        reads_host = backend.capabilities.reads_host
        self.in_place = streaming.in_place and reads_host
        self._chains = _chains(comm, streaming) if reads_host else []
        self._grids = Grids(
            comm,
            part,
            dtype,
            memory=streaming.memory,
            in_place=self.in_place,
            turned=streaming.schedule == "destination",
            cells=not reads_host,
            device=backend.capabilities.device,
            chains=self._chains,
        )
        super().__init__(comm, part, backend, dtype, "auto", 0)
        self.on_close(self.spill.close)
        self.on_close(self._stores.close)
        self.on_close(self._forget)
        if threads is not None:
            self.on_close(threads.shutdown)

    @property
    def first(self) -> int:
        """Number of this rank's first row in the whole graph."""
        return int(self.part.bounds[self.rank])

    def _input(self) -> Input | None:
        """Return the features as streamed rows."""
        if not self.part.features:
            return None
        how, part, first = self.streaming, self.part, self.first
        stays = how.folder is not None and features.lie_as_stored(part, self.dtype, self._normalize)
        store = None if stays else self.new_store(part.features)
        with mpi.agree(self.comm):
            for block in features.dense(part, first, self.rows, self.dtype, self._normalize):
                if store is not None:  # else the blocks were read to check them
                    write(store, first, block)
                    first += len(block)
            if store is None:
                store = features.in_file(
                    part, self.dtype, direct=how.direct, rate=self.pace, pages=self._pages
                )
                self.on_close(store.close)
        part.close()
        self.meet()
        return StreamedRows(self, store, torch.zeros((), device=self.device))  # type: ignore[return-value]

    @property
    def chained(self) -> bool:
        """Whether ranks pass chunks on."""
        return bool(self._chains)

    def edge_data(self, name: str) -> Tensor:
        # In the host's memory.
        return self._edge_data(name)

    def block(self, low: int, high: int) -> BlockView:
        """Return rows low .. high - 1 of this rank's as modules of rows alone take them."""
        return BlockView(self, low, high)

    def new_store(self, width: int) -> Store:
        """Return a store for all ranks' rows of this width, whose rows are any at first. Collective."""
        self.check_open()
        return self._stores.take(row_format(width, self.dtype))

    def _made(self, format: RowFormat) -> Store:
        """Return a new store."""
        how, node = self.streaming, self.comm if self.ranks > 1 else None
        made: Store
        if how.folder is None:
            lock = self.backend.memory.lock
            made = stores.HostStore(format, self.num_nodes, node=node, rate=self.pace, lock=lock)
        else:
            folder = Path(how.folder)
            made = FileStore(
                format,
                self.num_nodes,
                folder,
                direct=how.direct,
                node=node,
                rate=self.pace,
                pages=self._pages,
            )
        return made if self.io is None else Behind(made, self.io)

    def drop(self, store: Store) -> None:
        """Let a store be used again, unless it has been dropped before. Collective."""
        self._stores.give(store)

    def _forget(self) -> None:
        """Let go of plans, chunks and features, which are large."""
        self.x = None
        self._grids.forget()
        if self._chunks is not None:
            self._chunks.close()
            self._chunks = None

    def meet(self) -> None:
        """Wait for all ranks, so that what they have written to stores can be read. Collective."""
        if self.ranks > 1:  # one rank alone reads what it has written
            self._stores.settle()
            mpi.barrier(self.comm)

    # ---- grids

    def all_grids(self) -> list[Grid]:
        """Return the grids that layers have asked for."""
        return self._grids.all()

    def plan(self, kind: str, source_columns: int, target_columns: int, *, widest: int) -> None:
        """Cut the grid of an adjacency for all layers to come, so that it is cut once. Collective.

        kind, source_columns, target_columns: as for `grid`, the most of any layer. widest: columns of the widest rows
        that layers take and return; blocks have fewer rows where these are wide. Raises InputError as `grid` does.
        """
        row_bytes = row_format(max(1, widest, self.part.features), self.dtype).row_bytes
        self.block_rows = _block_rows(self.streaming, row_bytes, self.backend.capabilities.reads_host)
        self.grid(kind, source_columns, target_columns)

    def grid(self, kind: str, source_columns: int, target_columns: int, data: tuple[str, ...] = ()) -> Grid:
        """Return the grid of an adjacency for chunks of rows of a width, at most, and what a target keeps. Collective.

        kind: "gcn" or "edges". target_columns: values of the accumulator's type that each row of an interval keeps.
        data: names of data of edges that are read, which the grid has in both directions. Raises InputError, the same
        on all ranks, where the memory does not suffice, and ValueError for data of edges with "gcn".
        """
        return self._grids.get(kind, source_columns, target_columns, data)

    # ---- passes

    @contextmanager
    def streamed(self, store: Store, direction: Direction) -> Iterator[Rows]:
        """Yield rows whose chunks stream past, for one call for each of a direction's plans, in their order."""
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


def _between(least: int, value: int, most: int) -> int:
    return max(least, min(value, most))


def _block_rows(streaming: Streaming, row_bytes: int, reads_host: bool) -> int:
    """Return how many rows are computed at a time: with files, of which several are on their way, by the memory.

    A GPU takes as many as fit into a small part of its memory, since each block is several launches.
    """
    if not reads_host:
        return _between(1024, streaming.memory // 64 // row_bytes // ROWS * ROWS, 1 << 16)
    if streaming.folder is None:
        return 4096
    return _between(1024, streaming.memory // 256 // row_bytes // ROWS * ROWS, 4096)


def _chains(comm: Any, streaming: Streaming) -> list[list[int]]:
    """Return the chains of ranks that pass chunks on; none where each rank reads for itself. Collective."""
    tree = streaming.chains
    if comm.size == 1 or streaming.in_place or tree == "none":
        return []
    with mpi.agree(comm):
        if isinstance(tree, str) and tree != "measured":
            raise InputError(f'chains: {tree!r} is neither a tree of bandwidths nor "measured" or "none"')
    if isinstance(tree, str):
        # A store that is a file, or that is slowed down, serves no more ranks at once than one.
        shared = streaming.folder is not None or streaming.rate > 0
        tree = ring.measured_tree(*((1.0, 1.0) if shared else copy_bandwidth(comm)), comm.size)
    with mpi.agree(comm):
        return ring.chains(comm.bcast(tree), comm.size)
