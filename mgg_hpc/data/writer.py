"""Write graph files, whole or not at all: a dataset at a time, in pieces of which digests are computed."""

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
from .digest import BLOCK, LARGE_BLOCK, PIECE, BlockDigests, byte_slices, edge_digest
from .graph import Graph
from .hdf5 import LIBVER, create_dataset, opened, replace_texts
from .header import digest_layout
from .store import CheckedFile, open_graph
from .verify import ArraySource, check

WRITE_LIMIT = 1 << 30  # bytes of a system call; Linux writes 2 GiB less a page at most
UNKNOWN = {"uuid": "0" * 36, schema.PROOF: "0" * 32}  # attributes until all bytes are written


@dataclass(frozen=True, eq=False)
class Partition:
    """Row ranges of P ranks: bounds int64 [P + 1], the method that chose them, and the edges of each rank."""

    bounds: np.ndarray
    method: str
    edge_counts: Sequence[int]


class GraphWriter:
    """A graph file that is being written; see `graph_file`.

    Attributes:
        digests: digests of the datasets that were written, by path.
        content_digests: digests of larger blocks, from which the uuid is computed.
    """

    def __init__(
        self,
        descriptor: int,
        layouts: Mapping[str, schema.Layout],
        offsets: Mapping[str, int],
        block: int = BLOCK,
    ) -> None:
        self._descriptor, self._layouts, self._offsets = descriptor, layouts, offsets
        self._blocks = block, LARGE_BLOCK
        self.digests: dict[str, NDArray[np.uint64]] = {}
        self.content_digests: dict[str, NDArray[np.uint64]] = {}

    def put(self, path: str, pieces: Iterable[NDArray[Any]]) -> None:
        """Write a dataset from contiguous arrays that contain its bytes in order.

        Raises ValueError if they have more or fewer bytes than the dataset.
        """
        layout, done = self._layouts[path], 0
        runs = [BlockDigests(block) for block in self._blocks]
        sums: list[list[int]] = [[] for _ in runs]
        for piece in pieces:
            data = piece.reshape(-1).view(np.uint8)
            if done + len(data) > layout.nbytes:
                raise ValueError(f"/{path} is {layout}; more bytes came")
            for start in range(0, len(data), PIECE):  # pieces are still in the caches for their digests
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

    def copy(self, path: str, source: CheckedFile) -> None:
        """Copy a dataset from another file. Its digests must be passed to `graph_file`."""
        source.copy(path, self._descriptor, self._offsets[path])

    def _write(self, data: NDArray[np.uint8], offset: int) -> None:
        """Write bytes without HDF5, which cannot close a file when the device is full."""
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
    """Yield a writer, by which the body writes every dataset of ``held``. The file appears when the body ends.

    Args:
        held: contents of the file, except for row ranges, which ``partitions`` has.
        order: method that renumbered the rows.
        partitions: row ranges to write.
        identity: uuid, for a renumbered copy of a graph. [default: computed from the contents without row ranges, so
            that equal graphs have equal files]
        proved: the reverse of each edge was found, which is recorded (`schema.PROOF`).
        digests: digests of datasets that are copied from another file, recorded without a comparison.
        block: bytes of a block that has a digest.

    Raises InputError as `replacement` does.
    """
    held = replace(held, partitions=tuple(len(part.edge_counts) for part in partitions))
    bounds = {schema.bounds_path(len(part.edge_counts)): part.bounds for part in partitions}
    layouts = dict(held.datasets) | {
        name: schema.Layout(schema.INT64, array.shape) for name, array in bounds.items()
    }
    layouts |= {schema.DIGEST + name: digest_layout(layout, block) for name, layout in layouts.items()}
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
                writer.put(schema.DIGEST + name, [kept[name]])
        finally:
            os.close(descriptor)
        proof = UNKNOWN[schema.PROOF]
        if proved and not held.directed:
            proof = edge_digest({name: sums for name, sums in kept.items() if name in schema.EDGE_DATASETS})
        replace_texts(temporary, {"uuid": identity, schema.PROOF: proof})


def write(path: str | os.PathLike[str], graph: Graph, **options: Any) -> None:
    """Write a graph that is in memory.

    options: force, order, partitions and identity of `graph_file`. Raises InputError as it does, and if the graph is
    not sound.
    """
    check(ArraySource(graph))
    with graph_file(path, schema.contents(graph), proved=not graph.directed, **options) as writer:
        for name, array in schema.arrays(graph).items():
            writer.put(name, byte_slices(array))


def write_bounds(
    path: str | os.PathLike[str], parts: int, bounds: np.ndarray, method: str, edge_counts: Sequence[int]
) -> None:
    """Add or replace the row ranges of ``parts`` ranks, int64 [parts + 1], in a copy that replaces the file.

    Datasets and digests are copied unchecked; objects that are not in the schema are left out. Raises InputError for
    bounds that do not cover the rows of the graph, or if the file cannot be written.
    """
    bounds = np.ascontiguousarray(bounds, dtype=np.int64)
    with open_graph(path) as source:
        if bounds.shape != (parts + 1,) or len(edge_counts) != parts:
            raise ValueError(f"{parts} parts have {parts + 1} bounds and {parts} edge counts")
        checks.bounds(source.where, schema.bounds_path(parts), bounds, source.nodes)
        partitions = [
            Partition(source.stored(schema.bounds_path(each)), *facts)
            for each, facts in source.partitions.items()
            if each != parts
        ]
        partitions.append(Partition(bounds, method, edge_counts))
        ranges = set(map(schema.bounds_path, source.partitions))
        kept = {name: layout for name, layout in source.contents.datasets.items() if name not in ranges}
        with graph_file(
            Path(path).resolve(),
            replace(source.contents, datasets=kept),
            force=True,
            order=source.order,
            partitions=partitions,
            identity=source.uuid,
            proved=source.proved_undirected(),
            digests={name: source.stored(schema.DIGEST + name) for name in kept},
            block=source.digest_block,
        ) as writer:
            for name in kept:
                writer.copy(name, source)


def _lay_out(
    path: Path,
    held: schema.Contents,
    layouts: Mapping[str, schema.Layout],
    partitions: Sequence[Partition],
    *,
    order: str,
    block: int,
) -> dict[str, int]:
    """Create a graph file with placeholders for UNKNOWN, and return the offsets of its datasets, not yet written."""
    with opened(path, "w", libver=LIBVER, locking=False) as file:
        texts = {"format": schema.FORMAT, "name": held.name, **UNKNOWN}
        for name, text in (texts | ({"types": held.types} if held.types else {})).items():
            _write_text(file, name, text)
        numbers = {"directed": held.directed, "classes": held.classes, "multilabel": held.multilabel}
        numbers[schema.DIGEST_BLOCK] = block
        file.attrs.update({"version": schema.VERSION, **numbers})
        offsets = {name: create_dataset(file, name, each.dtype, each.shape) for name, each in layouts.items()}
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
    """Return a uuid that depends on the contents alone, so that equal graphs have the same one everywhere."""
    story = {
        "name": held.name,
        "directed": held.directed,
        "classes": held.classes,
        "features": held.features,
        **({"types": held.types} if held.types else {}),
        "layouts": {name: [layout.dtype.str, *layout.shape] for name, layout in held.datasets.items()},
        "digests": {schema.DIGEST + name: values.tolist() for name, values in sums.items()},
    }
    text = json.dumps(story, sort_keys=True).encode()
    return uuid.UUID(bytes=xxhash.xxh3_128_digest(text), version=4)
