"""Give graphs to other libraries, which are imported when they are asked for: PyG, DGL and SciPy."""

from __future__ import annotations

import importlib
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..export.imported import in_imported_order, whole
from ..graph import SPLITS, Graph, SparseRows
from ..readers.limits import memory

Given = Graph | str | os.PathLike[str]


def to_pyg(graph: Given) -> Any:
    """Return a torch_geometric.data.Data of a graph, or of a graph file, whose nodes have the numbers of the import.

    It has edge_index, in the order of destinations, and what there is of edge_weight, edge_NAME for further data of
    edges, x (sparse features as a torch.sparse_csr tensor), y, train_mask, val_mask and test_mask. Raises InputError
    where PyG is not installed, and for a file that is not sound.
    """
    torch, pyg = _library("torch", "to_pyg"), _library("torch_geometric.data", "to_pyg")
    held = _held(graph)
    given = {f"edge_{name}": torch.from_numpy(values) for name, values in _edge_data(held).items()}
    ends = np.stack([held.indices.astype(np.int64), _destinations(held)])
    data = pyg.Data(edge_index=torch.from_numpy(ends), num_nodes=held.nodes)
    for name, values in given.items():
        data[name] = values
    if held.x is not None:
        data.x = _features(torch, held.x)
    for name, array in {"y": held.y, **{f"{name}_mask": getattr(held, name) for name in SPLITS}}.items():
        if array is not None:
            data[name] = torch.from_numpy(_own(array))
    return data


def to_dgl(graph: Given) -> Any:
    """Return a dgl.DGLGraph of a graph, or of a graph file, whose nodes have the numbers of the import.

    ndata has feat, label, train_mask, val_mask and test_mask, edata "weight" and further data of edges under their
    names. Raises InputError where DGL is not installed, for sparse features, and for a file that is not sound.
    """
    torch, dgl = _library("torch", "to_dgl"), _library("dgl", "to_dgl")
    held = _held(graph)
    if isinstance(held.x, SparseRows):
        raise InputError(f"to_dgl: {held.name} has sparse features, which DGL has no place for")
    ends = (torch.from_numpy(held.indices.astype(np.int64)), torch.from_numpy(_destinations(held)))
    made = dgl.graph(ends, num_nodes=held.nodes)
    for name, values in _edge_data(held).items():
        made.edata[name] = torch.from_numpy(values)
    of_nodes = {"feat": held.x, "label": held.y, **{f"{name}_mask": getattr(held, name) for name in SPLITS}}
    for name, array in of_nodes.items():
        if array is not None:
            made.ndata[name] = torch.from_numpy(_own(array))
    return made


def to_scipy(graph: Given) -> Any:
    """Return the edges of a graph, or of a graph file, as scipy.sparse.csr_array [N, N]: row i lists i's sources.

    Values are weights, float32, or 1 without any; nodes have the numbers of the import. Raises InputError where SciPy
    is not installed, and for a file that is not sound.
    """
    sparse, held = _library("scipy.sparse", "to_scipy"), _held(graph)
    weight = np.ones(held.edges, np.float32) if held.weight is None else _own(held.weight)
    return sparse.csr_array((weight, held.indices, held.indptr), shape=(held.nodes, held.nodes))


def _held(graph: Given) -> Graph:
    """Return a graph in memory, in the numbering of its import."""
    if isinstance(graph, Graph):
        if graph.permutation is not None:
            raise InputError(f"{graph.name}: its rows were renumbered; pass the path of its file")
        return graph
    with in_imported_order(Path(graph), memory=memory() // 2) as opened:
        return whole(opened)


def _library(name: str, function: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(f"{function}: {package} is not installed ({error}); install it first") from error


def _edge_data(graph: Graph) -> dict[str, NDArray[Any]]:
    """Return weights and further data of edges by name."""
    weight = {} if graph.weight is None else {"weight": _own(graph.weight)}
    return weight | {name: _own(values) for name, values in graph.edge.items()}


def _features(torch: Any, x: NDArray[Any] | SparseRows) -> Any:
    if not isinstance(x, SparseRows):
        return torch.from_numpy(_own(x))
    parts = (_own(x.indptr), _own(x.indices.astype(np.int64)), _own(x.data))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls the layout a beta
        return torch.sparse_csr_tensor(*map(torch.from_numpy, parts), size=x.shape)


def _destinations(graph: Graph) -> NDArray[np.int64]:
    return np.repeat(np.arange(graph.nodes, dtype=np.int64), np.diff(graph.indptr))


def _own(array: NDArray[Any]) -> NDArray[Any]:
    """Return an array that may be written to, which tensors share memory with."""
    return np.array(array, order="C")
