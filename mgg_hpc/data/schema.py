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
MOST_CLASSES = 1 << 24  # beyond any use; a model has weights for each
MOST_EDGE_DATA = 256  # names of data of edges
EDGE_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")

INDPTR, INDICES, WEIGHT = "graph/indptr", "graph/indices", "graph/weight"
X, Y, PERMUTATION = "node/x", "node/y", "order/permutation"
X_INDPTR, X_INDICES, X_DATA = "node/x/indptr", "node/x/indices", "node/x/data"
TRAIN, VAL, TEST = MASKS = ("node/train", "node/val", "node/test")
NODE_ID = "node/id"  # the user's integer of each row, where these are not 0 .. N - 1
NAME_OFFSETS, NAME_TEXT = "node/name/offsets", "node/name/text"  # the user's name of each row, UTF-8 as CSR
EDGE = "edge/"  # + NAME: data of edges, in the order of indices
PROOF = (
    "symmetric"  # attribute of the root: `digest.edge_digest` where every edge was found to have its reverse
)
DIGEST_BLOCK = "digest_block"  # attribute of the root: bytes of the blocks that digests are of
EDGE_DATASETS = (INDPTR, INDICES, WEIGHT)
DATASETS = (
    *EDGE_DATASETS,
    *(X, X_INDPTR, X_INDICES, X_DATA, Y),
    *MASKS,
    *(NODE_ID, NAME_OFFSETS, NAME_TEXT, PERMUTATION),
)


@dataclass(frozen=True)
class Csr:
    """Paths of a CSR's datasets, and what its ids stand for."""

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
        """Bytes from one entry of the first axis to the next."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.row_bytes

    def __str__(self) -> str:
        return f"{self.dtype.name} {list(self.shape)}"


@dataclass(frozen=True)
class Contents:
    """The attributes of a graph, and the layout of each of its datasets by path.

    sparse_shape: (N, F) when the features are CSR. partitions: the numbers of parts for which there are bounds.
    """

    name: str
    directed: bool
    classes: int
    multilabel: bool
    datasets: Mapping[str, Layout]
    sparse_shape: tuple[int, int] | None = None
    partitions: tuple[int, ...] = ()

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
        """Names of the data of edges, weights aside."""
        return tuple(path.removeprefix(EDGE) for path in self.datasets if path.startswith(EDGE))


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
    )


def validate(where: str, held: Contents) -> None:
    """Raise InputError, naming ``where`` and the dataset, unless types and shapes follow the schema."""
    for path in (INDPTR, INDICES):
        if path not in held.datasets:
            raise InputError(f"{where}: /{path} is missing; a graph file holds /{INDPTR} and /{INDICES}")
    if held.datasets[INDPTR].shape in ((), (0,), (1,)):
        raise InputError(f"{where}: /{INDPTR} is {held.datasets[INDPTR]}; a graph has one node at least")
    nodes, edges = held.nodes, held.edges if held.datasets[INDICES].shape else 0
    _expect(where, held, INDPTR, (INT64,), (nodes + 1,))
    narrow = (INT32,) if nodes <= INT32_NODES else ()
    _expect(where, held, INDICES, (*narrow, INT64), (edges,))
    _expect(where, held, WEIGHT, (FLOAT32,), (edges,))
    _expect(where, held, PERMUTATION, (INT64,), (nodes,))
    _validate_names(where, held)
    _validate_edge_data(where, held)
    _validate_features(where, held)
    _validate_labels(where, held)
    for path in MASKS:
        _expect(where, held, path, (BOOL,), (nodes,))
    missing = [path for path in MASKS if path not in held.datasets]
    if 0 < len(missing) < len(MASKS):
        raise InputError(f"{where}: /{missing[0]} is missing; the train, val and test masks come together")
    for parts in held.partitions:
        _expect(where, held, bounds_path(parts), (INT64,), (parts + 1,))


def _expect(
    where: str, held: Contents, path: str, dtypes: tuple[np.dtype, ...], shape: tuple[int, ...]
) -> None:
    """Raise InputError for a dataset of another type or shape; a missing one passes."""
    layout = held.datasets.get(path)
    if layout is not None and (layout.dtype not in dtypes or layout.shape != shape):
        wanted = " or ".join(str(Layout(dtype, shape)) for dtype in dtypes)
        raise InputError(f"{where}: /{path} is {layout}; expected {wanted}")


def check_edge_names(where: str, names: Collection[str]) -> None:
    """Raise InputError for names of data of edges that the format has not, or too many of them."""
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


def _validate_edge_data(where: str, held: Contents) -> None:
    check_edge_names(where, held.edge_data)
    for name in held.edge_data:
        layout, path = held.datasets[EDGE + name], EDGE + name
        if layout.dtype not in EDGE_TYPES or layout.shape[:1] != (held.edges,) or 0 in layout.shape[1:]:
            raise InputError(
                f"{where}: /{path} is {layout}; expected float32, float16 or integers [{held.edges}, ...]"
            )


def _validate_names(where: str, held: Contents) -> None:
    _expect(where, held, NODE_ID, (INT64,), (held.nodes,))
    _expect(where, held, NAME_OFFSETS, (INT64,), (held.nodes + 1,))
    found = [path for path in (NAME_OFFSETS, NAME_TEXT) if path in held.datasets]
    if len(found) == 1:
        missing = NAME_TEXT if found == [NAME_OFFSETS] else NAME_OFFSETS
        raise InputError(f"{where}: /{missing} is missing; names of nodes are offsets and text")
    if found:
        _expect(where, held, NAME_TEXT, (np.dtype(np.uint8),), held.datasets[NAME_TEXT].shape[:1])
        if NODE_ID in held.datasets:
            raise InputError(f"{where}: has both /{NODE_ID} and /{NAME_TEXT}; nodes have integers or words")


def _validate_features(where: str, held: Contents) -> None:
    dense = held.datasets.get(X)
    if dense is not None:
        width = dense.shape[1] if len(dense.shape) == 2 else 1
        _expect(where, held, X, (FLOAT32, FLOAT16), (held.nodes, max(width, 1)))
    sparse = [path for path in (X_INDPTR, X_INDICES, X_DATA) if path in held.datasets]
    if held.sparse_shape is None and not sparse:
        return
    if held.sparse_shape is None or len(sparse) != 3:
        raise InputError(
            f"{where}: /{X} is a CSR group; it needs indptr, indices, data and the attribute shape"
        )
    if held.sparse_shape[0] != held.nodes or not 1 <= held.sparse_shape[1] < 2**31:
        raise InputError(
            f"{where}: /{X} has the shape {list(held.sparse_shape)}; expected [{held.nodes}, 1 or more]"
        )
    stored = held.datasets[X_INDICES].shape[:1]
    _expect(where, held, X_INDPTR, (INT64,), (held.nodes + 1,))
    _expect(where, held, X_INDICES, (INT32,), stored)
    _expect(where, held, X_DATA, (FLOAT32,), stored)


def _validate_labels(where: str, held: Contents) -> None:
    if Y not in held.datasets:
        if held.classes:
            raise InputError(f"{where}: the attribute classes is {held.classes}, but there is no /{Y}")
        return
    if not 1 <= held.classes <= MOST_CLASSES:
        raise InputError(f"{where}: there is a /{Y}, but the attribute classes is {held.classes}")
    if held.multilabel:
        _expect(where, held, Y, (FLOAT32,), (held.nodes, held.classes))
    else:
        _expect(where, held, Y, (INT64,), (held.nodes,))
