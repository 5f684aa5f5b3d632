"""The real graphs that benchmarks run on, as graph files made in a folder of the caller's."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np

from mgg_hpc.data import writer
from mgg_hpc.data.graph import Graph, split_per_class, split_random
from mgg_hpc.data.readers import digits, npz
from mgg_hpc.errors import InputError
from mgg_hpc.tools.bench.harness import graphs


def data_folder() -> Path:
    """MGG_DATA, else shared/data beside the repository."""
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    return Path(os.environ.get("MGG_DATA", default))


def read(name: str, *, directed: bool = False) -> Graph:
    """One of the data folder's graphs, or scikit-learn's digits. Raises InputError if it is not there."""
    if name == "digits":
        return digits.read_digits()
    path = data_folder() / name / f"{name}.npz"
    if not path.is_file():
        raise InputError(f"{path}: no such graph; name the folder of graphs in MGG_DATA")
    return npz.read_npz(path, directed=directed)


def structure(name: str, *, directed: bool = False) -> Graph:
    """The structure of rmat:SCALE[:EDGE_FACTOR], a graph file, an archive, or a graph of the data folder.

    directed: with the edges of the data folder's graph as they are. Raises InputError for none of these.
    """
    known = graphs.DRAWN.fullmatch(name) or Path(name).suffix
    graph = graphs.read(name) if known else read(name, directed=directed)
    return Graph(graph.name, graph.indptr, graph.indices, directed=graph.directed)


def write(name: str, folder: Path) -> Path:
    """The graph as a graph file in ``folder``, made if it is not there yet."""
    path = folder / f"{name}.h5"
    if not path.exists():
        writer.write(path, read(name))
    return path


def write_split(name: str, folder: Path, seed: int) -> Path:
    """The same with a split: the public one where there is one, else one of this seed.

    20 training and 30 validation nodes a class (Shchur et al., 2018); or three and one fifths of the nodes where they
    have several labels.
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
