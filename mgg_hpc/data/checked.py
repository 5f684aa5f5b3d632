"""Read a graph file's datasets in runs of entries, and compare them with their digests as they are read."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .digest import PIECE, BlockDigests
from .header import DIGEST, Header, Span

NO_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}  # copy_file_range: not here
READ_LIMIT = 1 << 30  # most bytes of a system call; Linux reads 2 GiB less a page at most


@dataclass
class _Run:
    """Position in one dataset that is read in order, from the start of a digest block on."""

    path: str
    block: int  # number of the next block to compare
    at: int  # number of the next byte
    digests: BlockDigests
    expected: NDArray[np.uint64]  # digests of its blocks
    first: int  # number of the first of them


class CheckedFile:
    """Reads the bytes of a header's datasets, through a descriptor that it closes.

    It still reads the same file when another process replaces it.
    The first digest that differs is kept until the end of `compared`, so that a check of values can name a wrong value
    first.
    """

    def __init__(self, descriptor: int, where: str, header: Header) -> None:
        self.where = where
        self._spans, self._digest_spans = header.spans, header.digests
        self.digest_block = header.block
        self._fault: str | None = None
        self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @contextmanager
    def compared(self) -> Iterator[None]:
        """Raise InputError after the body for the first digest that differed in its `checked` and `blocks`."""
        self._fault = None  # left by a body that another error ended
        yield
        self._raise_fault()

    def offset(self, path: str) -> int:
        """Return the byte of the file that a dataset begins at; its entries follow one another."""
        return self._spans[path].offset

    def read(self, path: str, lo: int, hi: int) -> np.ndarray:
        """Return entries lo .. hi-1 of one dataset, unchecked."""
        return self._stored(self._spans[path], lo, hi)

    def checked(self, path: str, lo: int, hi: int) -> np.ndarray:
        """Return entries lo .. hi-1, compared with their digests."""
        layout = self._spans[path].layout
        try:
            values = np.empty((hi - lo, *layout.shape[1:]), layout.dtype)
        except MemoryError as error:
            raise InputError(
                f"{self.where}: rows {lo} .. {hi - 1} of /{path} take {(hi - lo) * layout.row_bytes / 2**30:,.1f} GiB, "
                "more memory than there is; use more ranks"
            ) from error
        for _ in self.blocks(path, lo, hi, [values]):
            pass
        return values

    def blocks(self, path: str, lo: int, hi: int, into: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """Read entries lo .. hi-1, in order, into the arrays of ``into``; compare digests, and yield each full array.

        Arrays are contiguous, of the dataset's type; only as much of the last one is filled and yielded as is left.
        Each byte is read once, and so are their digests and the rest of the first and the last entry's digest block.
        """
        if lo == hi:
            return
        layout = self._spans[path].layout
        start, end = lo * layout.row_bytes, hi * layout.row_bytes
        block = self.digest_block
        first, last = start // block, -(-end // block)
        expected = self._stored(self._digest_spans[path], first, last)
        run = _Run(path, first, first * block, BlockDigests(block), expected, first)
        self._skip(run, start)
        arrays, at = iter(into), lo
        while at < hi:
            array = next(arrays)[: hi - at]
            self._advance(run, array.view(np.uint8).reshape(-1))
            at += len(array)
            yield array
        self._skip(run, min(last * block, layout.nbytes))
        self._compare(run, run.digests.rest())

    def check_digests(self, path: str) -> None:
        """Raise InputError at the first block of a dataset whose digest differs."""
        layout = self._spans[path].layout
        entries = min(max(1, PIECE // layout.row_bytes), layout.shape[0])
        buffer = np.empty((entries, *layout.shape[1:]), layout.dtype)
        with self.compared():
            for _ in self.blocks(path, 0, layout.shape[0], itertools.repeat(buffer)):
                self._raise_fault()

    def spans(self) -> dict[str, Span]:
        """Return where every dataset lies, and every digest, by path."""
        return self._spans | {f"{DIGEST}/{path}": span for path, span in self._digest_spans.items()}

    def stored(self, path: str) -> np.ndarray:
        """Return all entries of a dataset, or of a digest, unchecked."""
        span = self.spans()[path]
        return self._stored(span, 0, span.layout.shape[0])

    def copy(self, span: Span, into: int, at: int) -> None:
        """Copy the bytes of a dataset, unchecked, to byte ``at`` of another file, by the kernel where it can.

        into: a descriptor of that file. Raises InputError if this file has become shorter.
        """
        done, size = 0, span.layout.nbytes
        while done < size:
            start = span.offset + done
            try:
                copied = os.copy_file_range(
                    self._descriptor, into, min(READ_LIMIT, size - done), start, at + done
                )
            except OSError as error:
                if error.errno not in NO_COPY:
                    raise
                piece = np.empty(min(PIECE, size - done), np.uint8)
                self._fill(piece, start)
                copied = os.pwrite(into, piece.data, at + done)
            if not copied:
                raise InputError(f"{self.where} is truncated at byte {start}; copy or import it again")
            done += copied

    def _raise_fault(self) -> None:
        if self._fault is not None:
            raise InputError(self._fault)

    def _advance(self, run: _Run, data: NDArray[np.uint8]) -> None:
        """Read the next bytes of a run in pieces, so that digests are computed while they are in the caches."""
        for start in range(0, len(data), PIECE):
            piece = data[start : start + PIECE]
            self._fill(piece, self._spans[run.path].offset + run.at)
            run.at += len(piece)
            self._compare(run, run.digests.update(piece))

    def _skip(self, run: _Run, end: int) -> None:
        """Read up to byte ``end`` for the digest alone; less than a block."""
        self._advance(run, np.empty(end - run.at, np.uint8))

    def _compare(self, run: _Run, found: list[int]) -> None:
        """Compare a run's next digests with the stored ones, and keep the first that differs."""
        for digest in found:
            if digest != run.expected[run.block - run.first] and self._fault is None:
                layout = self._spans[run.path].layout
                block = self.digest_block
                last = min((run.block + 1) * block, layout.nbytes) - 1
                entries = f"{run.block * block // layout.row_bytes} .. {last // layout.row_bytes}"
                self._fault = (
                    f"{self.where}: /{run.path} is damaged: the digest of block {run.block} (entries {entries}) "
                    "differs; import or copy the file again"
                )
            run.block += 1

    def _stored(self, span: Span, lo: int, hi: int) -> np.ndarray:
        layout = span.layout
        values = np.empty((hi - lo, *layout.shape[1:]), layout.dtype)
        self._fill(values.view(np.uint8).reshape(-1), span.offset + lo * layout.row_bytes)
        return values

    def _fill(self, data: NDArray[np.uint8], offset: int) -> None:
        """Read bytes of the file. Raises InputError if it has become shorter."""
        view, done = data.data, 0
        while done < len(data):
            read = os.preadv(self._descriptor, [view[done : done + READ_LIMIT]], offset + done)
            if read == 0:
                raise InputError(
                    f"{self.where} is truncated at byte {offset + done}; copy or import it again"
                )
            done += read
