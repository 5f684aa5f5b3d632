"""Datasets in the files of OGB's package, written in pieces: as text (ogbn-arxiv) and in its binary form (papers100M).

    python tests/data/readers_arrays/ogb_files.py binary FOLDER NODES EDGES FEATURES CLASSES

writes a drawn one of any size.
"""

from __future__ import annotations

import gzip
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROWS = 1 << 16  # of a drawn dataset that are made at a time

Pieces = Callable[[], Iterable[np.ndarray]]


@dataclass
class Dataset:
    """What a dataset has. edges: pieces [k, 2]; x [k, F], y [k, tasks], edge_feat [k, D]: pieces of rows.

    split: the nodes of train, valid and test. further: other files of nodes, by name.
    """

    nodes: int
    listed: int
    edges: Pieces
    x: Pieces | None = None
    y: Pieces | None = None
    edge_feat: Pieces | None = None
    split: dict[str, np.ndarray] = field(default_factory=dict)
    further: dict[str, Pieces] = field(default_factory=dict)


def drawn(nodes: int, edges: int, features: int, classes: int, *, unlabelled: bool, seed: int = 0) -> Dataset:
    """Draw a dataset with one label a node; unlabelled: NaN for most of them, as papers100M has."""

    def blocks(count: int, stream: int) -> Iterator[tuple[np.random.Generator, int]]:
        for low in range(0, count, ROWS):
            yield np.random.default_rng([seed, stream, low]), min(ROWS, count - low)

    def labels() -> Iterator[np.ndarray]:
        for rng, rows in blocks(nodes, 2):
            y = rng.integers(classes, size=(rows, 1))
            yield np.where(rng.random((rows, 1)) < 0.7, np.nan, y).astype(np.float32) if unlabelled else y

    known = np.concatenate([np.flatnonzero(~np.isnan(y[:, 0])) + ROWS * i for i, y in enumerate(labels())])
    parts = np.random.default_rng([seed, 3]).integers(3, size=len(known))
    return Dataset(
        nodes,
        edges,
        lambda: (rng.integers(nodes, size=(rows, 2)) for rng, rows in blocks(edges, 0)),
        lambda: (rng.normal(size=(rows, features)).astype(np.float32) for rng, rows in blocks(nodes, 1)),
        labels,
        split={name: known[parts == part] for part, name in enumerate(("train", "valid", "test"))},
        further={
            "node_year": lambda: (rng.integers(2000, 2020, (rows, 1)) for rng, rows in blocks(nodes, 4))
        },
    )


def write(folder: Path, dataset: Dataset, *, binary: bool = False, split: str = "time") -> Path:
    """Write a dataset's files; return the folder."""
    raw, chosen = folder / "raw", folder / "split" / split
    raw.mkdir(parents=True)
    (_write_binary if binary else _write_text)(raw, dataset)
    if dataset.split:
        chosen.mkdir(parents=True)
    for name, nodes in dataset.split.items():
        _table(chosen / f"{name}.csv.gz", [nodes.reshape(-1, 1)])
    return folder


def _write_text(raw: Path, dataset: Dataset) -> None:
    _table(raw / "num-node-list.csv.gz", [np.array([[dataset.nodes]])])
    _table(raw / "num-edge-list.csv.gz", [np.array([[dataset.listed]])])
    tables = {"edge": dataset.edges, "node-feat": dataset.x, "node-label": dataset.y}
    for name, pieces in {**tables, "edge-feat": dataset.edge_feat, **dataset.further}.items():
        if pieces is not None:
            _table(raw / f"{name}.csv.gz", pieces())


def _table(path: Path, pieces: Iterable[np.ndarray]) -> None:
    """Write rows as pandas does, without a header: NaN is nothing, or quotes where it is alone."""
    with gzip.open(path, "wt", compresslevel=1) as file:
        for piece in pieces:
            words = piece.astype(str)
            if piece.dtype.kind == "f":
                words = np.where(np.isnan(piece), '""' if piece.shape[1] == 1 else "", words)
            file.writelines(",".join(row) + "\n" for row in words.tolist())


def _write_binary(raw: Path, dataset: Dataset) -> None:
    def ends() -> Iterator[np.ndarray]:
        for end in (0, 1):
            yield from (np.ascontiguousarray(piece[:, end]) for piece in dataset.edges())

    with zipfile.ZipFile(raw / "data.npz", "w", allowZip64=True) as archive:
        for name, count in (("num_nodes_list", dataset.nodes), ("num_edges_list", dataset.listed)):
            _member(archive, name, (1,), [np.array([count])])
        _member(archive, "edge_index", (2, dataset.listed), ends())
        for name, rows, pieces in (
            ("node_feat", dataset.nodes, dataset.x),
            ("edge_feat", dataset.listed, dataset.edge_feat),
            *((name, dataset.nodes, pieces) for name, pieces in dataset.further.items()),
        ):
            if pieces is not None:
                _member(archive, name, (rows, next(iter(pieces())).shape[1]), pieces())
    if dataset.y is not None:
        with zipfile.ZipFile(raw / "node-label.npz", "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
            _member(archive, "node_label", (dataset.nodes, next(iter(dataset.y())).shape[1]), dataset.y())


def _member(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], pieces: Iterable[np.ndarray]
) -> None:
    pieces = iter(pieces)
    first = next(pieces)
    header = {"descr": first.dtype.str, "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.write(first.tobytes())
        for piece in pieces:
            file.write(piece.tobytes())


if __name__ == "__main__":
    form, target, *numbers = sys.argv[1:]
    write(Path(target), drawn(*map(int, numbers), unlabelled=form == "binary"), binary=form == "binary")
