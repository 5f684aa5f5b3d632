"""OGB's node-property datasets: the files that the package ogb downloads, in its text and in its binary form.

https://ogb.stanford.edu, Hu et al., "Open Graph Benchmark" (NeurIPS '20). A folder such as ``ogbn_arxiv`` has ``raw``
with ``edge.csv.gz``, ``num-node-list.csv.gz``, ``node-feat.csv.gz``, ``node-label.csv.gz`` and ``edge-feat.csv.gz``, or
with ``data.npz`` and ``node-label.npz``; and ``split/NAME`` with the nodes of ``train.csv.gz``, ``valid.csv.gz`` and
``test.csv.gz``. What OGB's package makes of them (``processed``, pickles) is not read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import schema
from ..edge_stream import EdgeBlock, EdgeStream, Imported, Rows
from ..schema import Layout
from .arrays.archive import Archive
from .arrays.edges import PairedEdges, pair_of
from .arrays.node_rows import check_nodes, chosen, feature_rows, label_rows, of_array
from .arrays.table import open_table
from .edge_list import open_edge_list
from .npy import Array

ONE_WAY = ("products", "proteins")  # datasets whose text lists each undirected edge once
SPLIT_FILES = ("train", "valid", "test")
TAKEN = ("edge_index", "node_feat", "edge_feat", "num_nodes_list", "num_edges_list")
FEATURE = "feat"  # the name of the data of edges
SKIPPED = 1 << 20  # rows that are passed over at a time


def open_ogb(folder: Path, *, dtype: str = "float32") -> Imported:
    """Open the folder of a dataset as a stream. dtype: of stored features, "float32" or "float16".

    Edges are those that OGB's loader gives: of ogbn-products and ogbn-proteins, which list each edge once, in both
    directions. Features of edges become the data "feat". A label NaN is none. Raises InputError that names the file for
    one that is missing or does not fit; passes raise it for what is wrong in one.
    """
    folder = Path(folder)
    raw = folder / "raw"
    if not raw.is_dir():
        raise InputError(f"{folder} has no folder raw; expected a dataset of OGB, with raw and split")
    name = folder.resolve().name.removeprefix("ogbn_")
    found = (
        _binary(raw, np.dtype(dtype)) if (raw / "data.npz").is_file() else _text(raw, name, np.dtype(dtype))
    )
    edges, features, labels, nodes = found
    rows = {} if features is None else {schema.X: features}
    fields: dict[str, Any] = {}
    if labels is not None:
        where, values = labels
        if len(values.layout.shape) != 2 or values.layout.shape[0] != nodes:
            raise InputError(f"{where} is {values.layout}; expected [{nodes}, tasks]")
        rows[schema.Y], fields = label_rows(where, values, column=True, unlabelled=True)
    rows |= _masks(folder / "split", nodes)
    return Imported(folder.resolve().name, edges, rows, directed=None, **fields)


_Found = tuple[EdgeStream, Rows | None, tuple[str, Rows] | None, int]


def _text(raw: Path, name: str, dtype: np.dtype[Any]) -> _Found:
    """Open the files of text: edges, features, labels with what messages name, and the number of nodes."""
    if (raw / "num-node-dict.csv.gz").is_file():
        raise InputError(f"{raw} has nodes of several types; graph files have one")
    nodes, listed = (_count(raw / f"num-{kind}-list.csv.gz") for kind in ("node", "edge"))
    check_nodes(raw / "num-node-list.csv.gz", nodes)
    tables = {kind: _table(raw / f"{kind}.csv.gz", nodes) for kind in ("node-feat", "node-label")}
    beside = _table(raw / "edge-feat.csv.gz", listed)
    edges = _ListedEdges(
        open_edge_list(raw / "edge.csv.gz", nodes=nodes).edges, beside, listed, both=name in ONE_WAY
    )
    taken = [f"{kind}.csv.gz" for kind in tables]
    _tell_left_out(raw, [path.name for path in raw.glob("node*.csv.gz") if path.name not in taken])
    features, labels = tables.values()
    return (
        edges,
        feature_rows(str(raw / "node-feat.csv.gz"), features, dtype) if features is not None else None,
        (str(raw / "node-label.csv.gz"), labels) if labels is not None else None,
        nodes,
    )


def _table(path: Path, rows: int) -> Rows | None:
    """Open a table of so many rows, if there is one."""
    return open_table(path, rows) if path.is_file() else None


def _binary(raw: Path, dtype: np.dtype[Any]) -> _Found:
    """Open the archives of the binary form, as `_text` does."""
    archive = Archive(raw / "data.npz")
    counts = [archive.need(f"num_{kind}_list", "int", 1).whole().tolist()[0] for kind in ("nodes", "edges")]
    check_nodes(f"{archive.path}: num_nodes_list", counts[0])
    index = archive.need("edge_index", "int", 2, counts[1])
    data: dict[str, Array] = {}
    if "edge_feat" in archive.names:
        further = (archive.shape("edge_feat") or ())[1:]
        data[FEATURE] = archive.need("edge_feat", "any number", counts[1], *further)
    edges = PairedEdges(str(archive.path), pair_of(index), counts[0], data=data)
    features = archive.find("node_feat", "number", counts[0], None)
    _tell_left_out(archive.path, [name for name in archive.names if name not in TAKEN])
    labels = None
    if (raw / "node-label.npz").is_file():
        label = Archive(raw / "node-label.npz").need("node_label", "number", counts[0], None)
        labels = label.where, label.rows()
    of_nodes = None if features is None else feature_rows(features.where, features.rows(), dtype)
    return edges, of_nodes, labels, counts[0]


def _tell_left_out(where: Path, names: list[str]) -> None:
    if names:
        warnings.warn(
            f"{where}: left out, since no graph file has it: {', '.join(sorted(names))}", stacklevel=4
        )


def _count(path: Path) -> int:
    """Return the only number in a file: of one graph."""
    if not path.is_file():
        raise InputError(f"{path} is missing; expected the files of a node-property dataset of OGB")
    values = np.concatenate([piece.reshape(-1)[:2] for piece in open_table(path).pieces()] or [np.zeros(0)])
    if len(values) != 1:
        raise InputError(f"{path} has several numbers, or none; expected one, of a single graph")
    if not 0 <= values[0] < 2**53 or values[0] != int(values[0]):
        raise InputError(f"{path} has {values[0]}; expected a whole number")
    return int(values[0])


class _ListedEdges:
    """The edges of a list of text, with data of edges beside them. Marks hold the list's, and the edges so far.

    listed: how many edges there have to be. both: whether each edge comes in both directions.
    """

    def __init__(self, edges: EdgeStream, features: Rows | None, listed: int, *, both: bool) -> None:
        self.where, self.nodes, self.total = edges.where, edges.nodes, edges.total
        self._edges, self._features, self._listed, self._both = edges, features, listed, both

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream` has it. Raises InputError for more or fewer edges."""
        place = mark or {"mark": None, "edges": 0}
        count = place["edges"]
        beside = None if self._features is None else _Beside(self._features, count)
        for block in self._edges.blocks(place["mark"], progress):
            count += len(block)
            if count > self._listed:
                break
            data = {} if beside is None else {FEATURE: beside.take(len(block))}
            yield self._doubled(block, data, {"mark": block.mark, "edges": count})
        if count != self._listed:
            raise InputError(
                f"{self.where} has {'more' if count > self._listed else count} edges; expected {self._listed}, "
                "the number in num-edge-list.csv.gz"
            )
        if beside is not None:
            beside.finish()

    def _doubled(self, block: EdgeBlock, data: dict[str, NDArray[Any]], mark: Any) -> EdgeBlock:
        """Return a block with its data; where both directions are asked for, an edge and its reverse side by side."""
        sources, destinations = block.sources, block.destinations
        if self._both:
            sources, destinations = (
                np.stack(pair, axis=1).reshape(-1)
                for pair in ((sources, destinations), (destinations, sources))
            )
            data = {name: np.repeat(values, 2, axis=0) for name, values in data.items()}
        return EdgeBlock(sources, destinations, None, data, mark)


class _Beside:
    """The rows of a table as float32, read beside edges, from row ``first`` on."""

    def __init__(self, rows: Rows, first: int) -> None:
        self._pieces, self._held = rows.pieces(), np.empty((0, *rows.layout.shape[1:]), np.float32)
        while first > 0:
            first -= len(self.take(min(first, SKIPPED)))

    def take(self, count: int) -> NDArray[np.float32]:
        """Return the next rows. Raises InputError if there are fewer."""
        parts = [self._held[:count]]
        self._held, missing = self._held[count:], count - len(parts[0])
        while missing > 0:
            with np.errstate(over="ignore"):  # the build refuses what becomes infinite
                self._held = next(self._pieces).astype(np.float32)
            parts.append(self._held[:missing])
            self._held, missing = self._held[missing:], missing - len(parts[-1])
        return np.concatenate(parts)

    def finish(self) -> None:
        """Raise InputError if there are more rows than were taken."""
        next(self._pieces, None)


def _masks(folder: Path, nodes: int) -> dict[str, Rows]:
    """Return the masks of the only split in a folder; none without the folder."""
    splits = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not splits:
        return {}
    if len(splits) > 1:
        names = ", ".join(path.name for path in splits)
        raise InputError(f"{folder} has several splits: {names}; keep one of these folders in it")
    rows = {}
    for path, name in zip(schema.MASKS, SPLIT_FILES, strict=True):
        file = splits[0] / f"{name}.csv.gz"
        if not file.is_file():
            raise InputError(f"{file} is missing; expected the nodes of a split, a number a line")
        pieces = partial(_mask_pieces, file, nodes)
        rows[path] = Rows(Layout(schema.BOOL, (nodes,)), pieces)
    return rows


def _mask_pieces(file: Path, nodes: int) -> Iterator[NDArray[Any]]:
    return iter(of_array(chosen(str(file), open_table(file), nodes)).pieces())
