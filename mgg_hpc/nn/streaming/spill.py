"""Activations that the backward needs, out of memory until then (torch's hooks of saved tensors)."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import InputError
from ...runtime.streaming.files import BLOCK, DirectFile, Pages, scratch_file

PENDING = 4  # writes that may be under way; each keeps its tensor in memory
LEAST = 64 << 10  # bytes of a tensor that is worth a place in the file


@dataclass(eq=False)
class Spilled:
    """Place of a tensor in the file. written: done once it is there. fetched: the tensor, where it was read ahead."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype
    written: Future[None]
    fetched: Tensor | None = None


class Spill:
    """A file without a name, into which tensors go. folder: where it lies; None keeps all tensors in the host's memory.

    pool: of the threads that write; None with no folder. pages: memory for what is read. direct: past the page cache.
    device: of the tensors. written: bytes so far. Raises InputError for a folder in which
    no file can be made, and where it is full.
    """

    _file: DirectFile | None

    def __init__(
        self,
        folder: Path | str | None,
        pool: ThreadPoolExecutor | None,
        pages: Pages,
        *,
        direct: bool,
        device: str,
    ) -> None:
        self._pool, self._device = pool, device
        self._pending: list[Future[None]] = []
        self._folder = folder
        self._file = None
        if folder is not None:
            name = f"the file of activations in {folder}"
            self._file = DirectFile(scratch_file(Path(folder)), pages, direct=direct, writes=True, name=name)
        self._end = 0
        self._free: dict[int, list[tuple[int, Future[None]]]] = {}  # places by size
        self.written = 0

    def saved(self, kept: Iterable[Tensor], places: list[Any]) -> AbstractContextManager[Any]:
        """Return a context in which tensors that autograd saves go to the file. kept: those that stay in memory.

        places: to which those of the others are added.
        """
        addresses = {tensor.data_ptr() for tensor in kept}

        def pack(tensor: Tensor) -> Any:
            if tensor.data_ptr() in addresses or (self._file is None and self._device == "cpu"):
                return tensor
            if tensor.numel() * tensor.element_size() < LEAST:
                # A part of a large tensor would keep all of it.
                return tensor.clone() if tensor.untyped_storage().nbytes() > LEAST else tensor
            places.append(self.put(tensor))
            return places[-1]

        return torch.autograd.graph.saved_tensors_hooks(pack, self.get)

    def put(self, tensor: Tensor) -> Any:
        """Write a tensor; return what `get` takes. Without a file the tensor itself is kept."""
        tensor = tensor.detach().cpu()
        if self._file is None or self._pool is None or not tensor.numel():
            return tensor
        values = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        while len(self._pending) >= PENDING:
            self._pending.pop(0).result()
        size = -(-len(values) // BLOCK) * BLOCK
        offset = self._taken(size)
        written = self._pool.submit(self._write, tensor, values, offset)
        self._pending.append(written)
        place = Spilled(offset, tensor.shape, tensor.dtype, written)
        weakref.finalize(place, self._free.setdefault(size, []).append, (offset, written))
        self.written += len(values)
        return place

    def _taken(self, size: int) -> int:
        """Return where so many bytes are free: those of a tensor that nothing reads any more, or new ones."""
        free = self._free.get(size)
        if free:
            offset, written = free.pop()
            written.result()
            return offset
        self._end += size
        return self._end - size

    def _write(self, kept: Tensor, values: NDArray[np.uint8], offset: int) -> None:
        """Write bytes over the memory of a tensor, which is kept until then."""
        assert self._file is not None
        try:
            self._file.write(offset, values, to_end=True)
        except OSError as error:
            raise InputError(f"the scratch folder {self._folder}: {error.strerror}") from error

    def fetch(self, places: Iterable[Any]) -> None:
        """Read tensors of `put`, for `get` to return; by any thread."""
        for place in places:
            if isinstance(place, Spilled):
                place.fetched = self._read(place)

    def get(self, place: Any) -> Tensor:
        """Return a tensor of `put`, on the device."""
        if not isinstance(place, Spilled):
            held: Tensor = place
            return held.to(self._device)
        fetched, place.fetched = place.fetched, None
        return (self._read(place) if fetched is None else fetched).to(self._device)

    def _read(self, place: Spilled) -> Tensor:
        assert self._file is not None
        place.written.result()
        values = self._file.read(place.offset, place.shape.numel() * place.dtype.itemsize)
        return torch.from_numpy(values).view(place.dtype).view(place.shape)

    def close(self) -> None:
        """Give the file back."""
        if self._file is not None:
            self._file.close()
