"""The graphs that a benchmark runs on, named on the command line, handed to workers as .npy files."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from ....data import generate, store
from ....data.graph import Graph
from ....data.readers import npz
from ....errors import InputError

DRAWN = re.compile(r"(rmat|uniform):(\d+)(?::(\d+))?")
EXPECTED = (
    "expected rmat:SCALE[:EDGE_FACTOR], uniform:SCALE[:EDGE_FACTOR], a graph file (.h5), or an archive (.npz)"
)
LARGEST_SCALE = 28


def check(name: str) -> None:
    """Raise InputError for a name that no graph has, without reading one."""
    if found := DRAWN.fullmatch(name):
        if int(found[2]) > LARGEST_SCALE:
            raise InputError(f"{name}: a scale of {LARGEST_SCALE} at most")
    elif Path(name).suffix not in (".npz", ".h5"):
        raise InputError(f"{name}: no such graph; {EXPECTED}")
    elif not Path(name).is_file():
        raise InputError(f"{name}: no such file")


def read(name: str) -> Graph:
    """Return the named graph: structure and weights. Raises InputError if int32 cannot count its edges."""
    check(name)
    path = Path(name)
    if found := DRAWN.fullmatch(name):
        graph = drawn(found[1], int(found[2]), int(found[3] or 16))
    elif path.suffix == ".npz":
        graph = npz.read_npz(path)
    else:
        with store.open_graph(path) as file:
            rows = file.slice(0, file.nodes)
            graph = Graph(file.name, rows.indptr, rows.indices, rows.weight, directed=file.directed)
    if not graph.edges or max(graph.edges, graph.nodes) > np.iinfo(np.int32).max:
        raise InputError(f"{name}: has {graph.edges:,} edges; the baselines' indices take 1 .. 2**31 - 1")
    return graph


def drawn(kind: str, scale: int, edge_factor: int) -> Graph:
    """Return a drawn graph: from the folder that MGG_BENCH_GRAPHS names where it was kept there before."""
    quarter = {"a": 0.25, "b": 0.25, "c": 0.25} if kind == "uniform" else {}
    make: Callable[..., Graph] = partial(generate.rmat, scale, edge_factor, seed=0, **quarter)
    folder = os.environ.get("MGG_BENCH_GRAPHS")
    if not folder:
        return replace(make(), name=f"{kind}{scale}")
    # Another generator draws another graph.
    sources = sorted(Path(generate.__file__).parent.glob("*.py"))
    version = xxhash.xxh3_64_hexdigest(b"".join(path.read_bytes() for path in sources))
    path = Path(folder) / f"{kind}-{scale}-{edge_factor}-{version}.npz"
    if not path.exists():
        made = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(".part.npz")
        np.savez(written, indptr=made.indptr, indices=made.indices, directed=made.directed)
        written.replace(path)
    with np.load(path, allow_pickle=False) as kept:
        return Graph(f"{kind}{scale}", kept["indptr"], kept["indices"], directed=bool(kept["directed"]))


def weights(graph: Graph) -> np.ndarray:
    """Return a weight for each edge, float32 [E]: the graph's own, or drawn ones."""
    if graph.weight is not None:
        return graph.weight
    return np.random.default_rng(0).uniform(0.1, 1, graph.edges).astype(np.float32)


def write(graph: Graph, folder: Path, *, weighted: bool = False) -> dict[str, str | None]:
    """Write the graph's files: indptr int64 [N+1], indices int32 [E], and weight float32 [E] or None."""
    arrays = {"indptr": graph.indptr, "indices": graph.indices.astype(np.int32, copy=False)}
    if weighted:
        arrays["weight"] = weights(graph)
    files: dict[str, str | None] = {"weight": None}
    for name, array in arrays.items():
        files[name] = save(folder / f"{name}.npy", array)
    return files


def save(path: Path, array: np.ndarray) -> str:
    """Write one array; return its path in the form that workers take."""
    np.save(path, array)
    return str(path)
