"""Graph files: written whole, read in slices whose digests are checked as they are read."""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import h5py
import numpy as np
import xxhash

from ..errors import InputError
from . import checks, schema
from .digest import BLOCK, block_digests, byte_slices, digests
from .graph import Graph, SparseRows
from .header import DIGEST, Span, read_header
from .structure import ArraySource, check
from .whole import replacement, reserve

# HDF5 checksums its own structures in the formats since 1.8, which makes of a damaged file an error; in older
# ones, and in strings of variable length, damage sends the library into endless loops and wild reads.
LIBVER = ("v108", "v108")
READ_LIMIT = 1 << 30  # bytes a system call; Linux reads 2 GiB less a page at most


@dataclass(frozen=True, eq=False)
class GraphSlice:
    """Rows lo .. hi-1 of a graph file, n = hi - lo.

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
    """Row ranges of P ranks, int64 [P+1], how they were found, and the edges of each."""

    bounds: np.ndarray
    method: str
    edge_counts: Sequence[int]


class GraphFile:
    """An open graph file whose structure has been checked; see ``open_graph``.

    Attributes: path, name, uuid, nodes, edges, features (0 without features), classes (0 without labels),
    directed, multilabel, sparse (features are CSR), has_x, has_y, has_masks, weighted, index_dtype,
    partitions (parts -> (method, edge counts)), order (how rows were renumbered, empty where that is unknown).
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.where = str(path)
        header = read_header(self.path)
        held = self.contents = header.contents
        self.name, self.uuid, self.partitions = held.name, header.uuid, header.partitions
        self.nodes, self.edges, self.order = held.nodes, held.edges, header.order
        self.features, self.classes = held.features, held.classes
        self.directed, self.multilabel = held.directed, held.multilabel
        self.sparse = held.sparse_shape is not None
        self.has_x, self.has_y = held.features > 0, schema.Y in held.datasets
        self.has_masks, self.weighted = schema.TRAIN in held.datasets, schema.WEIGHT in held.datasets
        self.index_dtype = held.datasets[schema.INDICES].dtype
        self._spans, self._digest_spans = header.spans, header.digests
        self._expected: dict[str, np.ndarray] = {}
        self._fault: str | None = None
        # HDF5 is done with: all bytes are read through this descriptor, which goes on showing the same file
        # when another process replaces it.
        self._descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)

    def __enter__(self) -> GraphFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def slice(self, lo: int, hi: int) -> GraphSlice:
        """Rows lo .. hi-1. Raises InputError for a value out of place or a block whose digest differs."""
        if not 0 <= lo <= hi <= self.nodes:
            raise ValueError(f"rows {lo} .. {hi} are not within 0 .. {self.nodes}")
        indptr, indices, weight = self._edges(lo, hi)
        x = self._features(lo, hi)
        y, split = self._labels(lo, hi)
        ids = self._optional(schema.PERMUTATION, lo, hi)
        if ids is None:
            ids = np.arange(lo, hi, dtype=np.int64)
        else:
            checks.original_ids(self.where, ids, lo, self.nodes)
        self._raise_fault()
        train, val, test = split or (None, None, None)
        return GraphSlice(indptr, indices, weight, x, y, train, val, test, ids)

    def indptr(self) -> np.ndarray:
        """The whole of indptr, int64 [N+1]. Raises InputError as ``slice`` does."""
        indptr = self._checked(schema.INDPTR, 0, self.nodes + 1)
        checks.offsets(self.where, schema.INDPTR, indptr, row=0, rows=self.nodes, total=self.edges)
        self._raise_fault()
        return indptr

    def bounds(self, parts: int) -> np.ndarray | None:
        """The stored row ranges int64 [parts+1], None where the file has none for this number of parts."""
        path = schema.bounds_path(parts)
        if parts not in self.partitions:
            return None
        bounds = self._checked(path, 0, parts + 1)
        checks.bounds(self.where, path, bounds, self.nodes)
        self._raise_fault()
        return bounds

    def read(self, path: str, lo: int, hi: int) -> np.ndarray:
        """Entries lo .. hi-1 of one dataset as they are, unchecked."""
        span = self._spans[path]
        row_bytes = span.layout.row_bytes
        return _typed(self._bytes(span.offset + lo * row_bytes, (hi - lo) * row_bytes), span, hi - lo)

    def check_digests(self, path: str) -> None:
        """Raise InputError at the first block of a dataset whose digest differs."""
        span = self._spans[path]
        total = span.layout.nbytes
        for start in range(0, total, BLOCK):
            data = self._bytes(span.offset + start, min(BLOCK, total - start))
            self._compare(path, start // BLOCK, data)
            self._raise_fault()

    def _edges(self, lo: int, hi: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        indptr = self._checked(schema.INDPTR, lo, hi + 1)
        checks.offsets(self.where, schema.INDPTR, indptr, row=lo, rows=self.nodes, total=self.edges)
        begin, end = int(indptr[0]), int(indptr[-1])
        row_of = _row_finder(indptr, lo)
        indices = self._checked(schema.INDICES, begin, end)
        checks.ids(
            self.where,
            schema.INDICES,
            indices,
            position=begin,
            limit=self.nodes,
            row_of=row_of,
            kind="source",
        )
        weight = self._optional(schema.WEIGHT, begin, end)
        if weight is not None:
            checks.entries_finite(self.where, schema.WEIGHT, weight, position=begin, row_of=row_of)
        return indptr - begin, indices, weight

    def _features(self, lo: int, hi: int) -> np.ndarray | SparseRows | None:
        if not self.sparse:
            x = self._optional(schema.X, lo, hi)
            if x is not None:
                checks.finite(self.where, schema.X, x, lo)
            return x
        stored = self._spans[schema.X_DATA].layout.shape[0]
        indptr = self._checked(schema.X_INDPTR, lo, hi + 1)
        checks.offsets(self.where, schema.X_INDPTR, indptr, row=lo, rows=self.nodes, total=stored)
        begin, end = int(indptr[0]), int(indptr[-1])
        row_of = _row_finder(indptr, lo)
        indices = self._checked(schema.X_INDICES, begin, end)
        checks.ids(
            self.where,
            schema.X_INDICES,
            indices,
            position=begin,
            limit=self.features,
            row_of=row_of,
            kind="column",
        )
        data = self._checked(schema.X_DATA, begin, end)
        checks.entries_finite(self.where, schema.X_DATA, data, position=begin, row_of=row_of)
        return SparseRows(indptr - begin, indices, data, (hi - lo, self.features))

    def _labels(self, lo: int, hi: int) -> tuple[np.ndarray | None, tuple[np.ndarray, ...] | None]:
        y = self._optional(schema.Y, lo, hi)
        if y is not None:
            checks.labels(self.where, y, lo, self.classes)
        if not self.has_masks:
            return y, None
        split = tuple(self._checked(path, lo, hi) for path in schema.MASKS)
        checks.masks(self.where, split, y, lo)
        return y, split

    def _optional(self, path: str, lo: int, hi: int) -> np.ndarray | None:
        return self._checked(path, lo, hi) if path in self._spans else None

    def _checked(self, path: str, lo: int, hi: int) -> np.ndarray:
        """Entries lo .. hi-1, read as whole blocks whose digests are compared.

        The first difference is kept, not raised, so that a check of values can name the value that is
        wrong.
        """
        span = self._spans[path]
        row_bytes = span.layout.row_bytes
        first, last = lo * row_bytes // BLOCK, -(-hi * row_bytes // BLOCK)
        start, end = first * BLOCK, min(last * BLOCK, span.layout.nbytes)
        if lo == hi:
            return _typed(np.empty(0, np.uint8), span, 0)
        data = self._bytes(span.offset + start, end - start)
        self._compare(path, first, data)
        return _typed(data[lo * row_bytes - start : hi * row_bytes - start], span, hi - lo)

    def _compare(self, path: str, block: int, data: np.ndarray) -> None:
        if path not in self._expected:
            span = self._digest_spans[path]
            self._expected[path] = _typed(
                self._bytes(span.offset, span.layout.nbytes), span, span.layout.shape[0]
            )
        found = block_digests(data)
        at = checks.first(found != self._expected[path][block : block + len(found)])
        if at is not None and self._fault is None:
            start = (block + at) * BLOCK
            row_bytes = self._spans[path].layout.row_bytes
            entries = f"{start // row_bytes} .. {(min(start + BLOCK, start + len(data)) - 1) // row_bytes}"
            self._fault = (
                f"{self.where}: /{path} is damaged: the digest of block {block + at} (entries {entries}) "
                "differs; import or copy the file again"
            )

    def _raise_fault(self) -> None:
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise InputError(fault)

    def _bytes(self, offset: int, count: int) -> np.ndarray:
        """uint8 [count] from the file. Raises InputError if it has become shorter."""
        data = np.empty(count, dtype=np.uint8)
        view, done = data.data, 0
        while done < count:
            read = os.preadv(self._descriptor, [view[done : done + READ_LIMIT]], offset + done)
            if read == 0:
                raise InputError(
                    f"{self.where} is truncated at byte {offset + done}; copy or import it again"
                )
            done += read
        return data


def open_graph(path: str | os.PathLike[str]) -> GraphFile:
    """Open a graph file after checking its format, version, types and shapes against the schema.

    Use it as a context manager. Raises InputError for anything else than a sound graph file's structure.
    """
    return GraphFile(path)


def _typed(data: np.ndarray, span: Span, rows: int) -> np.ndarray:
    return data.view(span.layout.dtype).reshape(rows, *span.layout.shape[1:])


def _row_finder(indptr: np.ndarray, first_row: int) -> Callable[[int], int]:
    """The function that gives the row of a stored entry."""
    return lambda entry: first_row + int(np.searchsorted(indptr, entry, side="right")) - 1


def write(
    path: str | os.PathLike[str],
    graph: Graph,
    *,
    force: bool = False,
    order: str = "",
    partitions: Sequence[Partition] = (),
) -> None:
    """Write a graph file; it is there whole or not at all. ``order`` says how the permutation was made.

    The same graph gives the same bytes: the uuid comes from the contents, row ranges aside. Raises InputError
    if the graph is not sound, ``path`` exists (unless ``force``) or is not writable, or the device is full.
    """
    check(ArraySource(graph))
    arrays = schema.arrays(graph)
    bounds = {schema.bounds_path(len(part.edge_counts)): part.bounds for part in partitions}
    sums = {f"{DIGEST}/{name}": digests(array) for name, array in arrays.items()}
    identity = _content_uuid(graph, arrays, sums)
    sums |= {f"{DIGEST}/{name}": digests(array) for name, array in bounds.items()}
    everything = arrays | bounds | sums
    size = sum(array.nbytes for array in everything.values())
    with replacement(Path(path), force=force, size=size) as temporary:
        with h5py.File(temporary, "w", libver=LIBVER, locking=False) as file:
            _write_attributes(file, graph, identity)
            offsets = {name: _create(file, name, array) for name, array in everything.items()}
            if isinstance(graph.x, SparseRows):
                file[schema.X].attrs["shape"] = np.array(graph.x.shape, dtype=np.int64)
            if graph.permutation is not None and order:
                _write_text(file[schema.PERMUTATION], "method", order)
            for part in partitions:
                _describe_bounds(file, part)
        _write_bytes(temporary, offsets, everything)


def _write_attributes(file: h5py.File, graph: Graph, identity: uuid.UUID) -> None:
    for name, text in (("format", schema.FORMAT), ("name", graph.name), ("uuid", str(identity))):
        _write_text(file, name, text)
    file.attrs["version"] = schema.VERSION
    file.attrs["directed"] = graph.directed
    file.attrs["classes"] = graph.classes
    file.attrs["multilabel"] = graph.multilabel


def _write_text(item: h5py.HLObject, name: str, text: str) -> None:
    """Write a text attribute of fixed length, which lies within HDF5's checksums."""
    data = text.encode()
    item.attrs.create(name, data, dtype=h5py.string_dtype("utf-8", max(1, len(data))))


def _content_uuid(graph: Graph, arrays: dict[str, np.ndarray], sums: dict[str, np.ndarray]) -> uuid.UUID:
    """An identity that follows from the contents: the same for the same graph, wherever it was made."""
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


def _create(file: h5py.File, path: str, array: np.ndarray) -> int:
    """Make a contiguous dataset whose bytes come later, and return where they belong in the file."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    plan.set_obj_track_times(False)  # the same graph gives the same bytes
    folder, _, name = path.rpartition("/")
    kind = h5py.h5t.py_create(array.dtype, logical=True)
    space = h5py.h5s.create_simple(array.shape)
    dataset = h5py.h5d.create(file.require_group(folder).id, name.encode(), kind, space, plan)
    return int(dataset.get_offset() or 0)


def _write_bytes(path: Path, offsets: dict[str, int], arrays: dict[str, np.ndarray]) -> None:
    """Fill in the datasets. Not through HDF5, which cannot close a file when the device is full."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        reserve(descriptor, os.fstat(descriptor).st_size)
        for name, array in arrays.items():
            at = offsets[name]
            for piece in byte_slices(array):
                view, done = piece.data, 0
                while done < len(piece):
                    done += os.pwrite(descriptor, view[done : done + READ_LIMIT], at + done)
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

    Raises InputError for bounds that do not cover the graph's rows, or if the file cannot be written.
    """
    bounds = np.ascontiguousarray(bounds, dtype=np.int64)
    name = schema.bounds_path(parts)
    with open_graph(path) as opened:
        if bounds.shape != (parts + 1,) or len(edge_counts) != parts:
            raise ValueError(f"{parts} parts have {parts + 1} bounds and {parts} edge counts")
        checks.bounds(opened.where, name, bounds, opened.nodes)
    target = Path(path).resolve()
    arrays = {name: bounds, f"{DIGEST}/{name}": digests(bounds)}
    with replacement(target, force=True, size=target.stat().st_size) as temporary:
        shutil.copyfile(target, temporary)
        with h5py.File(temporary, "r+", libver=LIBVER, locking=False) as file:
            for group in (f"partition/{parts}", f"{DIGEST}/partition/{parts}"):
                if group in file:
                    del file[group]
            offsets = {each: _create(file, each, array) for each, array in arrays.items()}
            _describe_bounds(file, Partition(bounds, method, edge_counts))
        _write_bytes(temporary, offsets, arrays)
