"""Read graph files in slices, comparing digests and checking values as they are read."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from . import checks, schema
from .digest import PIECE, BlockDigests, edge_digest
from .graph import SparseRows
from .header import Header, open_file, read_header

NO_COPY = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}  # errors of unsupported copy_file_range
READ_LIMIT = 1 << 30  # bytes of a system call; Linux reads 2 GiB less a page at most


class CheckedFile:
    """Reads the datasets of a file through a descriptor, which `close` closes.

    The descriptor refers to the same file even if another process replaces the path. Reads with `checked` or
    `blocks` belong in a ``with`` block of `compared`: data that differ from their digest raise an error at its
    end, so that a check of values within it can raise its own, more precise error first.

    Attributes:
        where: name of the file in messages.
        spans: layout and offset of each dataset by path, including the datasets of digests.
        digest_block: number of bytes of a dataset that share one digest.
    """

    def __init__(self, descriptor: int, where: str, header: Header) -> None:
        self.where, self.spans, self.digest_block = where, header.spans, header.block
        self._fault: str | None = None
        self._descriptor = descriptor

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    @contextmanager
    def compared(self) -> Iterator[None]:
        """Return a context for `checked` and `blocks` that raises InputError at its end if data are damaged.

        If a digest differed in any of these reads, the error names the first block that did.
        """
        self._fault = None  # a body that raised may have left one
        yield
        self._raise_fault()

    def read(self, path: str, lo: int, hi: int) -> np.ndarray:
        """Return entries lo .. hi-1 of a dataset, without comparing digests."""
        span = self.spans[path]
        values = np.empty((hi - lo, *span.layout.shape[1:]), span.layout.dtype)
        self._fill(values.view(np.uint8).reshape(-1), span.offset + lo * span.layout.row_bytes)
        return values

    def stored(self, path: str) -> np.ndarray:
        """Return all entries of a dataset, without comparing digests."""
        return self.read(path, 0, self.spans[path].layout.shape[0])

    def checked(self, path: str, lo: int, hi: int) -> np.ndarray:
        """Return entries lo .. hi-1 of a dataset, and compare their digests (see `compared`)."""
        layout = self.spans[path].layout
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
        """Read entries lo .. hi-1 of a dataset into the arrays of ``into``, and yield each when it is full.

        Digests are compared (see `compared`). Arrays are contiguous, of the dataset's dtype. Of the last array,
        only the part that was filled is yielded. Each byte is read once, including the rest of the first and
        last digest block.
        """
        if lo == hi:
            return
        span, block, digests = self.spans[path], self.digest_block, BlockDigests(self.digest_block)
        start, end = lo * span.layout.row_bytes, hi * span.layout.row_bytes
        # The next digest block to compare, and after the last.
        number, stop = start // block, -(-end // block)
        expected = iter(self.read(schema.DIGEST + path, number, stop))
        position = number * block  # of the next byte

        def advance(data: NDArray[np.uint8]) -> None:
            nonlocal position
            for begin in range(0, len(data), PIECE):  # pieces are still in the caches for their digests
                piece = data[begin : begin + PIECE]
                self._fill(piece, span.offset + position)
                position += len(piece)
                compare(digests.update(piece))

        def compare(found: list[int]) -> None:
            nonlocal number
            for digest in found:
                if digest != next(expected) and self._fault is None:
                    self._fault = self._damage(path, number)
                number += 1

        advance(np.empty(start - position, np.uint8))
        arrays, at = iter(into), lo
        while at < hi:
            array = next(arrays)[: hi - at]
            advance(array.view(np.uint8).reshape(-1))
            at += len(array)
            yield array
        advance(np.empty(min(stop * block, span.layout.nbytes) - position, np.uint8))
        compare(digests.rest())

    def check_digests(self, path: str) -> None:
        """Raise InputError at the first block of a dataset whose digest differs."""
        layout = self.spans[path].layout
        entries = min(max(1, PIECE // layout.row_bytes), layout.shape[0])
        buffer = np.empty((entries, *layout.shape[1:]), layout.dtype)
        with self.compared():
            for _ in self.blocks(path, 0, layout.shape[0], itertools.repeat(buffer)):
                self._raise_fault()

    def copy(self, path: str, into: int, at: int) -> None:
        """Copy the bytes of a dataset to another file, without comparing digests, in the kernel if possible.

        into: descriptor of the other file. at: offset there. Raises InputError if this file has become shorter.
        """
        span = self.spans[path]
        done, size = 0, span.layout.nbytes
        while done < size:
            start = span.offset + done
            try:
                count = min(READ_LIMIT, size - done)
                copied = os.copy_file_range(self._descriptor, into, count, start, at + done)
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

    def _damage(self, path: str, number: int) -> str:
        """Return the error message for a digest that differs. number: number of its block in the dataset."""
        layout, block = self.spans[path].layout, self.digest_block
        last = min((number + 1) * block, layout.nbytes) - 1
        entries = f"{number * block // layout.row_bytes} .. {last // layout.row_bytes}"
        return (
            f"{self.where}: /{path} is damaged: the digest of block {number} (entries {entries}) differs; "
            "import or copy the file again"
        )

    def _fill(self, data: NDArray[np.uint8], offset: int) -> None:
        """Fill ``data`` with the file's bytes from ``offset`` on.

        Raises InputError if the file has become shorter.
        """
        view, done = data.data, 0
        while done < len(data):
            read = os.preadv(self._descriptor, [view[done : done + READ_LIMIT]], offset + done)
            if read == 0:
                raise InputError(
                    f"{self.where} is truncated at byte {offset + done}; copy or import it again"
                )
            done += read


@dataclass(frozen=True, eq=False)
class GraphSlice:
    """Rows lo .. hi-1 of a graph file (n = hi - lo), with the fields of `Graph`.

    Data that the file lacks are None. ``indptr``, [n + 1], and the offsets of sparse ``x`` start with 0;
    ``indices`` are row numbers of the whole graph. ids: original ids of the rows, int64 [n].
    """

    indptr: np.ndarray
    indices: np.ndarray
    weight: np.ndarray | None
    x: np.ndarray | SparseRows | None
    y: np.ndarray | None
    train: np.ndarray | None
    val: np.ndarray | None
    test: np.ndarray | None
    ids: np.ndarray
    edge: Mapping[str, np.ndarray] = field(default_factory=dict)


class GraphFile(CheckedFile):
    """An open graph file whose structure has been checked, as a context manager; see `open_graph`.

    Attributes:
        name, uuid, nodes, edges, directed: facts of the graph.
        features, sparse, x_dtype: feature columns (0 without features); True if they are CSR; dtype if they are dense.
        classes, multilabel: 0 without labels.
        types: of nodes and edges, as in `Graph`.
        edge_data: names of the edge data, without weights.
        partitions: number of parts -> (method, edge counts) of stored row ranges.
        order: method that renumbered the rows, empty if unknown.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        descriptor = open_file(self.path)
        try:
            header = read_header(self.path, descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        super().__init__(descriptor, str(path), header)
        held = self.contents = header.contents
        self.uuid, self.partitions, self._proof = header.uuid, header.partitions, header.proof
        self.name, self.nodes, self.edges, self.order = held.name, held.nodes, held.edges, header.order
        self.features, self.classes = held.features, held.classes
        self.directed, self.multilabel, self.types = held.directed, held.multilabel, held.types
        self.sparse = held.sparse_shape is not None
        self.has_x, self.has_y = held.features > 0, schema.Y in held.datasets
        self.has_masks, self.weighted = schema.TRAIN in held.datasets, schema.WEIGHT in held.datasets
        self.edge_data = held.edge_data
        self.index_dtype = held.datasets[schema.INDICES].dtype
        self.x_dtype = held.datasets[schema.X].dtype if schema.X in held.datasets else None

    def __enter__(self) -> GraphFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def slice(
        self,
        lo: int,
        hi: int,
        *,
        dense: bool = True,
        edge_data: Iterable[str] | None = None,
        edges: bool = True,
    ) -> GraphSlice:
        """Return rows lo .. hi-1.

        Args:
            dense: True to read dense features. (`feature_blocks` reads them block by block.)
            edge_data: names of the edge data to read. [default: all]
            edges: True to read edges and their data; ``indptr`` is read in any case.

        Raises InputError for a wrong value, or a block whose digest differs.
        """
        names = self.edge_data if edge_data is None else tuple(edge_data)
        self._check_rows(lo, hi)
        with self.compared():
            paths = schema.WEIGHT, *(schema.EDGE + name for name in names)
            if edges:
                indptr, indices, (weight, *data) = self._csr(schema.EDGES, lo, hi, self.nodes, paths)
            else:
                offsets = self._offsets(schema.EDGES, lo, hi)
                indptr, indices, weight = offsets - offsets[0], np.zeros(0, self.index_dtype), None
                data = [None for _ in names]
            edge = {name: values for name, values in zip(names, data, strict=True) if values is not None}
            x = self._features(lo, hi, dense)
            y, split = self._labels(lo, hi)
            ids = self._ids(lo, hi)
        train, val, test = split or (None, None, None)
        return GraphSlice(indptr, indices, weight, x, y, train, val, test, ids, edge)

    def edge_count(self, lo: int, hi: int) -> int:
        """Return the number of edges into rows lo .. hi-1. Raises InputError as `slice` does."""
        self._check_rows(lo, hi)
        with self.compared():
            offsets = self._offsets(schema.EDGES, lo, hi)
        return int(offsets[-1] - offsets[0])

    def structure(self, lo: int, hi: int, *, weights: bool = True) -> GraphSlice:
        """Return rows lo .. hi-1 with edges and ids, without other node data. Raises InputError as `slice` does.

        weights: read the weights of the edges.
        """
        self._check_rows(lo, hi)
        with self.compared():
            indptr, indices, [weight] = self._csr(
                schema.EDGES, lo, hi, self.nodes, [schema.WEIGHT if weights else ""]
            )
            ids = self._ids(lo, hi)
        return GraphSlice(indptr, indices, weight, None, None, None, None, None, ids)

    def feature_blocks(self, lo: int, hi: int, into: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """Read dense features of rows lo .. hi-1 into the arrays of ``into``, and yield each when it is full.

        Arrays are contiguous, [rows, F] of x_dtype. Of the last array, only the part that was filled is
        yielded. Raises InputError as `slice` does; for a digest that differs, after the last array was yielded.
        """
        self._check_rows(lo, hi)
        row = lo
        with self.compared():
            for x in self.blocks(schema.X, lo, hi, into):
                checks.finite(self.where, schema.X, x, row)
                row += len(x)
                yield x

    def indptr(self) -> np.ndarray:
        """Return the whole indptr, int64 [N + 1]. Raises InputError as `slice` does."""
        with self.compared():
            indptr = self.checked(schema.INDPTR, 0, self.nodes + 1)
            checks.offsets(self.where, schema.INDPTR, indptr, row=0, rows=self.nodes, total=self.edges)
        return indptr

    def edge_digest(self) -> str:
        """Return a digest of all edges, computed from the stored digests of their blocks: XXH3-128 in hexadecimal."""
        there = (name for name in schema.EDGE_DATASETS if name in self.contents.datasets)
        return edge_digest({name: self.stored(schema.DIGEST + name) for name in there})

    def proved_undirected(self) -> bool:
        """Return True if the writer found the reverse of every edge, and the digests of the edges are still the same.

        The edges themselves are not read. If they were changed, they differ from these digests when they are
        read.
        """
        return not self.directed and self._proof == self.edge_digest()

    def bounds(self, parts: int) -> np.ndarray | None:
        """Return the stored row ranges of a number of parts, int64 [parts + 1], or None."""
        path = schema.bounds_path(parts)
        if parts not in self.partitions:
            return None
        with self.compared():
            bounds = self.checked(path, 0, parts + 1)
            checks.bounds(self.where, path, bounds, self.nodes)
        return bounds

    def offset(self, path: str) -> int:
        """Return the offset in the file of a dataset's first byte; its entries are contiguous."""
        return self.spans[path].offset

    def _check_rows(self, lo: int, hi: int) -> None:
        if not 0 <= lo <= hi <= self.nodes:
            raise ValueError(f"rows {lo} .. {hi} are not within 0 .. {self.nodes}")

    def _offsets(self, csr: schema.Csr, lo: int, hi: int) -> np.ndarray:
        """Return the stored offsets lo .. hi of a CSR."""
        total = self.contents.datasets[csr.indices].shape[0]
        indptr = self.checked(csr.indptr, lo, hi + 1)
        checks.offsets(self.where, csr.indptr, indptr, row=lo, rows=self.nodes, total=total)
        return indptr

    def _csr(
        self, csr: schema.Csr, lo: int, hi: int, limit: int, paths: Iterable[str]
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray | None]]:
        """Return offsets, ids and values of rows lo .. hi-1 of a CSR, checked.

        Offsets are shifted to start with 0. limit: ids must be less. paths: datasets with one value per id; for
        those that the file lacks, None is returned.
        """
        indptr = self._offsets(csr, lo, hi)
        begin, end = int(indptr[0]), int(indptr[-1])

        def row_of(entry: int) -> int:
            return lo + int(np.searchsorted(indptr, entry, side="right")) - 1

        indices = self.checked(csr.indices, begin, end)
        checks.ids(self.where, csr, indices, position=begin, limit=limit, row_of=row_of)
        found = [self._optional(path, begin, end) for path in paths]
        for path, values in zip(paths, found, strict=True):
            if values is not None and values.dtype.kind == "f":
                checks.entries_finite(self.where, path, values, position=begin, row_of=row_of)
        return indptr - begin, indices, found

    def _ids(self, lo: int, hi: int) -> np.ndarray:
        """Return the original ids of rows lo .. hi-1, int64."""
        ids = self._optional(schema.PERMUTATION, lo, hi)
        if ids is None:
            return np.arange(lo, hi, dtype=np.int64)
        checks.original_ids(self.where, ids, lo, self.nodes)
        return ids

    def _features(self, lo: int, hi: int, dense: bool) -> np.ndarray | SparseRows | None:
        if self.sparse:
            indptr, indices, [data] = self._csr(schema.COLUMNS, lo, hi, self.features, [schema.X_DATA])
            assert data is not None  # the schema requires it
            return SparseRows(indptr, indices, data, (hi - lo, self.features))
        x = self._optional(schema.X, lo, hi) if dense else None
        if x is not None:
            checks.finite(self.where, schema.X, x, lo)
        return x

    def _labels(self, lo: int, hi: int) -> tuple[np.ndarray | None, tuple[np.ndarray, ...] | None]:
        y = self._optional(schema.Y, lo, hi)
        if y is not None:
            checks.labels(self.where, y, lo, self.classes)
        if not self.has_masks:
            return y, None
        split = tuple(self.checked(path, lo, hi) for path in schema.MASKS)
        checks.masks(self.where, split, y, lo)
        return y, split

    def _optional(self, path: str, lo: int, hi: int) -> np.ndarray | None:
        return self.checked(path, lo, hi) if path in self.contents.datasets else None


def open_graph(path: str | os.PathLike[str]) -> GraphFile:
    """Open a graph file as a context manager. Raises InputError for a file that does not follow the schema."""
    return GraphFile(path)
