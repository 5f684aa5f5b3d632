"""Convert graphs to and from PyG, DGL, networkx and SciPy, and write them to graph files.

None of these libraries is imported before a function needs it. A converted graph counts as undirected if the reverse
of each edge is there.
"""

from __future__ import annotations

import importlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import sizes
from ..errors import InputError, shown
from .export import in_imported_order, whole
from .graph import SPLITS, Graph, SparseRows, from_edges
from .readers import FORMATS
from .readers.array_edges import count_rounded, rounding
from .readers.limits import memory
from .readers.node_arrays import label_fields
from .readers.npy import NUMBERS
from .verify import undirected_if_symmetric
from .writer import write

NO_EDGE_DATA = {"edge_index", "edge_weight", "edge_label", "edge_label_index"}  # attributes of PyG's Data
MASKS = {f"{name}_mask" for name in SPLITS}
# Endings of files that are no graph files.
OTHERS = {ending for each in FORMATS.values() for ending in each.endings}
OTHERS |= {
    ".parquet",
    ".gz",
    ".zst",
    ".pt",
    ".pth",
    ".pkl",
    ".pickle",
    ".bin",
    ".json",
    ".gml",
    ".graphml",
    ".gexf",
    ".mat",
}

Source = Graph | str | os.PathLike[str]  # a graph, or the path of a graph file


def to_pyg(graph: Source) -> Any:
    """Convert a graph or graph file to torch_geometric.data.Data, with nodes in the numbering of the import.

    It has edge_index, ordered by destination, and as far as the graph has them edge_weight, edge_NAME for further edge
    data, x (sparse features as a torch.sparse_csr tensor), y, train_mask, val_mask and test_mask. Raises InputError if
    PyG is not installed, for edge data whose name has another meaning there, and for a file that is not sound.
    """
    torch, pyg = _library("torch", "to_pyg"), _library("torch_geometric.data", "to_pyg")
    held = _in_memory(graph)
    ends = np.stack([held.indices.astype(np.int64), _destinations(held)])
    data = pyg.Data(edge_index=torch.from_numpy(ends), num_nodes=held.nodes)
    for name, values in _edge_arrays(held).items():
        key = f"edge_{name}"
        if name != "weight" and (key in NO_EDGE_DATA or getattr(data, key, None) is not None):
            raise InputError(
                f"to_pyg: {held.name} has the edge data {name}, and {key} has a meaning of its own in PyG; "
                "give the data another name"
            )
        data[key] = torch.from_numpy(values)
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
        y: classes [N] or [N, 1], -1 for unlabelled nodes, or 0 and 1 [N, C].
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
            count = sizes.counted(len(values) - int(np.count_nonzero(values)), "entry", "entries")
            raise InputError(f"{where}: {count} stored as False; remove them by eliminate_zeros()")
        values = None
    source, destination = reversed(ends) if transpose else ends
    notes: list[str] = []
    fields = _node_fields(where, x, y, {"train": train, "val": val, "test": test}, notes)
    return _graph(where, source, destination, matrix.shape[0], values, fields, notes)


def from_pyg(data: Any, *, split: int | None = None) -> Graph:
    """Convert a torch_geometric.data.Data: edge_index and, if present, edge_weight, x, y, train_mask and so on.

    Numbers [E] named weight, as PyG's from_networkx has them, are the weights where there is no edge_weight. edge_attr
    becomes the edge data "attr", and other tensors edge_NAME [E, ...] become the edge data NAME, except edge_label. A y
    [N] of floats that are no classes, and all else, is left out with a warning. A HeteroData becomes one numbering of
    nodes, type after type, x with as many columns as the widest and y of the one type that has it; the types of edges
    become the edge data "type", numbered as in ``data.edge_types`` (`Graph.types`). split: column of masks [N, S].
    Raises InputError for other objects, temporal graphs, and masks of several splits without ``split``.
    """
    where, types = "from_pyg", ""
    notes: list[str] = []
    if getattr(data, "edge_types", None):
        data, types = _of_types(where, data, notes)
    # PyG's keys are those of a set, whose order differs between processes.
    keys: list[str] = sorted(data.keys()) if callable(getattr(data, "keys", None)) else []
    edges: Any = getattr(data, "edge_index", None) if "edge_index" in keys else None
    if getattr(edges, "ndim", 0) != 2 or len(edges) != 2 or not hasattr(data, "num_nodes"):
        raise InputError(f"{where}: {type(data).__name__} has no edge_index [2, edges] of one graph")
    source, destination = (_array(f"{where}: edge_index", end, whole=True) for end in edges)
    of_edges = [key for key in keys if _shape(data[key])[:1] == source.shape]
    weights = [
        key for key in ("edge_weight", "weight") if key in (keys if key == "edge_weight" else of_edges)
    ]
    if len(weights) > 1:
        raise InputError(
            f"{where}: both edge_weight and weight are there; delete the one that has no weights"
        )
    if weights == ["weight"] and data.num_nodes == len(source):
        notes.append("weight is taken for weights of edges, of which there are as many as nodes")
    edge = {
        key.removeprefix("edge_"): data[key]
        for key in of_edges
        if key.startswith("edge_") and key not in NO_EDGE_DATA
    }
    if getattr(data, "edge_attr", None) is not None:
        edge["attr"] = data.edge_attr
    y: Any = getattr(data, "y", None)
    if getattr(y, "ndim", 0) == 1 and "float" in str(y.dtype):
        try:
            _labels(where, y)
        except InputError:
            notes.append(f"y is {_kind(_array(where, y))}, not classes: taken without labels")
            y = None
    masks = {name: getattr(data, f"{name}_mask", None) for name in SPLITS}
    fields = _node_fields(where, getattr(data, "x", None), y, masks, notes, split)
    taken = {"edge_index", "num_nodes", "x", "y", *weights, *(f"edge_{name}" for name in edge), *MASKS}
    _leave_out(notes, "attribute{}", [key for key in keys if key not in taken and 0 not in _shape(data[key])])
    weight = data[weights[0]] if weights else None
    return _graph(where, source, destination, data.num_nodes, weight, fields | {"types": types}, notes, edge)


def _of_types(where: str, data: Any, notes: list[str]) -> tuple[Any, str]:
    """Return the Data of a HeteroData with all nodes in one numbering, and its types as `Graph.types` has them.

    notes: gets what some types have and others lack. Raises InputError for labels of several types of nodes.
    """
    made, torch = data.clone(), _library("torch", where)
    stores = made.node_stores
    labelled = [each for each in stores if "y" in each]
    if len(labelled) > 1:
        names = ", ".join(each._key for each in labelled)
        raise InputError(
            f"{where}: {names} have y, and a graph has labels of one type of nodes; delete the others"
        )
    _check_types(where, made, torch.Tensor)
    columns = [each.x.shape[1] if "x" in each else 0 for each in stores]
    for store, width in zip(stores, columns, strict=True):
        count = store.num_nodes
        if any(str(getattr(each, "layout", "torch.strided")) != "torch.strided" for each in store.values()):
            raise InputError(f"{where}: {store._key} has sparse tensors; expected dense ones")
        if max(columns) and (width or "x" not in store):
            dense = store.x if width else torch.zeros(count, 0)
            store.x = torch.nn.functional.pad(dense, (0, max(columns) - width))
        for name in {"y", *MASKS} & {*labelled[0].keys()} if labelled else ():
            of = labelled[0][name]
            of = of.long() if name == "y" and not of.is_floating_point() else of
            none = -1 if name == "y" and of[:1].numel() == 1 else 0
            store[name] = of if store is labelled[0] else of.new_full((count, *of.shape[1:]), none)
    nodes = [[each._key, each.num_nodes, width] for each, width in zip(stores, columns, strict=True)]
    types = json.dumps({"nodes": nodes, "edges": data.edge_types})
    for name in {name for each in made.edge_stores for name in each} - {"edge_index"}:  # are left out
        if len({_shape(each[name])[1:] for each in made.edge_stores if name in each}) > 1:
            made.edge_stores[0].pop(name, None)
    joined = made.to_homogeneous(add_node_type=False, dummy_values=False)
    some = {key for each in data.stores for key in each.keys()} - {*joined.keys(), "num_nodes"}  # noqa: SIM118
    _leave_out(notes, "attribute{} that types lack or have in other columns", sorted(some))
    return joined, types


def _check_types(where: str, data: Any, tensor: type) -> None:
    """Raise InputError if tensors of a HeteroData do not fit its types. tensor: torch's class."""
    held = list[tuple[Any, str, str, Any]]()
    for store in (*data.node_stores, *data.edge_stores):
        key = store._key if isinstance(store._key, str) else " ".join(store._key)
        of_edges = {name for name in store if name[:5] == "edge_"} - {"edge_label", "edge_label_index"}
        names = {"edge_index", *of_edges} if key != store._key else {"x", "y", *MASKS} & {*store.keys()}
        if "edge_type" in names:
            raise InputError(
                f"{where}: {key} has edge_type, which numbers the types of edges here; rename it"
            )
        for name in sorted(names):
            value, what = store.get(name), f"{where}: {key}: {name}"
            form = {"edge_index": "[2, edges]", "x": "[nodes, features]"}.get(name, "[rows, ...]")
            dims, shape = {"edge_index": 2, "x": 2}.get(name), _shape(value)
            whole = name != "edge_index" or shape[:1] == (2,)
            if not isinstance(value, tensor) or not shape or len(shape) != (dims or len(shape)) or not whole:
                raise InputError(f"{what} is {_given(value)}; expected a tensor {form}")
            held.append((store, name, what, value))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyG warns of types whose number of nodes it guesses
        counts = {store._key: store.num_nodes for store in data.node_stores}
    if wrong := [key for key, count in counts.items() if not isinstance(count, int) or count < 0]:
        count = counts[wrong[0]]
        said = "neither x nor num_nodes" if count is None else f"num_nodes {count}"
        raise InputError(f"{where}: {wrong[0]} has {said}; set its num_nodes to an integer of at least 0")
    for store, name, what, value in held:
        key, of_nodes = store._key, store._key in counts
        if name != "edge_index":
            count = counts[key] if of_nodes else store.edge_index.shape[1]
            if len(value) != count:
                raise InputError(f"{what} is {_given(value)}; expected {count} rows")
            continue
        for row, end in zip(value, key[::2], strict=True):
            if end not in counts:
                raise InputError(f"{what}: {end} is no type of nodes; there are {', '.join(counts)}")
            if len(row) and not 0 <= row.min() <= row.max() < counts[end]:
                raise InputError(
                    f"{what} has numbers {row.min()} to {row.max()} of {end}; expected 0 to {counts[end] - 1}"
                )


def _given(value: Any) -> str:
    """Return the type, and the shape of a tensor, for messages."""
    return f"{value.dtype} {list(value.shape)}" if hasattr(value, "dtype") else type(value).__name__


def from_dgl(graph: Any, *, split: int | None = None) -> Graph:
    """Convert a homogeneous dgl.DGLGraph with the node data of DGL's datasets: feat, label, train_mask and so on.

    edata["weight"] are the weights; other edata become edge data. Other ndata are left out with a warning. split:
    column of masks [N, S]. Raises InputError for other objects and heterogeneous graphs, and masks of several splits
    without ``split``.
    """
    where = "from_dgl"
    notes: list[str] = []
    if not getattr(graph, "is_homogeneous", False):
        raise InputError(f"{where}: expected a homogeneous DGLGraph (see dgl.to_homogeneous)")
    source, destination = (_array(f"{where}: the ids of nodes", end, whole=True) for end in graph.edges())
    nodes, edges = graph.ndata, graph.edata
    masks = {name: nodes.get(f"{name}_mask") for name in SPLITS}
    fields = _node_fields(where, nodes.get("feat"), nodes.get("label"), masks, notes, split)
    _leave_out(notes, "ndata", [name for name in nodes if name not in {"feat", "label", *MASKS}])
    edge = {name: values for name, values in edges.items() if name != "weight"}
    return _graph(where, source, destination, graph.num_nodes(), edges.get("weight"), fields, notes, edge)


def from_networkx(
    graph: Any, x: Any = None, y: Any = None, *, train: Any = None, val: Any = None, test: Any = None
) -> Graph:
    """Convert a networkx graph of any kind. Nodes are in the order of graph.nodes; x, y and masks as in `from_scipy`.

    The edge attribute "weight" is used if any edge has it; edges without it, or with None, have 1. Other attributes are
    left out with a warning. Raises InputError for other objects.
    """
    where = "from_networkx"
    notes: list[str] = []
    if "networkx" not in _libraries(graph) or not hasattr(graph, "is_directed"):
        raise InputError(f"{where}: expected a networkx graph, and got {type(graph).__name__}")
    number = {node: i for i, node in enumerate(graph.nodes)}
    ends = list(graph.edges(data=True))
    source, destination = (np.array([number[edge[end]] for edge in ends], dtype=np.int64) for end in (0, 1))
    values = [edge[2].get("weight") for edge in ends]
    weight = None
    if any(value is not None for value in values):
        weight = _array(f"{where}: weights", [1 if value is None else value for value in values])
        if weight.shape != source.shape:  # refused below; lists cannot be appended to
            raise InputError(f"{where}: weights are {_kind(weight)}; expected numbers [{len(source)}]")
    if not graph.is_directed():
        once = source != destination  # a self loop is its own reverse
        source, destination = np.append(source, destination[once]), np.append(destination, source[once])
        weight = None if weight is None else np.append(weight, weight[once])
    fields = _node_fields(where, x, y, {"train": train, "val": val, "test": test}, notes)
    _leave_out(notes, "attribute{} of nodes", [name for _, each in graph.nodes(data=True) for name in each])
    _leave_out(
        notes, "attribute{} of edges", [name for *_, each in ends for name in each if name != "weight"]
    )
    return _graph(where, source, destination, len(number), weight, fields, notes)


def check_name(path: Path) -> None:
    """Raise InputError for the name of a graph file to write that ends as files of another format do."""
    if (ending := path.suffix.lower()) in OTHERS:
        raise InputError(f"graph files (HDF5) do not end in {ending}; name it {path.with_suffix('.h5')}")


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
    [N, S] of PyG or DGL. Raises InputError for other objects, for a path that ends as files of another format do, and
    if the file cannot be written.
    """
    try:
        check_name(Path(path))
    except InputError as error:
        raise InputError(f"save: {error}") from None
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
    for library in _libraries(graph):
        if library in converters:
            return converters[library]
    raise InputError(
        f"save: got {type(graph).__name__}; expected a Graph, a PyG Data, a DGL or networkx graph, or a SciPy matrix"
    )


def _libraries(graph: Any) -> list[str]:
    """Return the names of the libraries that define an object's class and its base classes."""
    return [base.__module__.partition(".")[0] for base in type(graph).__mro__]


# --- helpers of to_*


def _in_memory(graph: Source) -> Graph:
    """Return a graph in memory, in the numbering of its import."""
    if isinstance(graph, Graph):
        if graph.permutation is not None:
            raise InputError(f"{graph.name}: its rows were renumbered; pass the path of its file")
        return graph
    if not isinstance(graph, str | os.PathLike):
        raise InputError(
            f"expected a graph file's path, and got {type(graph).__name__}; mgg.save writes a graph file"
        )
    with in_imported_order(Path(graph), memory=memory() // 2) as opened:
        return whole(opened)


def _library(name: str, function: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise InputError(f"{function}: {package} is not installed ({error}); install it first") from error


def _edge_arrays(graph: Graph) -> dict[str, NDArray[Any]]:
    """Return copies of the weights and further edge data by name. Raises InputError for data named weight."""
    if "weight" in graph.edge:
        raise InputError(f"{graph.name} has edge data named weight; expected weights in Graph.weight")
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
    notes: list[str],
    edge: Mapping[str, Any] | None = None,
) -> Graph:
    """Return a checked graph, undirected if it is symmetric, and warn of ``notes``, once.

    Raises InputError that begins with ``where``.
    """
    values = None if weight is None else _array(f"{where}: weights", weight)
    if values is not None:
        if values.shape != source.shape or values.dtype.kind not in NUMBERS:
            raise InputError(f"{where}: weights are {_kind(values)}; expected numbers [{len(source)}]")
        single = _single("the weights", values, notes)
        if (vanished := (single == 0) & (values != 0)).any():
            at = int(vanished.argmax())
            raise InputError(f"{where}: weight {values[at]} of edge {at} is 0 in float32; scale the weights")
        values = single
    carried = {name: _edge_data(where, name, data, len(source), notes) for name, data in (edge or {}).items()}
    try:
        graph = from_edges(source, destination, nodes, name=where, weight=values, edge=carried, **fields)
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    found = undirected_if_symmetric(graph, where)
    if notes:
        warnings.warn(f"{where}: {'; '.join(notes)}", stacklevel=3)
    return found


def _leave_out(notes: list[str], what: str, names: Iterable[Any]) -> None:
    """Append a note that counts and names what is left out. what: with {} for a plural's s. names: none for no note."""
    if left := list(dict.fromkeys(names)):
        counted = f"{len(left)} {what.format('s'[: len(left) > 1])}"
        notes.append(f"left out {counted}: {', '.join(map(shown, left[:9]))}")


def _single(what: str, values: np.ndarray, notes: list[str]) -> np.ndarray:
    """Return numbers as float32, with a note about whole numbers that change; infinite ones are refused later."""
    with np.errstate(over="ignore", under="ignore"):
        found = values.astype(np.float32)
    if rounded := count_rounded(values, found):
        notes.append(rounding(what, rounded))
    return found


def _edge_data(where: str, name: str, data: Any, edges: int, notes: list[str]) -> np.ndarray:
    """Return edge data in a type of graph files: float64 becomes float32, bool becomes uint8."""
    what = f"edge data {name}"
    values = _array(f"{where}: {what}", data)
    if values.shape[:1] != (edges,) or values.dtype.kind not in NUMBERS:
        raise InputError(f"{where}: {what} are {_kind(values)}; expected numbers [{edges}, ...]")
    if values.dtype == np.float64:
        return _single(f"the {what}", values, notes)
    return values.astype(np.uint8) if values.dtype.kind == "b" else values


def _labels(where: str, y: Any) -> dict[str, Any]:
    return label_fields(f"{where}: y", _array(f"{where}: y", y, whole=True))


def _node_fields(
    where: str, x: Any, y: Any, masks: dict[str, Any], notes: list[str], split: int | None = None
) -> dict[str, Any]:
    """Return fields of Graph for node data. If one mask is given, the others are False everywhere.

    split: column of masks [N, S].
    """
    if split is not None and (isinstance(split, bool) or not isinstance(split, int | np.integer)):
        raise InputError(
            f"{where}: split={split!r} is {type(split).__name__}; expected the number of a column, int"
        )
    fields: dict[str, Any] = {}
    if x is not None:
        fields["x"] = _features(where, x, notes)
    if y is not None:
        fields |= _labels(where, y)
    found = {
        name: _array(f"{where}: the {name} mask", mask) for name, mask in masks.items() if mask is not None
    }
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
        if (mask > 1).any():
            raise InputError(f"{where}: the {name} mask has {mask.max()}; expected bool, or 0 and 1, [nodes]")
    if split is not None and not any(np.ndim(mask) == 2 for mask in masks.values()):
        raise InputError(f"{where}: split={split} is for masks [nodes, splits], and there are none")
    if found:
        none = np.zeros(len(next(iter(found.values()))), dtype=bool)
        fields |= {name: found.get(name, none).astype(bool) for name in SPLITS}
    return fields


def _features(where: str, x: Any, notes: list[str]) -> np.ndarray | SparseRows:
    what, layout = f"{where}: x", str(getattr(x, "layout", "torch.strided"))
    if hasattr(x, "tocsr") or layout == "torch.sparse_csr":
        if hasattr(x, "tocsr"):
            rows = x.tocsr()
            parts = rows.indptr, rows.indices, rows.data
        else:
            parts = _array(what, x.crow_indices()), _array(what, x.col_indices()), _array(what, x.values())
        indptr, indices, data = parts
        if len(x.shape) != 2 or data.dtype.kind not in NUMBERS:
            raise InputError(
                f"{what} is sparse {data.dtype} {list(x.shape)}; expected numbers [nodes, features]"
            )
        shape = (int(x.shape[0]), int(x.shape[1]))
        return SparseRows(
            indptr.astype(np.int64), indices.astype(np.int32), _single("the features", data, notes), shape
        )
    if layout != "torch.strided":
        raise InputError(
            f"{what} is a tensor of layout {layout}; expected a dense or sparse_csr one, or a SciPy matrix"
        )
    dense = _array(what, x)
    if dense.ndim != 2 or dense.dtype.kind not in NUMBERS:
        raise InputError(f"{what} is {_kind(dense)}; expected numbers [nodes, features]")
    return dense if dense.dtype == np.float16 else _single("the features", dense, notes)


def _array(what: str, values: Any, *, whole: bool = False) -> np.ndarray:
    """Return a torch tensor on any device, or anything that NumPy accepts, as an array; bfloat16 as float32.

    Args: what: the values, for messages. whole: they are whole numbers, so that those are refused that bfloat16 rounds.
    """
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            if str(values.dtype) == "torch.bfloat16":
                values = values.float()
                if whole and values.numel() and (largest := values.abs().max()) >= 256:
                    raise InputError(
                        f"{what} has {largest:.0f} in bfloat16, which rounds from 256 on; pass integers"
                    )
            values = values.numpy()
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        found = " ".join(str(getattr(values, each)) for each in ("dtype", "layout") if hasattr(values, each))
        found = found or type(values).__name__
        raise InputError(
            f"{what}: expected an array or a dense tensor of numbers, and got {found}"
        ) from error
    if np.ma.is_masked(values):
        raise InputError(f"{what} is an array of NumPy in which entries are masked; expected none")
    return array


def _shape(values: Any) -> tuple[int, ...]:
    """Return the shape of a tensor, an array or a list; () for anything else."""
    try:
        return tuple(np.shape(values))
    except (TypeError, ValueError):
        return ()


def _kind(array: np.ndarray) -> str:
    return f"{array.dtype} {list(array.shape)}"
