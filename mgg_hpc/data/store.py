"""Graph files, read in slices whose digests are checked as they are read."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import checks, schema
from .checked import CheckedFile
from .digest import edge_digest
from .graph import SparseRows
from .header import DIGEST, open_file, read_header


@dataclass(frozen=True, eq=False)
class GraphSlice:
    """The rows lo .. hi-1 of a graph file, n = hi - lo.

    ``indptr`` int64 [n+1] starts with 0; ``indices`` are global row numbers, int32 or int64 as stored;
    ``weight`` float32 or None. ``x`` is float32 or float16 [n, F], SparseRows whose offsets start with 0,
    or None; ``y`` int64 [n], float32 [n, C] or None; the masks bool [n] or None. ``ids`` int64 [n] are
    the original ids. ``edge`` has further data of edges by name, [E, ...] as stored, in the order of ``indices``.
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
    """An open graph file whose structure has been checked; see ``open_graph``.

    Attributes: path, name, uuid, nodes, edges, features (0 without features), classes (0 without labels),
    directed, multilabel, sparse (features are CSR), has_x, has_y, has_masks, weighted, edge_data (names of
    further data of edges), index_dtype, x_dtype (None but for dense features), partitions (parts -> (method,
    edge counts)), order (how rows were renumbered, empty where that is unknown).
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
        self.name, self.uuid, self.partitions = held.name, header.uuid, header.partitions
        self._proof = header.proof
        self.nodes, self.edges, self.order = held.nodes, held.edges, header.order
        self.features, self.classes = held.features, held.classes
        self.directed, self.multilabel = held.directed, held.multilabel
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
        """Return rows lo .. hi-1. dense: whether to read dense features, which `feature_blocks` can read instead.

        edge_data: names of the data of edges to read. [default: all that there are] edges: whether to read the edges
        and their data; without, ``indptr`` still says how many each row has. Raises InputError for a value out
        of place or a block whose digest differs.
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
        """Return the number of edges into rows lo .. hi-1. Raises InputError as ``slice`` does."""
        self._check_rows(lo, hi)
        with self.compared():
            offsets = self._offsets(schema.EDGES, lo, hi)
        return int(offsets[-1] - offsets[0])

    def structure(self, lo: int, hi: int, *, weights: bool = True) -> GraphSlice:
        """Return rows lo .. hi-1 without what belongs to nodes but their ids. Raises InputError as ``slice`` does.

        weights: whether to read the weights of edges.
        """
        self._check_rows(lo, hi)
        with self.compared():
            indptr, indices, [weight] = self._csr(
                schema.EDGES, lo, hi, self.nodes, [schema.WEIGHT if weights else ""]
            )
            ids = self._ids(lo, hi)
        return GraphSlice(indptr, indices, weight, None, None, None, None, None, ids)

    def feature_blocks(self, lo: int, hi: int, into: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        """Read dense features of rows lo .. hi-1, in order, into the arrays of ``into``; yield each when it is full.

        Arrays are contiguous, [rows, F] of x_dtype; only as much of the last one is filled and yielded as is left.
        Raises InputError as ``slice`` does; for a digest that differs only after the last array was yielded.
        """
        self._check_rows(lo, hi)
        row = lo
        with self.compared():
            for x in self.blocks(schema.X, lo, hi, into):
                checks.finite(self.where, schema.X, x, row)
                row += len(x)
                yield x

    def indptr(self) -> np.ndarray:
        """Return the whole of indptr, int64 [N+1]. Raises InputError as ``slice`` does."""
        with self.compared():
            indptr = self.checked(schema.INDPTR, 0, self.nodes + 1)
            checks.offsets(self.where, schema.INDPTR, indptr, row=0, rows=self.nodes, total=self.edges)
        return indptr

    def edge_digest(self) -> str:
        """Return a digest of all edges, of those that the file has for their blocks: XXH3-128 in hexadecimal."""
        found = {
            name: self.stored(f"{DIGEST}/{name}")
            for name in schema.EDGE_DATASETS
            if name in self.contents.datasets
        }
        return edge_digest(found)

    def proved_undirected(self) -> bool:
        """Return whether each edge's reverse was found to be there when the file was written, and edges are the same.

        Slices that are read are compared with the digests that this looks at, so that edges that were changed since
        are seen.
        """
        return not self.directed and self._proof == self.edge_digest()

    def bounds(self, parts: int) -> np.ndarray | None:
        """Return the stored row ranges int64 [parts+1], None if the file has none for this number of parts."""
        path = schema.bounds_path(parts)
        if parts not in self.partitions:
            return None
        with self.compared():
            bounds = self.checked(path, 0, parts + 1)
            checks.bounds(self.where, path, bounds, self.nodes)
        return bounds

    def _check_rows(self, lo: int, hi: int) -> None:
        if not 0 <= lo <= hi <= self.nodes:
            raise ValueError(f"rows {lo} .. {hi} are not within 0 .. {self.nodes}")

    def _offsets(self, csr: schema.Csr, lo: int, hi: int) -> np.ndarray:
        """Return the offsets of rows lo .. hi-1 of a CSR, and of the end of the last one, as the file has them."""
        total = self.contents.datasets[csr.indices].shape[0]
        indptr = self.checked(csr.indptr, lo, hi + 1)
        checks.offsets(self.where, csr.indptr, indptr, row=lo, rows=self.nodes, total=total)
        return indptr

    def _csr(
        self, csr: schema.Csr, lo: int, hi: int, limit: int, paths: Iterable[str]
    ) -> tuple[np.ndarray, np.ndarray, list[np.ndarray | None]]:
        """Return offsets from 0 on and ids (below ``limit``) of rows lo .. hi-1 of a CSR.

        And the values of each of ``paths``, datasets in the order of the ids; None where the file has them not.
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
            assert data is not None  # the schema asks for it
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
    """Open a graph file after checking its format, version, types and shapes against the schema.

    Use it as a context manager. Raises InputError for a file that does not follow the schema.
    """
    return GraphFile(path)
