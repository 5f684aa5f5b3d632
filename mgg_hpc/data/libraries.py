"""Convert graphs to and from PyG, DGL, networkx and SciPy, and write them to graph files.

None of these libraries is imported before a function needs it. A converted graph counts as undirected if the reverse
of each edge is there.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .export import in_imported_order, whole
from .graph import SPLITS, Graph, SparseRows, from_edges
from .readers.limits import memory
from .readers.node_arrays import label_fields
from .verify import undirected_if_symmetric
from .writer import write

NO_EDGE_DATA = {"edge_index", "edge_weight", "edge_label", "edge_label_index"}  # attributes of PyG's Data

Source = Graph | str | os.PathLike[str]  # a graph, or the path of a graph file


def to_pyg(graph: Source) -> Any:
    """Convert a graph or graph file to torch_geometric.data.Data, with nodes in the numbering of the import.

    It has edge_index, ordered by destination, and as far as the graph has them edge_weight, edge_NAME for further edge
    data, x (sparse features as a torch.sparse_csr tensor), y, train_mask, val_mask and test_mask. Raises InputError if
    PyG is not installed, and for a file that is not sound.
    """
    torch, pyg = _library("torch", "to_pyg"), _library("torch_geometric.data", "to_pyg")
    held = _in_memory(graph)
    ends = np.stack([held.indices.astype(np.int64), _destinations(held)])
    data = pyg.Data(edge_index=torch.from_numpy(ends), num_nodes=held.nodes)
    for name, values in _edge_arrays(held).items():
        data[f"edge_{name}"] = torch.from_numpy(values)
    if isinstance(held.x, SparseRows):
        parts = map(
            torch.from_numpy, map(_copy, (held.x.indptr, held.x.indices.astype(np.int64), held.x.data))
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch calls the layout a beta
            data.x = torch.sparse_csr_tensor(*parts, size=held.x.shape)
    for name, values in _node_arrays(held, "x", "y").items():
        data[name] = torch.from_numpy(values)
    return data


def to_dgl(graph: Source) -> Any:
    """Convert a graph or graph file to dgl.DGLGraph, with nodes in the numbering of the import.

    ndata has feat, label, train_mask, val_mask and test_mask, edata has weight and further edge data by name. Raises
    InputError if DGL is not installed, for sparse features, and for a file that is not sound.
    """
    torch, dgl = _library("torch", "to_dgl"), _library("dgl", "to_dgl")
    held = _in_memory(graph)
    if isinstance(held.x, SparseRows):
        raise InputError(f"to_dgl: {held.name} has sparse features, which DGL has no place for")
    ends = (torch.from_numpy(held.indices.astype(np.int64)), torch.from_numpy(_destinations(held)))
    made = dgl.graph(ends, num_nodes=held.nodes)
    for name, values in _edge_arrays(held).items():
        made.edata[name] = torch.from_numpy(values)
    for name, values in _node_arrays(held, "feat", "label").items():
        made.ndata[name] = torch.from_numpy(values)
    return made


def to_scipy(graph: Source) -> Any:
    """Convert the edges of a graph or graph file to scipy.sparse.csr_array [N, N]; entry (i, j) is the edge i -> j.

    Values are the weights, float32, or 1 without weights; nodes are in the numbering of the import; parallel edges are
    entries of their own. Raises InputError if SciPy is not installed, and for a file that is not sound.
    """
    sparse, held = _library("scipy.sparse", "to_scipy"), _in_memory(graph)
    weight = np.ones(held.edges, np.float32) if held.weight is None else held.weight
    return sparse.csc_array((weight, held.indices, held.indptr), shape=(held.nodes, held.nodes)).tocsr()


def from_scipy(
    matrix: Any,
    x: Any = None,
    y: Any = None,
    *,
    train: Any = None,
    val: Any = None,
    test: Any = None,
    transpose: bool = False,
) -> Graph:
    """Convert a SciPy sparse matrix [N, N]: an entry (i, j) is the edge i -> j, and its value the weight.

    An entry that is stored twice is two edges, and a stored 0 an edge, except in blocks (BSR). A matrix of bool gives a
    graph without weights.

    Args:
        transpose: an entry (i, j) is the edge j -> i.
        x: features [N, F], dense or sparse.
        y: integers [N], -1 for unlabelled nodes, or 0 and 1 [N, C].
        train, val, test: bool [N].

    Raises InputError for other types or shapes.
    """
    where = "from_scipy"
    if getattr(matrix, "ndim", 0) != 2 or not hasattr(matrix, "tocsr"):
        raise InputError(
            f"{where}: expected a SciPy sparse matrix [nodes, nodes], and got {type(matrix).__name__}"
        )
    if matrix.shape[0] != matrix.shape[1]:
        raise InputError(f"{where}: the matrix is {list(matrix.shape)}; expected as many columns as rows")
    entries = matrix.tocoo()
    if matrix.format == "bsr":
        entries.eliminate_zeros()
    ends, values = (entries.row, entries.col), entries.data
    if values.dtype.kind == "b":
        if not values.all():
            count = len(values) - np.count_nonzero(values)
            raise InputError(
                f"{where}: {count} entries are stored as False; remove them by eliminate_zeros()"
            )
        values = None
    source, destination = reversed(ends) if transpose else ends
    fields = _node_fields(where, x, y, {"train": train, "val": val, "test": test})
    return _graph(where, source, destination, matrix.shape[0], values, fields)


def from_pyg(data: Any, *, split: int | None = None) -> Graph:
    """Convert a torch_geometric.data.Data: edge_index and, if present, edge_weight, x, y, train_mask and so on.

    edge_attr becomes the edge data "attr", and other tensors edge_NAME [E, ...] become the edge data NAME, except
    edge_label. A y of floats [N] is left out with a warning. split: column of masks [N, S]. Raises InputError for other
    objects, heterogeneous graphs, and masks of several splits without ``split``.
    """
    where = "from_pyg"
    edges: Any = getattr(data, "edge_index", None)
    if getattr(edges, "ndim", 0) != 2 or len(edges) != 2:
        raise InputError(f"{where}: {type(data).__name__} has no edge_index [2, edges] of one graph")
    source, destination = (_array(end) for end in edges)
    y = getattr(data, "y", None)
    keys: list[str] = list(data.keys())
    keys = [key for key in keys if key.startswith("edge_") and key not in NO_EDGE_DATA]
    edge = {key.removeprefix("edge_"): data[key] for key in keys if np.shape(data[key])[:1] == source.shape}
    if getattr(data, "edge_attr", None) is not None:
        edge["attr"] = data.edge_attr
    if y is not None and (labels := _array(y)).ndim == 1 and labels.dtype.kind == "f":
        warnings.warn(f"{where}: y is {_kind(labels)}, not classes: taken without labels", stacklevel=2)
        y = None
    masks = {name: getattr(data, f"{name}_mask", None) for name in SPLITS}
    fields = _node_fields(where, getattr(data, "x", None), y, masks, split)
    weight = getattr(data, "edge_weight", None)
    return _graph(where, source, destination, data.num_nodes, weight, fields, edge)


def from_dgl(graph: Any, *, split: int | None = None) -> Graph:
    """Convert a homogeneous dgl.DGLGraph with the node data of DGL's datasets: feat, label, train_mask and so on.

    edata["weight"] are the weights; other edata become edge data. split: column of masks [N, S]. Raises InputError for
    other objects and heterogeneous graphs, and masks of several splits without ``split``.
    """
    where = "from_dgl"
    if not getattr(graph, "is_homogeneous", False):
        raise InputError(f"{where}: expected a homogeneous DGLGraph (see dgl.to_homogeneous)")
    source, destination = (_array(end) for end in graph.edges())
    nodes, edges = graph.ndata, graph.edata
    masks = {name: nodes.get(f"{name}_mask") for name in SPLITS}
    fields = _node_fields(where, nodes.get("feat"), nodes.get("label"), masks, split)
    edge = {name: values for name, values in edges.items() if name != "weight"}
    return _graph(where, source, destination, graph.num_nodes(), edges.get("weight"), fields, edge)


def from_networkx(
    graph: Any, x: Any = None, y: Any = None, *, train: Any = None, val: Any = None, test: Any = None
) -> Graph:
    """Convert a networkx graph of any kind. Nodes are in the order of graph.nodes; x, y and masks as in `from_scipy`.

    The edge attribute "weight" is used if any edge has it; edges without it, or with None, have 1. Raises InputError
    for other objects.
    """
    where = "from_networkx"
    if not hasattr(graph, "is_directed"):
        raise InputError(f"{where}: expected a networkx graph, and got {type(graph).__name__}")
    number = {node: i for i, node in enumerate(graph.nodes)}
    ends = list(graph.edges(data="weight"))
    source, destination = (np.array([number[edge[end]] for edge in ends], dtype=np.int64) for end in (0, 1))
    weight = None
    if any(edge[2] is not None for edge in ends):
        weight = np.array([1 if edge[2] is None else edge[2] for edge in ends])
    if not graph.is_directed():
        once = source != destination  # a self loop is its own reverse
        source, destination = np.append(source, destination[once]), np.append(destination, source[once])
        weight = None if weight is None else np.append(weight, weight[once])
    fields = _node_fields(where, x, y, {"train": train, "val": val, "test": test})
    return _graph(where, source, destination, len(number), weight, fields)


def save(
    graph: Any,
    path: str | os.PathLike[str],
    *,
    force: bool = False,
    name: str | None = None,
    split: int | None = None,
) -> None:
    """Write a `Graph`, a PyG Data, a DGL or networkx graph, or a SciPy sparse matrix as a graph file.

    force: replace an existing file. name: name of the graph. [default: its own, or the file's] split: column of masks
    [N, S] of PyG or DGL. Raises InputError for other objects, and if the file cannot be written.
    """
    convert = None if isinstance(graph, Graph) else _converter(graph)
    if split is not None and convert not in (from_pyg, from_dgl):
        raise InputError(
            f"save: split={split} is for masks [nodes, splits] of PyG and DGL, not {type(graph).__name__}"
        )
    options = {} if split is None else {"split": split}
    converted = graph if convert is None else convert(graph, **options)
    own = converted.name if isinstance(graph, Graph) else Path(path).stem
    write(path, replace(converted, name=own if name is None else name), force=force)


def _converter(graph: Any) -> Callable[..., Graph]:
    """Return the function for the library that defines the graph's class, or one of its base classes."""
    converters: dict[str, Callable[..., Graph]] = {
        "torch_geometric": from_pyg,
        "dgl": from_dgl,
        "networkx": from_networkx,
        "scipy": from_scipy,
    }
    for base in type(graph).__mro__:
        found = converters.get(base.__module__.partition(".")[0])
        if found is not None:
            return found
    raise InputError(
        f"save: got {type(graph).__name__}; expected a Graph, a PyG Data, a DGL or networkx graph, or a SciPy matrix"
    )


# --- helpers of to_*


def _in_memory(graph: Source) -> Graph:
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


def _edge_arrays(graph: Graph) -> dict[str, NDArray[Any]]:
    """Return copies of the weights and further edge data by name."""
    weight = {} if graph.weight is None else {"weight": graph.weight}
    return {name: _copy(values) for name, values in (weight | dict(graph.edge)).items()}


def _node_arrays(graph: Graph, x: str, y: str) -> dict[str, NDArray[Any]]:
    """Return copies of dense features, labels and masks under the names ``x``, ``y`` and train_mask and so on."""
    dense = None if isinstance(graph.x, SparseRows) else graph.x
    found = {x: dense, y: graph.y, **{f"{name}_mask": getattr(graph, name) for name in SPLITS}}
    return {name: _copy(values) for name, values in found.items() if values is not None}


def _destinations(graph: Graph) -> NDArray[np.int64]:
    return np.repeat(np.arange(graph.nodes, dtype=np.int64), np.diff(graph.indptr))


def _copy(array: NDArray[Any]) -> NDArray[Any]:
    """Return a writable copy, which a tensor shares its memory with."""
    return np.array(array, order="C")


# --- helpers of from_*


def _graph(
    where: str,
    source: np.ndarray,
    destination: np.ndarray,
    nodes: int,
    weight: Any,
    fields: dict[str, Any],
    edge: Mapping[str, Any] | None = None,
) -> Graph:
    """Return a checked graph, undirected if it is symmetric. Raises InputError that begins with ``where``."""
    values = None if weight is None else _array(weight)
    if values is not None and (values.shape != source.shape or values.dtype.kind not in "fiub"):
        raise InputError(f"{where}: weights are {_kind(values)}; expected numbers [{len(source)}]")
    carried = {name: _edge_data(where, name, data, len(source)) for name, data in (edge or {}).items()}
    try:
        with np.errstate(over="ignore"):  # weights that become infinite are refused
            graph = from_edges(source, destination, nodes, name=where, weight=values, edge=carried, **fields)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    return undirected_if_symmetric(graph, where)


def _edge_data(where: str, name: str, data: Any, edges: int) -> np.ndarray:
    """Return edge data in a type of graph files: float64 becomes float32, bool becomes uint8."""
    values = _array(data)
    if values.shape[:1] != (edges,) or values.dtype.kind not in "fiub":
        raise InputError(f"{where}: edge data {name} are {_kind(values)}; expected numbers [{edges}, ...]")
    return values.astype({"float64": np.float32, "bool": np.uint8}.get(values.dtype.name, values.dtype))


def _node_fields(
    where: str, x: Any, y: Any, masks: dict[str, Any], split: int | None = None
) -> dict[str, Any]:
    """Return fields of Graph for node data. If one mask is given, the others are False everywhere.

    split: column of masks [N, S].
    """
    fields: dict[str, Any] = {}
    if x is not None:
        fields["x"] = _features(where, x)
    if y is not None:
        labels = _array(y)
        flat = labels.ndim == 2 and labels.shape[1] == 1 and labels.dtype.kind in "iu"
        fields |= label_fields(f"{where}: y", labels.reshape(-1) if flat else labels)
    found = {name: _array(mask) for name, mask in masks.items() if mask is not None}
    for name, given in found.items():
        mask = given
        if split is not None and mask.ndim == 2:
            if not 0 <= split < mask.shape[1]:
                raise InputError(f"{where}: the {name} mask is {_kind(mask)}; there is no split={split}")
            found[name] = mask = mask[:, split]
        if mask.ndim != 1 or mask.dtype.kind not in "bu":
            choose = "; choose a column by split=" if mask.ndim == 2 else ""
            raise InputError(
                f"{where}: the {name} mask is {_kind(mask)}; expected bool [nodes], one split{choose}"
            )
    if split is not None and not any(np.ndim(mask) == 2 for mask in masks.values()):
        raise InputError(f"{where}: split={split} is for masks [nodes, splits], and there are none")
    if found:
        none = np.zeros(len(next(iter(found.values()))), dtype=bool)
        fields |= {name: found.get(name, none).astype(bool) for name in SPLITS}
    return fields


def _features(where: str, x: Any) -> np.ndarray | SparseRows:
    layout = str(getattr(x, "layout", "torch.strided"))
    if hasattr(x, "tocsr") or layout == "torch.sparse_csr":
        if hasattr(x, "tocsr"):
            rows = x.tocsr()
            parts = rows.indptr, rows.indices, rows.data
        else:
            parts = _array(x.crow_indices()), _array(x.col_indices()), _array(x.values())
        indptr, indices, data = (
            part.astype(dtype) for part, dtype in zip(parts, (np.int64, np.int32, np.float32), strict=True)
        )
        return SparseRows(indptr, indices, data, (int(x.shape[0]), int(x.shape[1])))
    if layout != "torch.strided":
        raise InputError(
            f"{where}: x is a tensor of layout {layout}; expected a dense or sparse_csr one, or a SciPy matrix"
        )
    dense = _array(x)
    if dense.ndim != 2 or dense.dtype.kind not in "fiub":
        raise InputError(f"{where}: x is {_kind(dense)}; expected numbers [nodes, features]")
    return dense if dense.dtype == np.float16 else dense.astype(np.float32)


def _array(values: Any) -> np.ndarray:
    """Return a torch tensor on any device, or anything that NumPy accepts, as an array; bfloat16 as float32."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = (values.float() if str(values.dtype) == "torch.bfloat16" else values).numpy()
    return np.asarray(values)


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"
