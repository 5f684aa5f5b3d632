"""Write graph files: whole or not at all, a dataset at a time, in pieces whose digests are taken as they pass."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from .digest import BLOCK, LARGE_BLOCK, PIECE, BlockDigests, byte_slices, edge_digest
from .graph import Graph
from .hdf5 import LIBVER, created, fill_in
from .header import DIGEST, UINT64, Span
from .store import open_graph
from .structure import ArraySource, check

WRITE_LIMIT = 1 << 30  # most bytes of a system call; Linux writes 2 GiB less a page at most
UNKNOWN = {"uuid": "0" * 36, schema.PROOF: "0" * 32}  # until all bytes are written


@dataclass(frozen=True, eq=False)
class Partition:
    """Row ranges of P ranks: bounds int64 [P+1], the method that made them, and the edges of each rank."""

    bounds: np.ndarray
    method: str
    edge_counts: Sequence[int]


class GraphWriter:
    """A graph file that is being written; see ``graph_file``."""

    def __init__(
        self,
        descriptor: int,
        layouts: Mapping[str, schema.Layout],
        offsets: Mapping[str, int],
        block: int = BLOCK,
    ) -> None:
        self._descriptor, self._layouts, self._offsets = descriptor, layouts, offsets
        self._blocks = block, LARGE_BLOCK
        # Of the datasets that are written, by path: the file's digests, and those that the identity comes from.
        self.digests: dict[str, NDArray[np.uint64]] = {}
        self.content_digests: dict[str, NDArray[np.uint64]] = {}

    def put(self, path: str, pieces: Iterable[NDArray[Any]]) -> None:
        """Write all bytes of a dataset. pieces: contiguous arrays that together have its bytes, in order.

        Raises ValueError if they have more or fewer bytes than the dataset.
        """
        layout, done = self._layouts[path], 0
        runs = [BlockDigests(block) for block in self._blocks]
        sums: list[list[int]] = [[] for _ in runs]
        for piece in pieces:
            data = piece.reshape(-1).view(np.uint8)
            if done + len(data) > layout.nbytes:
                raise ValueError(f"/{path} is {layout}; more bytes came")
            for start in range(0, len(data), PIECE):  # the digests while the bytes are in the caches
                part = data[start : start + PIECE]
                for run, found in zip(runs, sums, strict=True):
                    found.extend(run.update(part))
                self._write(part, self._offsets[path] + done)
                done += len(part)
        if done != layout.nbytes:
            raise ValueError(f"/{path} is {layout}, {layout.nbytes} bytes; {done} came")
        self.digests[path], self.content_digests[path] = (
            np.array(found + run.rest(), dtype=np.uint64) for run, found in zip(runs, sums, strict=True)
        )

    def copy(self, path: str, source: CheckedFile, span: Span) -> None:
        """Copy all bytes of a dataset from another file; their digests have to be given to `graph_file`."""
        source.copy(span, self._descriptor, self._offsets[path])

    def _write(self, data: NDArray[np.uint8], offset: int) -> None:
        """Write bytes, but not through HDF5, which cannot close a file when the device is full."""
        view, done = data.data, 0
        while done < len(data):
            done += os.pwrite(self._descriptor, view[done : done + WRITE_LIMIT], offset + done)


@contextmanager
def graph_file(
    path: str | os.PathLike[str],
    held: schema.Contents,
    *,
    force: bool = False,
    order: str = "",
    partitions: Sequence[Partition] = (),
    identity: str = "",
    proved: bool = False,
    digests: Mapping[str, NDArray[np.uint64]] | None = None,
    block: int = BLOCK,
) -> Iterator[GraphWriter]:
    """Yield a writer, which has to be given every dataset of ``held``; at the body's end the file is there, whole.

    held: what the file holds. proved: each edge's reverse was found to be there, which is recorded (`schema.PROOF`).
    The bounds of ``partitions`` are written by themselves. order: the method that made the permutation. identity: the
    uuid of the graph in its imported numbering, for one whose rows are renumbered: it stays the same graph. Otherwise
    the uuid comes from the contents, row ranges aside: the same graph has the same bytes. digests: those to keep for
    datasets that are copied from another file, damaged or not. block: bytes of the blocks that digests are of. Raises
    InputError where ``replacement`` does.
    """
    held = replace(held, partitions=tuple(len(part.edge_counts) for part in partitions))
    bounds = {schema.bounds_path(len(part.edge_counts)): part.bounds for part in partitions}
    layouts = dict(held.datasets) | {
        name: schema.Layout(schema.INT64, array.shape) for name, array in bounds.items()
    }
    layouts |= {
        f"{DIGEST}/{name}": schema.Layout(UINT64, (-(-layout.nbytes // block),))
        for name, layout in layouts.items()
    }
    size = sum(layout.nbytes for layout in layouts.values())
    with replacement(Path(path), force=force, size=size) as temporary:
        offsets = _lay_out(temporary, held, layouts, partitions, order=order, block=block)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CLOEXEC)
        try:
            reserve(descriptor, os.fstat(descriptor).st_size)
            writer = GraphWriter(descriptor, layouts, offsets, block)
            yield writer
            identity = identity or str(_content_uuid(held, writer.content_digests))
            for name, array in bounds.items():
                writer.put(name, byte_slices(array))
            kept = writer.digests | dict(digests or {})
            for name in (*held.datasets, *bounds):
                writer.put(f"{DIGEST}/{name}", [kept[name]])
        finally:
            os.close(descriptor)
        proof = (
            ""
            if held.directed or not proved
            else edge_digest({name: sums for name, sums in kept.items() if name in schema.EDGE_DATASETS})
        )
        fill_in(temporary, {"uuid": identity, schema.PROOF: proof or UNKNOWN[schema.PROOF]})


def write(
    path: str | os.PathLike[str],
    graph: Graph,
    *,
    force: bool = False,
    order: str = "",
    partitions: Sequence[Partition] = (),
    identity: str = "",
) -> None:
    """Write a graph that is in memory. Arguments and errors as for `graph_file`; InputError if it is not sound."""
    check(ArraySource(graph))
    arguments: dict[str, Any] = {
        "force": force,
        "order": order,
        "partitions": partitions,
        "identity": identity,
        "proved": not graph.directed,
    }
    with graph_file(path, schema.contents(graph), **arguments) as writer:
        for name, array in schema.arrays(graph).items():
            writer.put(name, byte_slices(array))


def write_bounds(
    path: str | os.PathLike[str], parts: int, bounds: np.ndarray, method: str, edge_counts: Sequence[int]
) -> None:
    """Add (or replace) the row ranges of ``parts`` ranks, int64 [parts+1], in a copy that replaces the file.

    The copy has what the format knows; datasets and digests are copied as they are, damaged or not.
    Raises InputError for bounds that do not cover the graph's rows, or if the file cannot be written.
    """
    bounds = np.ascontiguousarray(bounds, dtype=np.int64)
    with open_graph(path) as opened:
        if bounds.shape != (parts + 1,) or len(edge_counts) != parts:
            raise ValueError(f"{parts} parts have {parts + 1} bounds and {parts} edge counts")
        checks.bounds(opened.where, schema.bounds_path(parts), bounds, opened.nodes)
        target = Path(path).resolve()
        partitions = [
            Partition(opened.stored(schema.bounds_path(each)), *told)
            for each, told in opened.partitions.items()
            if each != parts
        ]
        partitions.append(Partition(bounds, method, edge_counts))
        spans, ranges = opened.spans(), set(map(schema.bounds_path, opened.partitions))
        kept = {name: layout for name, layout in opened.contents.datasets.items() if name not in ranges}
        digests = {name: opened.stored(f"{DIGEST}/{name}") for name in kept}
        arguments: dict[str, Any] = {"order": opened.order, "identity": opened.uuid, "digests": digests}
        arguments |= {"block": opened.digest_block, "proved": opened.proved_undirected()}
        held = replace(opened.contents, datasets=kept)
        with graph_file(target, held, force=True, partitions=partitions, **arguments) as writer:
            for name in kept:
                writer.copy(name, opened, spans[name])


def _lay_out(
    path: Path,
    held: schema.Contents,
    layouts: Mapping[str, schema.Layout],
    partitions: Sequence[Partition],
    *,
    order: str,
    block: int,
) -> dict[str, int]:
    """Make a graph file with everything but the bytes of its datasets and UNKNOWN; returns the datasets' offsets."""
    with created(path, libver=LIBVER, locking=False) as file:
        for name, text in (("format", schema.FORMAT), ("name", held.name), *UNKNOWN.items()):
            _write_text(file, name, text)
        numbers = {"directed": held.directed, "classes": held.classes, "multilabel": held.multilabel}
        numbers[schema.DIGEST_BLOCK] = block
        file.attrs.update({"version": schema.VERSION, **numbers})
        offsets = {name: _create(file, name, layout) for name, layout in layouts.items()}
        if held.sparse_shape is not None:
            file[schema.X].attrs["shape"] = np.array(held.sparse_shape, dtype=np.int64)
        if schema.PERMUTATION in layouts and order:
            _write_text(file[schema.PERMUTATION], "method", order)
        for part in partitions:
            group = file[f"partition/{len(part.edge_counts)}"]
            _write_text(group, "method", part.method)
            group.attrs["edge_counts"] = np.asarray(part.edge_counts, dtype=np.int64)
    return offsets


def _write_text(item: h5py.HLObject, name: str, text: str) -> None:
    """Write a text attribute of fixed length, which lies within HDF5's checksums."""
    data = text.encode()
    item.attrs.create(name, data, dtype=h5py.string_dtype("utf-8", max(1, len(data))))


def _content_uuid(held: schema.Contents, sums: Mapping[str, NDArray[np.uint64]]) -> uuid.UUID:
    """Return an identity that depends only on the contents, so that the same graph has the same one everywhere."""
    story = {
        "name": held.name,
        "directed": held.directed,
        "classes": held.classes,
        "features": held.features,
        "layouts": {name: [layout.dtype.str, *layout.shape] for name, layout in held.datasets.items()},
        "digests": {f"{DIGEST}/{name}": values.tolist() for name, values in sums.items()},
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
