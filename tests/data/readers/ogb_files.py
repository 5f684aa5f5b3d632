"""Datasets in the files of OGB's package, written in pieces: as text (ogbn-arxiv) and in its binary form (papers100M).

    python tests/data/readers/ogb_files.py binary FOLDER NODES EDGES FEATURES CLASSES

writes a drawn one of any size.
"""

from __future__ import annotations

import gzip
import itertools
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

ROWS = 1 << 16  # of a drawn dataset that are made at a time

Pieces = Callable[[], Iterable[np.ndarray]]


@dataclass
class Dataset:
    """What a dataset has. tables: pieces of rows by the names of OGB's files: edge, node-feat, node-label and others.

    listed: number of edges; split: the nodes of train, valid and test.
    """

    nodes: int
    listed: int
    tables: dict[str, Pieces]
    split: dict[str, np.ndarray]


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
    tables: dict[str, Pieces] = {
        "edge": lambda: (rng.integers(nodes, size=(rows, 2)) for rng, rows in blocks(edges, 0)),
        "node-feat": lambda: (
            rng.normal(size=(rows, features)).astype(np.float32) for rng, rows in blocks(nodes, 1)
        ),
        "node-label": labels,
        "node_year": lambda: (rng.integers(2000, 2020, (rows, 1)) for rng, rows in blocks(nodes, 4)),
    }
    split = {name: known[parts == part] for part, name in enumerate(("train", "valid", "test"))}
    return Dataset(nodes, edges, tables, split)


def write(folder: Path, dataset: Dataset, *, binary: bool = False) -> Path:
    """Write a dataset's files; return the folder."""
    raw, chosen = folder / "raw", folder / "split" / "time"
    raw.mkdir(parents=True)
    chosen.mkdir(parents=True)
    (_write_binary if binary else _write_text)(raw, dataset)
    for name, nodes in dataset.split.items():
        _table(chosen / f"{name}.csv.gz", [nodes.reshape(-1, 1)])
    return folder


def _write_text(raw: Path, dataset: Dataset) -> None:
    _table(raw / "num-node-list.csv.gz", [np.array([[dataset.nodes]])])
    _table(raw / "num-edge-list.csv.gz", [np.array([[dataset.listed]])])
    for name, pieces in dataset.tables.items():
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
    tables = dict(dataset.tables)
    edges, labels = tables.pop("edge"), tables.pop("node-label")
    with zipfile.ZipFile(raw / "data.npz", "w", allowZip64=True) as archive:
        _member(archive, "num_nodes_list", (1,), [np.array([dataset.nodes])])
        _member(archive, "num_edges_list", (1,), [np.array([dataset.listed])])
        ends = (np.ascontiguousarray(piece[:, end]) for end in (0, 1) for piece in edges())
        _member(archive, "edge_index", (2, dataset.listed), ends)
        for name, pieces in tables.items():
            rows = dataset.listed if name.startswith("edge") else dataset.nodes
            _member(archive, name.replace("-", "_"), (rows, -1), pieces())
    with zipfile.ZipFile(raw / "node-label.npz", "w", zipfile.ZIP_DEFLATED, allowZip64=True) as archive:
        _member(archive, "node_label", (dataset.nodes, -1), labels())


def _member(
    archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], pieces: Iterable[np.ndarray]
) -> None:
    """Write an array whose pieces follow each other. shape: its own, where -1 stands for that of the pieces."""
    pieces = iter(pieces)
    first = next(pieces)
    shape = (shape[0], *first.shape[1:]) if shape[-1] == -1 else shape
    header = {"descr": first.dtype.str, "fortran_order": False, "shape": shape}
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for piece in itertools.chain([first], pieces):
            file.write(piece.tobytes())


if __name__ == "__main__":
    form, target, *numbers = sys.argv[1:]
    write(Path(target), drawn(*map(int, numbers), unlabelled=form == "binary"), binary=form == "binary")
