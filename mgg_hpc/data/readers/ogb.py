"""OGB's node-property datasets: the files that the package ogb downloads, in its text and in its binary form.

https://ogb.stanford.edu, Hu et al., "Open Graph Benchmark" (NeurIPS '20). A folder such as ``ogbn_arxiv`` has ``raw``
with ``edge.csv.gz``, ``num-node-list.csv.gz``, ``node-feat.csv.gz``, ``node-label.csv.gz`` and ``edge-feat.csv.gz``, or
with ``data.npz`` and ``node-label.npz``; and ``split/NAME`` with the nodes of ``train.csv.gz``, ``valid.csv.gz`` and
``test.csv.gz``. The pickles that OGB's package makes of them (``processed``) are not read.
"""

from __future__ import annotations

import sys
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
from .array_edges import PairedEdges, count_rounded, ends_of
from .dialect import Dialect
from .edge_list import open_edge_list
from .node_arrays import RowReader, check_nodes, feature_rows, label_rows, mask_of_nodes, of_array
from .npy import Archive
from .tables import open_table, table_head

ONE_WAY = ("products", "proteins")  # datasets whose text lists each undirected edge once
SPLIT_FILES = ("train", "valid", "test")
KEPT = ("edge_index", "node_feat", "edge_feat", "num_nodes_list", "num_edges_list")
FEATURE = "feat"  # name of the data of edges
PLAIN = Dialect(delimiter=",", header=False)  # of its text
SKIPPED = 1 << 20  # rows that are passed over at a time

Numbers = tuple[str, Rows]  # the file, for messages, and its rows


def open_ogb(folder: Path, *, feature_type: str | None = None) -> Imported:
    """Open the folder of a dataset as a stream. feature_type: "float32" (the default) or "float16".

    Edges are those that OGB's loader returns: of ogbn-products and ogbn-proteins, which list each edge once, in both
    directions. Features of edges become the data "feat". A label NaN is none. Data that a graph file cannot have are
    named on stderr. Raises InputError that names the file for one that is missing or does not fit; passes raise it for
    wrong values.
    """
    folder = Path(folder)
    raw = folder / "raw"
    if not raw.is_dir():
        raise InputError(f"{folder} has no folder raw; expected a dataset of OGB, with raw and split")
    is_binary = (raw / "data.npz").is_file()
    edges, features, labels, nodes = _binary(raw) if is_binary else _text(raw, folder.resolve().name)
    rows: dict[str, Rows] = {}
    fields: dict[str, Any] = {}
    if features is not None:
        rows[schema.X] = feature_rows(*features, np.dtype(feature_type or "float32"))
    if labels is not None:
        where, values = labels
        if len(values.layout.shape) != 2 or values.layout.shape[0] != nodes:
            raise InputError(f"{where} is {values.layout}; expected [{nodes}, tasks]")
        rows[schema.Y], fields = label_rows(where, values, unlabelled=True)
    rows |= _masks(folder / "split", nodes)
    return Imported(folder.resolve().name, edges, rows, directed=None, **fields)


def _text(raw: Path, name: str) -> tuple[EdgeStream, Numbers | None, Numbers | None, int]:
    """Open the files of text: edges, features, labels, and the number of nodes."""
    if (raw / "num-node-dict.csv.gz").is_file():
        raise InputError(f"{raw} has nodes of several types; graph files have one")
    nodes, listed = (_count(raw / f"num-{kind}-list.csv.gz") for kind in ("node", "edge"))
    check_nodes(raw / "num-node-list.csv.gz", nodes)

    def table(kind: str, rows: int) -> Numbers | None:
        path = raw / f"{kind}.csv.gz"
        return (str(path), open_table(path, rows, table_head(path, PLAIN))) if path.is_file() else None

    features, labels = table("node-feat", nodes), table("node-label", nodes)
    listed_edges = open_edge_list(raw / "edge.csv.gz", nodes=nodes, dialect=PLAIN).edges
    both = name.removeprefix("ogbn_") in ONE_WAY
    edges = _ListedEdges(listed_edges, table("edge-feat", listed), listed, both=both)
    left = {path.name for path in raw.glob("node*.csv.gz")} - {"node-feat.csv.gz", "node-label.csv.gz"}
    _warn_of(raw, left)
    return edges, features, labels, nodes


def _binary(raw: Path) -> tuple[EdgeStream, Numbers | None, Numbers | None, int]:
    """Open the archives of the binary form, as `_text` does."""
    archive = Archive(raw / "data.npz")
    nodes, listed = (
        archive.need(f"num_{kind}_list", "int", 1).whole().tolist()[0] for kind in ("nodes", "edges")
    )
    check_nodes(f"{archive.path}: num_nodes_list", nodes)
    index = archive.need("edge_index", "int", 2, listed)
    data = archive.find("edge_feat", "any number", listed, *[None] * (len(archive.shape("edge_feat")) - 1))
    ends = ends_of(index)
    edges = PairedEdges(str(archive.path), ends, nodes, data={} if data is None else {FEATURE: data})
    features = archive.find("node_feat", "number", nodes, None)
    _warn_of(archive.path, set(archive.names) - set(KEPT))
    labels = None
    if (raw / "node-label.npz").is_file():
        labels = Archive(raw / "node-label.npz").need("node_label", "number", nodes, None)
    found = (None if each is None else (each.where, each.rows()) for each in (features, labels))
    return edges, *found, nodes


def _warn_of(where: Path, names: set[str]) -> None:
    if names:
        print(f"{where}: left out, since no graph file has it: {', '.join(sorted(names))}", file=sys.stderr)


def _count(path: Path) -> int:
    """Return the only number in a file."""
    if not path.is_file():
        raise InputError(f"{path} is missing; expected the files of a node-property dataset of OGB")
    table = open_table(path, head=table_head(path, PLAIN))
    values = np.concatenate([piece.reshape(-1)[:2] for piece in table.pieces()] or [np.zeros(0)])
    if len(values) != 1:
        raise InputError(f"{path} has several numbers, or none; expected one, of a single graph")
    if not 0 <= values[0] < 2**53 or values[0] != int(values[0]):
        raise InputError(f"{path} has {values[0]}; expected a whole number")
    return int(values[0])


class _ListedEdges:
    """The edges of a list of text with their data from a table. Marks: the list's, and the edges so far.

    Args: features: the table. listed: expected number of edges. both: yield each edge in both directions.
    """

    def __init__(self, edges: EdgeStream, features: Numbers | None, listed: int, *, both: bool) -> None:
        self.where, self.nodes, self.total = edges.where, edges.nodes, edges.total
        self._edges, self._features, self._listed, self._both = edges, features, listed, both

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        """Yield the edges, as `EdgeStream.blocks`. Raises InputError for more or fewer edges."""
        of_list, count = mark or (None, 0)
        table = None if self._features is None else RowReader(self._features[1])
        if table is not None:
            for low in range(0, count, SKIPPED):
                table.take(min(SKIPPED, count - low))
        for block in self._edges.blocks(of_list, progress):
            count += len(block)
            if count > self._listed:
                break
            data, rounded = {}, {}
            if table is not None:
                given = table.take(len(block))
                with np.errstate(over="ignore"):  # the build refuses values that become infinite
                    data[FEATURE] = given.astype(np.float32)
                rounded[FEATURE] = count_rounded(given, data[FEATURE])
            ends = block.sources, block.destinations
            if self._both:  # an edge and its reverse next to each other
                ends = np.stack(ends, axis=1).reshape(-1), np.stack(ends[::-1], axis=1).reshape(-1)
                data = {name: np.repeat(values, 2, axis=0) for name, values in data.items()}
            yield EdgeBlock(*ends, None, data, [block.mark, count], rounded)
        if count != self._listed:
            raise InputError(
                f"{self.where} has {'more' if count > self._listed else count} edges; expected {self._listed}, "
                "the number in num-edge-list.csv.gz"
            )
        if table is not None:
            table.take(1)  # raises InputError for more rows than edges


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
        rows[path] = Rows(Layout(schema.BOOL, (nodes,)), partial(_mask_pieces, file, nodes))
    return rows


def _mask_pieces(file: Path, nodes: int) -> Iterator[NDArray[Any]]:
    return of_array(mask_of_nodes(str(file), open_table(file, head=table_head(file, PLAIN)), nodes)).pieces()
