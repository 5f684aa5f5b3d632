"""The real graphs that benchmarks run on, as graph files made in a folder of the caller's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
from harness import graphs

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph, split_per_class, split_random
from mgg_hpc.data.readers import digits, npz
from mgg_hpc.errors import InputError


def data_folder() -> Path:
    """Return MGG_DATA, else shared/data beside the repository."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("MGG_DATA", default))


def read(name: str, *, directed: bool = False) -> Graph:
    """Return one of the data folder's graphs, or scikit-learn's digits. Raises InputError if it is not there."""
    if name == "digits":
        return digits.read_digits()
    return npz.read_npz(archive(name), directed=directed)


def archive(name: str) -> Path:
    """Return the file of one of the data folder's graphs. Raises InputError if it is not there."""
    path = data_folder() / name / f"{name}.npz"
    if not path.is_file():
        raise InputError(f"{path}: no such graph; name the folder of graphs in MGG_DATA")
    return path


def check(name: str) -> None:
    """Raise InputError for a name that `structure` refuses, without reading a graph."""
    if by_name(name):
        graphs.check(name)
    else:
        archive(name)


def by_name(name: str) -> bool:
    """Return whether `graphs.read` takes this name: of a graph that is drawn, or of a file."""
    return bool(graphs.DRAWN.fullmatch(name) or Path(name).suffix)


def structure(name: str, *, directed: bool = False) -> Graph:
    """Return the structure of a graph of the data folder, or of one that `graphs.read` names.

    directed: whether a graph of the data folder keeps its edges as they are. Raises InputError for an unknown name.
    """
    graph = graphs.read(name) if by_name(name) else read(name, directed=directed)
    return Graph(graph.name, graph.indptr, graph.indices, directed=graph.directed)


def write(name: str, folder: Path) -> Path:
    """Return the graph file of a graph in ``folder``; write it if it is not there yet."""
    path = folder / f"{name}.h5"
    if not path.exists():
        writer.write(path, read(name))
    return path


def write_split(name: str, folder: Path, seed: int) -> Path:
    """Return the graph file of a graph with a split: the public one where there is one, else one of this seed.

    A drawn split has 20 training and 30 validation nodes a class (Shchur et al., 2018); of nodes with several labels
    three fifths train, and one fifth validates.
    """
    graph = read(name)
    if graph.train is not None or graph.y is None:
        return write(name, folder)
    path = folder / f"{name}-{seed}.h5"
    if not path.exists():
        rng = np.random.Generator(np.random.Philox(seed))
        drawn = (
            split_random(graph.y, rng, train=0.6, val=0.2)
            if graph.multilabel
            else split_per_class(graph.y, graph.classes, rng)
        )
        writer.write(path, replace(graph, **drawn))
    return path
