"""Sums of gradients over all ranks, on their GPUs, without waiting for the host."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import InputError
from ....plan.layout import RowFormat
from ... import mpi
from ..arguments import TieredRows
from .kernels import DeviceBackend

if TYPE_CHECKING:
    from mpi4py import MPI

ADDRESS = "MASTER_ADDR"  # of rank 0's host, as torch has it
MEETING_SECONDS = 30
WIDTH = 128  # values of a row that a worker gathers


@contextmanager
def _as_input_error(host: str) -> Iterator[None]:
    """Turn an error of ranks that do not connect into an InputError: its cause is the machine."""
    try:
        yield
    except RuntimeError as error:  # torch's DistError among them
        raise InputError(
            f"ranks do not meet at {host!r} to sum gradients ({str(error).splitlines()[0]}); {ADDRESS} names rank 0's "
            "host as the others know it"
        ) from error


class NcclSums:
    """Sums over ranks by a process group of torch. Construction is collective."""

    def __init__(self, comm: MPI.Intracomm, via: str = "nccl") -> None:
        """via: name of the process group's backend."""
        from torch import distributed

        alone = mpi.node(comm).Get_size() == comm.Get_size()
        host = "127.0.0.1" if alone else os.environ.get(ADDRESS, socket.gethostname())
        patience = timedelta(seconds=MEETING_SECONDS)
        store = None
        with mpi.agree(comm), _as_input_error(host):
            if comm.Get_rank() == 0:
                store = distributed.TCPStore(
                    host, 0, comm.Get_size(), True, timeout=patience, wait_for_workers=False
                )
        host, port = comm.bcast((host, store.port) if store else None)
        with mpi.agree(comm), _as_input_error(host):
            store = store or distributed.TCPStore(host, port, comm.Get_size(), False, timeout=patience)
        self._torch = distributed
        distributed.init_process_group(via, store=store, rank=comm.Get_rank(), world_size=comm.Get_size())

    @staticmethod
    def available() -> bool:
        """Return whether this torch has NCCL, and no process group yet."""
        from torch import distributed

        return (
            distributed.is_available()
            and distributed.is_nccl_available()
            and not distributed.is_initialized()
        )

    def add_up(self, values: Any) -> None:
        """Replace float32 values [n] by their sums over all ranks, on the current stream. Collective."""
        self._torch.all_reduce(values)

    def close(self) -> None:
        """End the process group. Collective."""
        self._torch.destroy_process_group()


class PeerSums:
    """Sums over ranks of values that each rank reads from the symmetric heap, and adds in rank order."""

    def __init__(self, backend: DeviceBackend) -> None:
        self._backend, self._count = backend, -1

    def _prepare(self, count: int) -> None:
        backend, rows = self._backend, -(-count // WIDTH)
        format, ranks = RowFormat(np.dtype(np.float32), WIDTH), backend.size
        nbytes = rows * format.row_bytes
        backend.memory.reserve(nbytes * (1 + (ranks if backend.has_gets else 0)))
        self._mine = backend.symmetric(rows, format)
        # Where some rank is out of reach of pointers, its rows must arrive on the heap.
        every = ranks * rows
        self._all = (
            backend.symmetric(every, format).local
            if backend.has_gets
            else backend.memory.padded(every, format)
        )
        self._table = TieredRows.of_ranks(self._mine, np.arange(ranks + 1, dtype=np.int64) * rows)
        self._ids = backend.arrays.uploaded(np.arange(every, dtype=np.int64))
        self._count = count

    def add_up(self, values: Any) -> None:
        """Replace float32 values [n] by their sums over all ranks, on the current stream. Collective."""
        backend = self._backend
        if len(values) != self._count:
            self._prepare(len(values))
        self._mine.local.reshape(-1)[: len(values)] = values
        backend.publish(self._mine)
        backend.gathers.rows(backend, self._table, self._ids, self._all)
        every = self._all.reshape(backend.size, -1)[:, : len(values)]
        values[:] = backend.arrays.column_sums(every)
        backend.publish(self._mine)  # all have read before anybody writes again

    def close(self) -> None:
        """Do nothing: the heap goes with the backend."""
