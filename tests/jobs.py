"""Small training jobs: graphs, job files, and `mgg` run as a user runs it."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import programs
import reference
import scipy.sparse
import tomli_w

from mgg_hpc.__main__ import main
from mgg_hpc.data import generate, writer
from mgg_hpc.data.clicks.generate import draw_clicks
from mgg_hpc.data.clicks.store import write_clicks
from mgg_hpc.data.graph import Graph, SparseRows, csr_from_edges, from_edges

MGG = Path(sys.executable).with_name("mgg")


def blocks(nodes: int = 150, *, features: int = 12, seed: int = 3) -> Graph:
    """An undirected graph of 4 communities, with labels and masks."""
    return generate.sbm(nodes, classes=4, features=features, degree=6.0, homophily=0.8, seed=seed)


def directed_weighted(nodes: int = 150, *, seed: int = 3) -> Graph:
    """The same kind of graph with directions, weights, duplicates and self loops."""
    rng = np.random.default_rng(seed)
    source, destination = rng.integers(nodes, size=(2, 5 * nodes))
    destination[:5] = source[:5]
    source[5:8], destination[5:8] = source[8:11], destination[8:11]
    weight = rng.uniform(0.1, 2.0, 5 * nodes).astype(np.float32)
    indptr, indices, weight = csr_from_edges(source, destination, nodes, weight=weight)
    return dataclasses.replace(
        blocks(nodes, seed=seed), indptr=indptr, indices=indices, weight=weight, directed=True
    )


def with_sparse_features(graph: Graph, *, keep: float = 0.3) -> Graph:
    """The same graph with most features set to 0, stored as CSR; some nodes keep none."""
    rng = np.random.default_rng(11)
    dense = np.where(rng.random(graph.x.shape) < keep, graph.x, 0).astype(np.float32)
    dense[::17] = 0
    return dataclasses.replace(graph, x=_rows(scipy.sparse.csr_matrix(dense)))


def renumbered(graph: Graph, order: np.ndarray) -> Graph:
    """The same graph with its rows in another order: new row i is old row order[i]."""
    place = np.argsort(order)
    source, destination = reference.edge_list(graph.indptr, graph.indices)
    moved = from_edges(place[source], place[destination], graph.nodes, weight=graph.weight, edge=graph.edge)
    edges = {name: getattr(moved, name) for name in ("indptr", "indices", "weight", "edge")}
    rows = {name: getattr(graph, name)[order] for name in ("y", "train", "val", "test")}
    x = _rows(_matrix(graph.x)[order]) if isinstance(graph.x, SparseRows) else graph.x[order]
    return dataclasses.replace(graph, x=x, permutation=order, **edges, **rows)


def _matrix(x: SparseRows) -> scipy.sparse.csr_matrix:
    return scipy.sparse.csr_matrix((x.data, x.indices, x.indptr), shape=x.shape)


def _rows(x: scipy.sparse.csr_matrix) -> SparseRows:
    return SparseRows(x.indptr.astype(np.int64), x.indices.astype(np.int32), x.data, x.shape)


def dense(x: SparseRows) -> np.ndarray:
    """Return sparse rows as float32 [N, F]; entries listed twice are summed."""
    return _matrix(x).toarray()


def dense_features(graph: Graph) -> np.ndarray:
    """The features as float64 [N, F]."""
    x = dense(graph.x) if isinstance(graph.x, SparseRows) else graph.x
    return x.astype(np.float64)


def write_job(folder: Path, graph: Graph | None = None, /, **sections: dict[str, Any]) -> Path:
    """Write ``graph`` and a job file that trains on it for 3 epochs, unless told otherwise; returns the job's path."""
    if graph is not None:
        writer.write(folder / "g.h5", graph)
    tree = {"graph": {"file": "g.h5"}, "train": {"epochs": 3}, "run": {"folder": str(folder / "runs")}}
    for name, content in sections.items():
        tree[name] = tree.get(name, {}) | content
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(tree))
    return path


def click_tree(folder: Path, **keys: Any) -> dict[str, Any]:
    """The tree of a job of a small DLRM on c.h5 for an epoch. keys: others, as "dlrm.rows"."""
    small = {"rows": 20, "dim": 4, "bottom": [3], "top": [3], "batch_size": 100}
    tree = {"dlrm": {"data": str(folder / "c.h5")} | small, "train": {"epochs": 1}}
    tree["run"] = {"folder": str(folder / "runs"), "threads": 1}
    for name, value in keys.items():
        section, _, key = name.partition(".")
        tree.setdefault(section, {})[key] = value
    return tree


def click_job(folder: Path, **keys: Any) -> str:
    """Write 300 clicks and the job file of `click_tree`; return its path."""
    write_clicks(folder / "c.h5", [partial(draw_clicks, 300)])
    path = folder / "job.toml"
    path.write_text(tomli_w.dumps(click_tree(folder, **keys)))
    return str(path)


def files(folder: Path) -> dict[Path, bytes]:
    """Everything below a folder, to see what a command has changed."""
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def clean_environment() -> dict[str, str]:
    """This process's environment without what a launcher may have put there."""
    return {
        name: value
        for name, value in os.environ.items()
        if name == "MGG_DATA" or not name.startswith(("MGG_", "OMPI_", "PMI"))
    }


def run(*arguments: str | Path, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `mgg` in a process of its own."""
    return programs.run(MGG, *arguments, cwd=folder, env=clean_environment())


def call(*arguments: str | Path, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run `mgg` in this process, with ``folder`` as the current one: as `run`, but for what a new process sees."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def python(
    *arguments: str | Path, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run Python in a process of its own, with more in its environment."""
    return programs.python(*arguments, cwd=folder, env=clean_environment() | environment)
