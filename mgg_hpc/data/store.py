"""Graph files: written whole, read in slices whose digests are checked as they are read."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash
from numpy.typing import NDArray

from . import checks, schema
from .atomic_write import replacement, reserve
from .checked import CheckedFile
from .digest import byte_slices, digests
from .graph import Graph, SparseRows
from .hdf5.writing import created
from .header import DIGEST, open_file, read_header
from .structure import ArraySource, check

# Since format 1.8 HDF5 checksums its own structures, so that damage is an error. In older formats, and in strings of
# variable length, damage leads to endless loops and invalid reads.
LIBVER = ("v108", "v108")
WRITE_LIMIT = 1 << 30  # most bytes of a system call; Linux writes 2 GiB less a page at most


@dataclass(frozen=True, eq=False)
class GraphSlice:
    """The rows lo .. hi-1 of a graph file, n = hi - lo.

    ``indptr`` int64 [n+1] starts with 0; ``indices`` are global row numbers, int32 or int64 as stored;
    ``weight`` float32 or None. ``x`` is float32 or float16 [n, F], SparseRows whose offsets start with 0,
    or None; ``y`` int64 [n], float32 [n, C] or None; the masks bool [n] or None. ``ids`` int64 [n] are
    the original ids.
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


@dataclass(frozen=True, eq=False)
class Partition:
    """Row ranges of P ranks: bounds int64 [P+1], the method that made them, and the edges of each rank."""

    bounds: np.ndarray
    method: str
    edge_counts: Sequence[int]


class GraphFile(CheckedFile):
    """An open graph file whose structure has been checked; see ``open_graph``.

    Attributes: path, name, uuid, nodes, edges, features (0 without features), classes (0 without labels),
    directed, multilabel, sparse (features are CSR), has_x, has_y, has_masks, weighted, index_dtype,
    x_dtype (None but for dense features), partitions (parts -> (method, edge counts)), order (how rows were
    renumbered, empty where that is unknown).
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
        self.nodes, self.edges, self.order = held.nodes, held.edges, header.order
        self.features, self.classes = held.features, held.classes
        self.directed, self.multilabel = held.directed, held.multilabel
        self.sparse = held.sparse_shape is not None
        self.has_x, self.has_y = held.features > 0, schema.Y in held.datasets
        self.has_masks, self.weighted = schema.TRAIN in held.datasets, schema.WEIGHT in held.datasets
        self.index_dtype = held.datasets[schema.INDICES].dtype
        self.x_dtype = held.datasets[schema.X].dtype if schema.X in held.datasets else None

    def __enter__(self) -> GraphFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def slice(self, lo: int, hi: int, *, dense: bool = True) -> GraphSlice:
        """Return rows lo .. hi-1. dense: whether to read dense features, which `feature_blocks` can read instead.

        Raises InputError for a value out of place or a block whose digest differs.
        """
        self._check_rows(lo, hi)
        with self.compared():
            indptr, indices, weight = self._csr(schema.EDGES, lo, hi, self.nodes)
            x = self._features(lo, hi, dense)
            y, split = self._labels(lo, hi)
            ids = self._optional(schema.PERMUTATION, lo, hi)
            if ids is None:
                ids = np.arange(lo, hi, dtype=np.int64)
            else:
                checks.original_ids(self.where, ids, lo, self.nodes)
        train, val, test = split or (None, None, None)
        return GraphSlice(indptr, indices, weight, x, y, train, val, test, ids)

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

    def _csr(
        self, csr: schema.Csr, lo: int, hi: int, limit: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Return offsets from 0 on, ids (below ``limit``) and values, where stored, of rows lo .. hi-1 of a CSR."""
        total = self.contents.datasets[csr.indices].shape[0]
        indptr = self.checked(csr.indptr, lo, hi + 1)
        checks.offsets(self.where, csr.indptr, indptr, row=lo, rows=self.nodes, total=total)
        begin, end = int(indptr[0]), int(indptr[-1])

        def row_of(entry: int) -> int:
            return lo + int(np.searchsorted(indptr, entry, side="right")) - 1

        indices = self.checked(csr.indices, begin, end)
        checks.ids(self.where, csr, indices, position=begin, limit=limit, row_of=row_of)
        values = self._optional(csr.values, begin, end)
        if values is not None:
            checks.entries_finite(self.where, csr.values, values, position=begin, row_of=row_of)
        return indptr - begin, indices, values

    def _features(self, lo: int, hi: int, dense: bool) -> np.ndarray | SparseRows | None:
        if self.sparse:
            indptr, indices, data = self._csr(schema.COLUMNS, lo, hi, self.features)
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


def write(
    path: str | os.PathLike[str],
    graph: Graph,
    *,
    force: bool = False,
    order: str = "",
    partitions: Sequence[Partition] = (),
    identity: str = "",
) -> None:
    """Write a graph file; it is there whole or not at all. order: the method that made the permutation.

    The same graph gives the same bytes: the uuid comes from the contents, row ranges aside. identity: the uuid of the
    graph in its imported numbering, for one whose rows are renumbered: it stays the same graph. Raises InputError if
    the graph is not sound, ``path`` exists (unless ``force``) or is not writable, or the device is full.
    """
    check(ArraySource(graph))
    arrays = schema.arrays(graph)
    bounds = {schema.bounds_path(len(part.edge_counts)): part.bounds for part in partitions}
    sums = {f"{DIGEST}/{name}": digests(array) for name, array in arrays.items()}
    identity = identity or str(_content_uuid(graph, arrays, sums))
    sums |= {f"{DIGEST}/{name}": digests(array) for name, array in bounds.items()}
    everything = arrays | bounds | sums
    size = sum(array.nbytes for array in everything.values())
    held = replace(schema.contents(graph), partitions=tuple(len(part.edge_counts) for part in partitions))
    layouts = {name: schema.Layout(array.dtype, array.shape) for name, array in everything.items()}
    with replacement(Path(path), force=force, size=size) as temporary:
        offsets = _lay_out(temporary, held, layouts, partitions, identity=identity, order=order)
        _write_bytes(temporary, {offsets[name]: byte_slices(array) for name, array in everything.items()})


def _lay_out(
    path: Path,
    held: schema.Contents,
    layouts: Mapping[str, schema.Layout],
    partitions: Sequence[Partition],
    *,
    identity: str,
    order: str,
) -> dict[str, int]:
    """Make a graph file with everything but the bytes of its datasets; returns their offsets."""
    with created(path, libver=LIBVER, locking=False) as file:
        for name, text in (("format", schema.FORMAT), ("name", held.name), ("uuid", identity)):
            _write_text(file, name, text)
        numbers = {"directed": held.directed, "classes": held.classes, "multilabel": held.multilabel}
        file.attrs.update({"version": schema.VERSION, **numbers})
        offsets = {name: _create(file, name, layout) for name, layout in layouts.items()}
        if held.sparse_shape is not None:
            file[schema.X].attrs["shape"] = np.array(held.sparse_shape, dtype=np.int64)
        if schema.PERMUTATION in layouts and order:
            _write_text(file[schema.PERMUTATION], "method", order)
        for part in partitions:
            _describe_bounds(file, part)
    return offsets


def _write_text(item: h5py.HLObject, name: str, text: str) -> None:
    """Write a text attribute of fixed length, which lies within HDF5's checksums."""
    data = text.encode()
    item.attrs.create(name, data, dtype=h5py.string_dtype("utf-8", max(1, len(data))))


def _content_uuid(graph: Graph, arrays: dict[str, np.ndarray], sums: dict[str, np.ndarray]) -> uuid.UUID:
    """Return an identity that depends only on the contents, so that the same graph has the same one everywhere."""
    story = {
        "name": graph.name,
        "directed": graph.directed,
        "classes": graph.classes,
        "features": graph.features,
        "layouts": {name: [array.dtype.str, *array.shape] for name, array in arrays.items()},
        "digests": {name: values.tolist() for name, values in sums.items()},
    }
    text = json.dumps(story, sort_keys=True).encode()
    return uuid.UUID(bytes=xxhash.xxh3_128_digest(text), version=4)


def _create(file: h5py.File, path: str, layout: schema.Layout) -> int:
    """Create a contiguous dataset whose bytes are written later, and return their offset in the file."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plan.set_obj_track_times(False)  # the same graph gives the same bytes
    folder, _, name = path.rpartition("/")
    kind = h5py.h5t.py_create(layout.dtype, logical=True)
    space = h5py.h5s.create_simple(layout.shape)
    dataset = h5py.h5d.create(file.require_group(folder).id, name.encode(), kind, space, plan)
    return int(dataset.get_offset() or 0)


def _write_bytes(path: Path, data: Mapping[int, Iterable[NDArray[np.uint8]]]) -> None:
    """Write bytes by their offset, but not through HDF5, which cannot close a file when the device is full."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        reserve(descriptor, os.fstat(descriptor).st_size)
        for offset, pieces in data.items():
            at = offset
            for piece in pieces:
                view, done = piece.data, 0
                while done < len(piece):
                    done += os.pwrite(descriptor, view[done : done + WRITE_LIMIT], at + done)
                at += len(piece)
    finally:
        os.close(descriptor)


def _describe_bounds(file: h5py.File, part: Partition) -> None:
    group = file[f"partition/{len(part.edge_counts)}"]
    _write_text(group, "method", part.method)
    group.attrs["edge_counts"] = np.asarray(part.edge_counts, dtype=np.int64)


def write_bounds(
    path: str | os.PathLike[str], parts: int, bounds: np.ndarray, method: str, edge_counts: Sequence[int]
) -> None:
    """Add (or replace) the row ranges of ``parts`` ranks, int64 [parts+1], in a copy that replaces the file.

    The copy has what the format knows; datasets and digests are copied as they are, damaged or not.
    Raises InputError for bounds that do not cover the graph's rows, or if the file cannot be written.
    """
    bounds = np.ascontiguousarray(bounds, dtype=np.int64)
    name = schema.bounds_path(parts)
    sums, sums_name = digests(bounds), f"{DIGEST}/{name}"
    with open_graph(path) as opened:
        if bounds.shape != (parts + 1,) or len(edge_counts) != parts:
            raise ValueError(f"{parts} parts have {parts + 1} bounds and {parts} edge counts")
        checks.bounds(opened.where, name, bounds, opened.nodes)
        target = Path(path).resolve()
        kept = {each: span for each, span in opened.spans().items() if each not in (name, sums_name)}
        layouts = {each: span.layout for each, span in kept.items()}
        layouts |= {name: schema.Layout(bounds.dtype, bounds.shape)}
        layouts |= {sums_name: schema.Layout(sums.dtype, sums.shape)}
        partitions = [
            Partition(np.empty(0), told[0], told[1])
            for each, told in opened.partitions.items()
            if each != parts
        ]
        partitions.append(Partition(bounds, method, edge_counts))
        with replacement(target, force=True, size=target.stat().st_size) as temporary:
            offsets = _lay_out(
                temporary, opened.contents, layouts, partitions, identity=opened.uuid, order=opened.order
            )
            pieces = {offsets[each]: opened.raw(span) for each, span in kept.items()}
            pieces |= {offsets[name]: byte_slices(bounds), offsets[sums_name]: byte_slices(sums)}
            _write_bytes(temporary, pieces)
