"""Names, types and shapes of a graph file's datasets, checked before anything is read or allocated."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from .graph import INT32_NODES, Graph, SparseRows

FORMAT = "mgg-graph"
VERSION = 2
READABLE = (1, 2)  # version 1 has neither edge data, nor names of nodes, nor a proof of symmetry
MOST_CLASSES = 1 << 24  # a model has weights for each class
MOST_EDGE_DATA = 256  # datasets below edge/
EDGE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

INDPTR, INDICES, WEIGHT = "graph/indptr", "graph/indices", "graph/weight"
X, Y, PERMUTATION = "node/x", "node/y", "order/permutation"
X_INDPTR, X_INDICES, X_DATA = "node/x/indptr", "node/x/indices", "node/x/data"
TRAIN, VAL, TEST = MASKS = ("node/train", "node/val", "node/test")
NODE_ID = "node/id"  # the user's integer of each row, where these are not 0 .. N - 1
NAME_OFFSETS, NAME_TEXT = "node/name/offsets", "node/name/text"  # the user's name of each row, UTF-8 as CSR
EDGE = "edge/"  # + NAME: further edge data, in the order of indices
DIGEST = "digest/"  # + path of a dataset: XXH3-64 of each block of its bytes, uint64
PROOF = "symmetric"  # attribute of the root: `edge_digest` if the writer found the reverse of every edge
DIGEST_BLOCK = "digest_block"  # attribute of the root: bytes of a block that has a digest
EDGE_DATASETS = (INDPTR, INDICES, WEIGHT)
DATASETS = (
    *EDGE_DATASETS,
    *(X, X_INDPTR, X_INDICES, X_DATA, Y),
    *MASKS,
    *(NODE_ID, NAME_OFFSETS, NAME_TEXT, PERMUTATION),
)


SPARSE_X = (X_INDPTR, X_INDICES, X_DATA)
TOGETHER = {
    SPARSE_X: "CSR features are indptr, indices, data and the attribute shape",
    MASKS: "the train, val and test masks come together",
    (NAME_OFFSETS, NAME_TEXT): "names of nodes are offsets and text",
}


@dataclass(frozen=True)
class Csr:
    """Paths of the datasets that store a CSR matrix. kind: noun for its column ids, for messages."""

    indptr: str
    indices: str
    values: str
    kind: str


EDGES = Csr(INDPTR, INDICES, WEIGHT, "source")
COLUMNS = Csr(X_INDPTR, X_INDICES, X_DATA, "column")

INT64, INT32 = np.dtype("<i8"), np.dtype("<i4")
FLOAT32, FLOAT16, BOOL = np.dtype("<f4"), np.dtype("<f2"), np.dtype(bool)
EDGE_TYPES = (
    FLOAT32,
    FLOAT16,
    *(np.dtype(f"{kind}{size}") for size in (1, 2, 4, 8) for kind in ("<i", "<u")),
)


def bounds_path(parts: int) -> str:
    return f"partition/{parts}/bounds"


@dataclass(frozen=True)
class Layout:
    """Type and shape of one dataset."""

    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def row_bytes(self) -> int:
        """Bytes of one entry along the first axis."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.row_bytes

    def __str__(self) -> str:
        return f"{self.dtype.name} {list(self.shape)}"


@dataclass(frozen=True)
class Contents:
    """Attributes of a graph, and the layout of each of its datasets by path.

    sparse_shape: (N, F) if the features are CSR, else None. partitions: numbers of parts whose row ranges are stored.
    types: as in `Graph`.
    """

    name: str
    directed: bool
    classes: int
    multilabel: bool
    datasets: Mapping[str, Layout]
    sparse_shape: tuple[int, int] | None = None
    partitions: tuple[int, ...] = ()
    types: str = ""

    @property
    def nodes(self) -> int:
        return self.datasets[INDPTR].shape[0] - 1

    @property
    def edges(self) -> int:
        return self.datasets[INDICES].shape[0]

    @property
    def features(self) -> int:
        if self.sparse_shape is not None:
            return self.sparse_shape[1]
        return self.datasets[X].shape[1] if X in self.datasets else 0

    @property
    def edge_data(self) -> tuple[str, ...]:
        """Names of the edge data, without weights."""
        return tuple(path.removeprefix(EDGE) for path in self.datasets if path.startswith(EDGE))


def direction(directed: bool) -> str:
    """Return the text that describes a directed or an undirected graph in messages."""
    return "directed" if directed else "undirected, both directions stored"


def arrays(graph: Graph) -> dict[str, np.ndarray]:
    """Return a graph's arrays by their paths in the file."""
    found = {INDPTR: graph.indptr, INDICES: graph.indices, WEIGHT: graph.weight}
    if isinstance(graph.x, SparseRows):
        found |= {X_INDPTR: graph.x.indptr, X_INDICES: graph.x.indices, X_DATA: graph.x.data}
    else:
        found[X] = graph.x
    found |= {
        Y: graph.y,
        TRAIN: graph.train,
        VAL: graph.val,
        TEST: graph.test,
        PERMUTATION: graph.permutation,
    }
    found |= {EDGE + name: graph.edge[name] for name in sorted(graph.edge)}
    return {path: np.asarray(array) for path, array in found.items() if array is not None}


def contents(graph: Graph) -> Contents:
    """Return the contents of a graph in memory."""
    return Contents(
        name=graph.name,
        directed=graph.directed,
        classes=graph.classes,
        multilabel=graph.multilabel,
        datasets={path: Layout(array.dtype, array.shape) for path, array in arrays(graph).items()},
        sparse_shape=graph.x.shape if isinstance(graph.x, SparseRows) else None,
        types=graph.types,
    )


def validate(where: str, held: Contents) -> None:
    """Raise InputError, naming ``where`` and the dataset, unless types and shapes follow the schema."""
    found = held.datasets
    for path in (INDPTR, INDICES):
        if path not in found:
            raise InputError(f"{where}: /{path} is missing; a graph file holds /{INDPTR} and /{INDICES}")
    if found[INDPTR].shape in ((), (0,), (1,)):
        raise InputError(f"{where}: /{INDPTR} is {found[INDPTR]}; a graph has one node at least")
    nodes = held.nodes
    for path, (dtypes, shape) in _expected(held).items():
        if path in found and (found[path].dtype not in dtypes or found[path].shape != shape):
            wanted = " or ".join(str(Layout(dtype, shape)) for dtype in dtypes)
            raise InputError(f"{where}: /{path} is {found[path]}; expected {wanted}")
    for paths, together in TOGETHER.items():
        missing = [path for path in paths if path not in found]
        if 0 < len(missing) < len(paths):
            raise InputError(f"{where}: /{missing[0]} is missing; {together}")
    if NODE_ID in found and NAME_TEXT in found:
        raise InputError(f"{where}: has both /{NODE_ID} and /{NAME_TEXT}; nodes have integers or words")
    _validate_edge_data(where, held)
    if held.sparse_shape is not None and X_DATA not in found:
        raise InputError(f"{where}: /{X} is a group without arrays; {TOGETHER[SPARSE_X]}")
    if held.sparse_shape is not None and (
        held.sparse_shape[0] != nodes or not 1 <= held.sparse_shape[1] < 2**31
    ):
        raise InputError(
            f"{where}: /{X} has the shape {list(held.sparse_shape)}; expected [{nodes}, 1 or more]"
        )
    if Y not in found and held.classes:
        raise InputError(f"{where}: the attribute classes is {held.classes}, but there is no /{Y}")
    if Y in found and not 1 <= held.classes <= MOST_CLASSES:
        raise InputError(f"{where}: there is a /{Y}, but the attribute classes is {held.classes}")


def _validate_edge_data(where: str, held: Contents) -> None:
    check_edge_names(where, held.edge_data)
    for path in (EDGE + name for name in held.edge_data):
        layout = held.datasets[path]
        if layout.dtype not in EDGE_TYPES or layout.shape[:1] != (held.edges,) or 0 in layout.shape[1:]:
            raise InputError(
                f"{where}: /{path} is {layout}; expected float32, float16 or integers [{held.edges}, ...]"
            )


def _expected(held: Contents) -> dict[str, tuple[tuple[np.dtype, ...], tuple[int, ...]]]:
    """Return the allowed dtypes and the shape of each dataset, by path, for this many nodes and edges."""
    found, nodes = held.datasets, held.nodes
    edges = found[INDICES].shape[0] if found[INDICES].shape else 0
    text, entries = (found[path].shape[:1] if path in found else () for path in (NAME_TEXT, X_INDICES))
    columns = found[X].shape[1] if X in found and len(found[X].shape) == 2 else 1
    return {
        INDPTR: ((INT64,), (nodes + 1,)),
        INDICES: ((INT32, INT64) if nodes <= INT32_NODES else (INT64,), (edges,)),
        WEIGHT: ((FLOAT32,), (edges,)),
        PERMUTATION: ((INT64,), (nodes,)),
        NODE_ID: ((INT64,), (nodes,)),
        NAME_OFFSETS: ((INT64,), (nodes + 1,)),
        NAME_TEXT: ((np.dtype(np.uint8),), text),
        X: ((FLOAT32, FLOAT16), (nodes, max(columns, 1))),
        X_INDPTR: ((INT64,), (nodes + 1,)),
        X_INDICES: ((INT32,), entries),
        X_DATA: ((FLOAT32,), entries),
        Y: ((FLOAT32,), (nodes, held.classes)) if held.multilabel else ((INT64,), (nodes,)),
        **dict.fromkeys(MASKS, ((BOOL,), (nodes,))),
        **{bounds_path(parts): ((INT64,), (parts + 1,)) for parts in held.partitions},
    }


def check_edge_names(where: str, names: Collection[str]) -> None:
    """Raise InputError for names of edge data that are not allowed, or more than MOST_EDGE_DATA of them."""
    if len(names) > MOST_EDGE_DATA:
        raise InputError(
            f"{where}: has {len(names)} kinds of data of edges; expected {MOST_EDGE_DATA} at most"
        )
    for name in names:
        if name == "weight":
            raise InputError(f"{where}: data of edges is named 'weight'; expected weights in /{WEIGHT}")
        if EDGE_NAME.fullmatch(name) is None:
            raise InputError(
                f"{where}: data of edges is named {name[:80]!a}; expected 1 to 64 letters, digits, _ and -"
            )
