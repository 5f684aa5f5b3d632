"""The graphs that benchmarks run on, by the names that a command line gives them."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import ml_dtypes  # noqa: F401 - makes bfloat16 a name of NumPy's
import numpy as np

from mgg_hpc.data import generate, store
from mgg_hpc.data.graph import Graph
from mgg_hpc.data.readers import npz
from mgg_hpc.errors import InputError

DRAWN = re.compile(r"(rmat|uniform):(\d+)(?::(\d+))?")
EXPECTED = (
    "expected rmat:SCALE[:EDGE_FACTOR], uniform:SCALE[:EDGE_FACTOR], a graph file (.h5), or an archive (.npz)"
)
LARGEST_SCALE, EDGE_FACTOR = 28, 16


def check(name: str) -> None:
    """Raise InputError for a name that no graph has, without reading one."""
    if found := DRAWN.fullmatch(name):
        if int(found[2]) > LARGEST_SCALE:
            raise InputError(f"{name}: a scale of {LARGEST_SCALE} at most")
        _check_int32(name, int(found[3] or EDGE_FACTOR) << int(found[2]))
    elif Path(name).suffix not in (".npz", ".h5"):
        raise InputError(f"{name}: no such graph; {EXPECTED}")
    elif not Path(name).is_file():
        raise InputError(f"{name}: no such file")


def read(name: str) -> Graph:
    """Return the named graph: structure and weights. Raises InputError if int32 cannot count its edges."""
    check(name)
    path = Path(name)
    if found := DRAWN.fullmatch(name):
        quarter = {"a": 0.25, "b": 0.25, "c": 0.25} if found[1] == "uniform" else {}
        graph = generate.rmat(int(found[2]), int(found[3] or EDGE_FACTOR), seed=0, **quarter)
        graph = replace(graph, name=f"{found[1]}{found[2]}")
    elif path.suffix == ".npz":
        graph = npz.read_npz(path)
    else:
        with store.open_graph(path) as file:
            rows = file.slice(0, file.nodes)
            graph = Graph(file.name, rows.indptr, rows.indices, rows.weight, directed=file.directed)
    _check_int32(name, graph.edges, graph.nodes)
    return graph


def _check_int32(name: str, edges: int, nodes: int = 1) -> None:
    """Raise InputError for a graph without edges, or where int32 does not count its nodes and edges."""
    if not edges or max(edges, nodes) > np.iinfo(np.int32).max:
        raise InputError(f"{name}: has {edges:,} edges; int32 indices take 1 .. 2**31 - 1")


def weights(graph: Graph) -> np.ndarray:
    """Return a weight for each edge, float32 [E]: the graph's own, or drawn ones."""
    if graph.weight is not None:
        return graph.weight
    return np.random.default_rng(0).uniform(0.1, 1, graph.edges).astype(np.float32)


def drawn_rows(nodes: int, width: int, dtype: str) -> np.ndarray:
    """Return normally distributed rows [N, width] of this type."""
    rows = np.random.default_rng(0).standard_normal((nodes, width), dtype=np.float32)
    return rows.astype(np.dtype(dtype))
