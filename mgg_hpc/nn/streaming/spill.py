"""Activations for the backward in a scratch file, by torch's hooks of saved tensors."""

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

PENDING = 4  # most writes under way; each keeps its tensor in memory
LEAST = 64 << 10  # bytes of the smallest tensor that goes to the file


@dataclass(eq=False)
class Spilled:
    """Place of a tensor in the file. written: its write. fetched: the tensor, if it was read ahead."""

    offset: int
    shape: torch.Size
    dtype: torch.dtype
    written: Future[None]
    fetched: Tensor | None = None


class Spill:
    """A scratch file without a name for tensors.

    folder: of the file; None keeps all tensors in the host's memory. pool: threads that write, or None without a
    folder. pages: memory of tensors that are read. direct: use O_DIRECT. device: of the tensors. written: bytes so far.
    Raises InputError for a folder in which no file can be created, and for a full one.
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
        """Return a context in which tensors that autograd saves go to the file, and their places into ``places``.

        kept: tensors that stay in memory.
        """
        addresses = {tensor.data_ptr() for tensor in kept}

        def pack(tensor: Tensor) -> Any:
            if tensor.data_ptr() in addresses or (self._file is None and self._device == "cpu"):
                return tensor
            if tensor.numel() * tensor.element_size() < LEAST:
                # A view would keep all of a large tensor.
                return tensor.clone() if tensor.untyped_storage().nbytes() > LEAST else tensor
            places.append(self.put(tensor))
            return places[-1]

        return torch.autograd.graph.saved_tensors_hooks(pack, self.get)

    def put(self, tensor: Tensor) -> Any:
        """Write a tensor, and return its place, the argument of `get`; without a file, the tensor itself."""
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
        """Return the offset of ``size`` free bytes, reused or new."""
        free = self._free.get(size)
        if free:
            offset, written = free.pop()
            written.result()
            return offset
        self._end += size
        return self._end - size

    def _write(self, kept: Tensor, values: NDArray[np.uint8], offset: int) -> None:
        """Write ``values``, the bytes of the tensor ``kept``, which stays alive until then."""
        assert self._file is not None
        try:
            self._file.write(offset, values, to_end=True)
        except OSError as error:
            raise InputError(f"the scratch folder {self._folder}: {error.strerror}") from error

    def fetch(self, places: Iterable[Any]) -> None:
        """Read tensors ahead, for `get` to return; for any thread."""
        for place in places:
            if isinstance(place, Spilled):
                place.fetched = self._read(place)

    def get(self, place: Any) -> Tensor:
        """Return the tensor at a place, on the device."""
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
        """Close the file."""
        if self._file is not None:
            self._file.close()
