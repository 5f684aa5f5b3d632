"""Convert graphs of other libraries to `Graph`, without importing those libraries.

A graph counts as undirected if each edge's reverse is there.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ...errors import InputError
from ..graph import SPLITS, Graph, SparseRows, from_edges
from ..readers.node_arrays import label_fields
from ..structure import undirected_if_symmetric

NO_EDGE_DATA = {"edge_index", "edge_weight", "edge_label", "edge_label_index"}  # of PyG's Data


def from_scipy(
    matrix: Any, x: Any = None, y: Any = None, *, train: Any = None, val: Any = None, test: Any = None
) -> Graph:
    """Convert a SciPy sparse matrix [N, N]: row i lists the sources of i's in-edges, its values are their weights.

    Entries that are stored twice are two edges in CSR, and one, whose weight is their sum, in any other form. Where all
    values are 1, edges have no weights. x: [N, F], dense or sparse. y: integers [N], -1 where unlabelled, or 0 and 1
    [N, C]. train, val, test: bool [N]. Raises InputError for other types or shapes.
    """
    where = "from_scipy"
    if getattr(matrix, "ndim", 0) != 2 or not hasattr(matrix, "tocsr"):
        raise InputError(
            f"{where}: expected a SciPy sparse matrix [nodes, nodes], and got {type(matrix).__name__}"
        )
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{where}: the matrix is {list(matrix.shape)}; expected as many columns as rows")
    rows = matrix.tocsr()
    destination = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
    fields = _node_fields(where, x, y, {"train": train, "val": val, "test": test})
    return _graph(where, rows.indices, destination, rows.shape[0], rows.data, fields)


def from_pyg(data: Any) -> Graph:
    """Convert a torch_geometric.data.Data: edge_index, and where it has them edge_weight, x, y, train_mask and so on.

    edge_attr becomes the data of edges "attr", other tensors edge_NAME [E, ...] those of that name, edge_label aside. A
    y of floats [N] is left out with a warning. Raises InputError for other objects, graphs of several types, and masks
    of several splits.
    """
    where = "from_pyg"
    edges = getattr(data, "edge_index", None)
    if edges is None or len(edges) != 2:
        raise InputError(f"{where}: {type(data).__name__} has no edge_index [2, edges] of one graph")
    source, destination = (_array(end) for end in edges)
    masks = {name: getattr(data, f"{name}_mask", None) for name in SPLITS}
    y = getattr(data, "y", None)
    keys: list[str] = list(data.keys())
    named = {key.removeprefix("edge_"): key for key in keys if key.startswith("edge_")}
    edge = {
        name: data[key]
        for name, key in named.items()
        if key not in NO_EDGE_DATA and np.shape(data[key])[:1] == source.shape
    }
    if getattr(data, "edge_attr", None) is not None:
        edge["attr"] = data.edge_attr
    if y is not None and (given := _array(y)).ndim == 1 and given.dtype.kind == "f":
        warnings.warn(f"{where}: y is {_kind(given)}, not classes: taken without labels", stacklevel=2)
        y = None
    weight = getattr(data, "edge_weight", None)
    fields = _node_fields(where, getattr(data, "x", None), y, masks)
    return _graph(where, source, destination, data.num_nodes, weight, fields, edge)


def from_dgl(graph: Any) -> Graph:
    """Convert a homogeneous dgl.DGLGraph with the node data of DGL's data sets: feat, label, train_mask and so on.

    Weights are edata["weight"], where it is there; other edata become data of edges of the same names. Raises
    InputError for other objects, and graphs of several types.
    """
    where = "from_dgl"
    if not getattr(graph, "is_homogeneous", False):
        raise InputError(f"{where}: expected a homogeneous DGLGraph (see dgl.to_homogeneous)")
    source, destination = (_array(end) for end in graph.edges())
    nodes, edges = graph.ndata, graph.edata
    masks = {name: nodes.get(f"{name}_mask") for name in SPLITS}
    fields = _node_fields(where, nodes.get("feat"), nodes.get("label"), masks)
    edge = {name: values for name, values in edges.items() if name != "weight"}
    return _graph(where, source, destination, graph.num_nodes(), edges.get("weight"), fields, edge)


def from_networkx(
    graph: Any, x: Any = None, y: Any = None, *, train: Any = None, val: Any = None, test: Any = None
) -> Graph:
    """Convert a networkx graph of any kind. Rows are in the order of graph.nodes; x, y and masks as in `from_scipy`.

    The edge attribute "weight" counts where all edges have it. Raises InputError for other objects.
    """
    where = "from_networkx"
    if not hasattr(graph, "is_directed"):
        raise InputError(f"{where}: expected a networkx graph, and got {type(graph).__name__}")
    number = {node: i for i, node in enumerate(graph.nodes)}
    ends = list(graph.edges(data="weight"))
    source, destination = (np.array([number[edge[end]] for edge in ends], dtype=np.int64) for end in (0, 1))
    weight = None
    if ends and all(edge[2] is not None for edge in ends):
        weight = np.array([edge[2] for edge in ends])
    if not graph.is_directed():
        once = source != destination  # a loop is its own reverse
        source, destination = np.append(source, destination[once]), np.append(destination, source[once])
        weight = None if weight is None else np.append(weight, weight[once])
    fields = _node_fields(where, x, y, {"train": train, "val": val, "test": test})
    return _graph(where, source, destination, len(number), weight, fields)


def _graph(
    where: str,
    source: np.ndarray,
    destination: np.ndarray,
    nodes: int,
    weight: Any,
    fields: dict[str, Any],
    edge: Mapping[str, Any] | None = None,
) -> Graph:
    """Sort edges into a checked graph, undirected if it is symmetric. Raises InputError that begins with ``where``."""
    values = None if weight is None else _array(weight)
    if values is not None:
        if values.shape != source.shape or values.dtype.kind not in "fiub":
            raise InputError(f"{where}: weights are {_kind(values)}; expected numbers [{len(source)}]")
        values = None if (values == 1).all() else values.astype(np.float32)
    carried = {name: _edge_data(where, name, data, len(source)) for name, data in (edge or {}).items()}
    try:
        graph = from_edges(source, destination, nodes, name=where, weight=values, edge=carried, **fields)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return undirected_if_symmetric(graph, where)


def _edge_data(where: str, name: str, data: Any, edges: int) -> np.ndarray:
    """Return data of edges in a type of graph files: doubles become float32, booleans uint8."""
    values = _array(data)
    if values.shape[:1] != (edges,) or values.dtype.kind not in "fiub":
        raise InputError(f"{where}: edge data {name} are {_kind(values)}; expected numbers [{edges}, ...]")
    return values.astype({"float64": np.float32, "bool": np.uint8}.get(values.dtype.name, values.dtype))


def _node_fields(where: str, x: Any, y: Any, masks: dict[str, Any]) -> dict[str, Any]:
    """Return Graph's fields of node data; all masks where one is given."""
    fields: dict[str, Any] = {}
    if x is not None:
        fields["x"] = _features(where, x)
    if y is not None:
        labels = _array(y)
        flat = labels.ndim == 2 and labels.shape[1] == 1 and labels.dtype.kind in "iu"
        fields |= label_fields(f"{where}: y", labels.reshape(-1) if flat else labels)
    given = {name: _array(mask) for name, mask in masks.items() if mask is not None}
    for name, mask in given.items():
        if mask.ndim != 1 or mask.dtype.kind not in "bu":
            raise InputError(f"{where}: the {name} mask is {_kind(mask)}; expected bool [nodes], one split")
    if given:
        none = np.zeros(len(next(iter(given.values()))), dtype=bool)
        fields |= {name: given.get(name, none).astype(bool) for name in SPLITS}
    return fields


def _features(where: str, x: Any) -> np.ndarray | SparseRows:
    if hasattr(x, "tocsr"):
        rows = x.tocsr()
        indices = rows.indices.astype(np.int32)
        return SparseRows(rows.indptr.astype(np.int64), indices, rows.data.astype(np.float32), rows.shape)
    if str(getattr(x, "layout", "")) == "torch.sparse_csr":
        offsets, columns, values = (_array(each()) for each in (x.crow_indices, x.col_indices, x.values))
        shape = (int(x.shape[0]), int(x.shape[1]))
        return SparseRows(
            offsets.astype(np.int64), columns.astype(np.int32), values.astype(np.float32), shape
        )
    if str(getattr(x, "layout", "torch.strided")) != "torch.strided":
        raise InputError(
            f"{where}: x is a tensor of layout {x.layout}; expected a dense or sparse_csr one, or a SciPy matrix"
        )
    dense = _array(x)
    if dense.ndim != 2 or dense.dtype.kind not in "fiub":
        raise InputError(f"{where}: x is {_kind(dense)}; expected numbers [nodes, features]")
    return dense if dense.dtype == np.float16 else dense.astype(np.float32)


def _array(values: Iterable[Any] | Any) -> np.ndarray:
    """Return a torch tensor of any device, or anything that NumPy takes, as an array."""
    if hasattr(values, "detach"):
        values = values.detach().cpu().numpy()
    return np.asarray(values)


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"
