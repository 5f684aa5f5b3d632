"""NumPy archives: a CSR and what belongs to its nodes, under fixed names.

``indptr`` [N+1] and ``indices`` [E] are an in-edge CSR; the optional ``dir_indptr``, ``dir_indices`` the
directed original of a symmetrised one; ``weight`` [E]. Features are ``x`` [N, F], or ``x_indptr``,
``x_indices``, ``x_data``, ``x_shape``. ``y`` is integer [N] (-1 unlabelled), or 0 and 1 [N, C].
``train_mask``, ``val_mask``, ``test_mask`` are bool [N]; ``train_masks`` and so on hold several splits, bool
[S, N] or, as PyG has them under either name, [N, S].

An archive is data: what it claims is checked before anything is unpacked, and members that have no such name are not
touched.
"""

from __future__ import annotations

import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from .. import schema
from ..graph import SPLITS, Graph, SparseRows, index_dtype
from ..streams import EdgeBlock, Imported
from ..structure import ArraySource, edge_slices, undirected_if_symmetric
from . import npy
from .limits import check_memory
from .node_arrays import converted, label_fields

MEMBERS = 1000  # most arrays of an archive
DEFLATE_RATIO = 1032  # the most that deflate reaches
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # that NumPy writes
PIECE = 1 << 24  # bytes that are unpacked at a time
KINDS = {"int": "iu", "float": "f", "number": "iuf", "bool": "b"}


# Exceptions of zipfile for damaged archives: RuntimeError if a flipped bit means "encrypted", UnicodeDecodeError if
# one means that a damaged name is UTF-8.
DAMAGE = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    RuntimeError,
    UnicodeDecodeError,
    EOFError,
    struct.error,
    zlib.error,
)


def read_npz(path: Path, *, split: int | None = None, directed: bool = False) -> Graph:
    """Read an archive; ``split`` chooses one of several splits, ``directed`` the directed original.

    Without ``directed`` the graph counts as undirected if each edge's reverse is there. Raises InputError
    for a file that is no such archive, or an array whose type or shape does not fit.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _graph(_Arrays(path, archive), split, directed)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    except NotImplementedError as error:  # zipfile's, for what no archive of NumPy has
        raise InputError(f"{path} is not a NumPy archive (.npz): {error}") from error
    except DAMAGE as error:
        raise InputError(f"{path} is not a NumPy archive (.npz): {error}") from error


def open_npz(path: Path, *, split: int | None = None, directed: bool = False) -> Imported:
    """Open an archive as a stream. Arguments and errors as for `read_npz`."""
    graph = read_npz(path, split=split, directed=directed)
    held = schema.contents(graph)
    of_edges = (*schema.EDGE_DATASETS, *(name for name in held.datasets if name.startswith(schema.EDGE)))
    rows = {
        name: converted(str(path), array, array.dtype)
        for name, array in schema.arrays(graph).items()
        if name not in of_edges
    }
    return Imported(
        name=graph.name,
        edges=_CsrEdges(str(path), graph),
        rows=rows,
        classes=graph.classes,
        multilabel=graph.multilabel,
        sparse_shape=held.sparse_shape,
        directed=graph.directed,
    )


class _CsrEdges:
    """An `EdgeStream` over the CSR of a graph in memory. Marks are edge numbers."""

    def __init__(self, where: str, graph: Graph) -> None:
        self.where, self.nodes, self.total, self._graph = where, graph.nodes, graph.edges, graph

    def blocks(self, mark: Any = None, progress: Callable[[int], None] | None = None) -> Iterator[EdgeBlock]:
        graph = self._graph
        for part in edge_slices(ArraySource(graph, self.where)):
            high = part.position + len(part.sources)
            if mark is not None and high <= mark:
                continue
            data = {name: array[part.position : high] for name, array in graph.edge.items()}
            yield EdgeBlock(part.sources, part.destinations, part.weight, data, high)
            if progress:
                progress(high)


class _Arrays:
    """The arrays of an archive; types and sizes are checked before one is read."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive, self._taken = path, archive, 0
        infos = archive.infolist()
        if len(infos) > MEMBERS:
            raise InputError(
                f"{path} has {len(infos)} members; expected the arrays of a graph, {MEMBERS} at most"
            )
        self.members = {info.filename.removesuffix(".npy"): info for info in infos}
        if len(self.members) < len(infos):
            raise InputError(f"{path} has two arrays of one name; expected one")

    def peek(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of an array, None if there is none."""
        if name not in self.members:
            return None
        with self._opened(name) as file:
            return npy.read_header(file, f"{self.path}: {name}").shape

    def _opened(self, name: str) -> Any:
        """Open a member. Raises InputError for one that is packed otherwise than NumPy does, or claims too much."""
        info = self.members[name]
        if info.compress_type not in METHODS:
            raise InputError(
                f"{self.path}: {name} is packed by method {info.compress_type}; "
                "expected it stored or deflated, as by numpy.savez_compressed"
            )
        most = info.compress_size * (DEFLATE_RATIO if info.compress_type else 1)
        if info.file_size > most:
            raise InputError(
                f"{self.path}: {name} claims {info.file_size} bytes, packed in {info.compress_size}; "
                f"they hold {most} at most"
            )
        return self.archive.open(info)

    def get(self, name: str, kind: str, *shape: int | None) -> np.ndarray | None:
        """Read an array of a kind (a key of KINDS) and shape (None: any length); None if there is none."""
        if name not in self.members:
            return None
        where = f"{self.path}: {name}"
        with self._opened(name) as file:
            found = npy.read_header(file, where)
            fits = len(found.shape) == len(shape) and all(
                want in (None, have) for want, have in zip(shape, found.shape, strict=True)
            )
            if not fits or found.dtype.kind not in KINDS[kind]:
                wanted = ", ".join("any" if length is None else str(length) for length in shape)
                raise InputError(f"{where} is {found}; expected {kind} [{wanted}]")
            if file.tell() + found.nbytes != self.members[name].file_size:
                raise InputError(f"{where} claims {found}, which it does not hold")
            self._taken += found.nbytes
            check_memory(f"{self.path}, unpacked,", self._taken)
            data = np.empty(found.nbytes, np.uint8)
            for start in range(0, found.nbytes, PIECE):
                piece = file.read(min(PIECE, found.nbytes - start))
                if len(piece) != min(PIECE, found.nbytes - start):
                    raise InputError(f"{where} is truncated")
                data[start : start + len(piece)] = np.frombuffer(piece, np.uint8)
        array = data.view(found.dtype).reshape(found.shape, order="F" if found.fortran else "C")
        return np.ascontiguousarray(array.astype(found.dtype.newbyteorder("="), copy=False))

    def need(self, name: str, kind: str, *shape: int | None) -> np.ndarray:
        array = self.get(name, kind, *shape)
        if array is None:
            raise InputError(f"{self.path}: the array {name} is missing")
        return array


def _graph(arrays: _Arrays, split: int | None, directed: bool) -> Graph:
    prefix = "dir_" if directed else ""
    indptr = arrays.need(f"{prefix}indptr", "int", None).astype(np.int64, copy=False)
    indices = arrays.need(f"{prefix}indices", "int", None)
    nodes = len(indptr) - 1
    weight = arrays.get("weight", "number", len(indices))
    graph = Graph(
        name=arrays.path.stem,
        indptr=indptr,
        indices=_narrow(arrays, f"{prefix}indices", indices, nodes),
        weight=None if weight is None else weight.astype(np.float32),
        x=_features(arrays, nodes),
        **_masks(arrays, nodes, split),
        **_labels(arrays, nodes),
    )
    return graph if directed else undirected_if_symmetric(graph, str(arrays.path))


def _narrow(arrays: _Arrays, name: str, indices: np.ndarray, limit: int) -> np.ndarray:
    """Return ids in the type that the format stores. Raises InputError for one out of range."""
    if len(indices) and (indices.min() < 0 or indices.max() >= limit):
        entry = int(np.flatnonzero((indices < 0) | (indices >= limit))[0])
        raise InputError(
            f"{arrays.path}: {name} has {indices[entry]} at entry {entry}; expected 0 .. {limit - 1}"
        )
    return indices.astype(index_dtype(limit), copy=False)


def _features(arrays: _Arrays, nodes: int) -> np.ndarray | SparseRows | None:
    dense = arrays.get("x", "number", nodes, None)
    if dense is not None:
        return dense if dense.dtype == np.float16 else dense.astype(np.float32, copy=False)
    shape = arrays.get("x_shape", "int", 2)
    if shape is None:
        return None
    if shape[0] != nodes or not 1 <= shape[1] < 2**31:
        raise InputError(f"{arrays.path}: x_shape is {shape.tolist()}; expected [{nodes}, 1 or more]")
    columns = arrays.need("x_indices", "int", None)
    return SparseRows(
        arrays.need("x_indptr", "int", nodes + 1).astype(np.int64, copy=False),
        _narrow(arrays, "x_indices", columns, int(shape[1])),
        arrays.need("x_data", "number", len(columns)).astype(np.float32, copy=False),
        (nodes, int(shape[1])),
    )


def _labels(arrays: _Arrays, nodes: int) -> dict[str, Any]:
    shape = arrays.peek("y")
    if shape is None:
        return {}
    y = arrays.need("y", "number", nodes, *[None] * (len(shape) - 1))
    return label_fields(f"{arrays.path}: y", y)


def _masks(arrays: _Arrays, nodes: int, split: int | None) -> dict[str, Any]:
    several = len(arrays.peek("train_mask") or ()) == 2
    if split is None:
        if several:
            raise InputError(f"{arrays.path}: train_mask holds several splits; choose one, as by --split 0")
        return {name: arrays.get(f"{name}_mask", "bool", nodes) for name in SPLITS}
    found = {name: _splits(arrays, f"{name}_mask" + ("" if several else "s"), nodes) for name in SPLITS}
    count = min(map(len, found.values()))
    if not 0 <= split < count:
        raise InputError(f"{arrays.path} has splits 0 .. {count - 1}; there is no split {split}")
    return {name: masks[split].copy() for name, masks in found.items()}


def _splits(arrays: _Arrays, name: str, nodes: int) -> np.ndarray:
    """Read the masks of several splits, bool [S, N]."""
    if (arrays.peek(name) or ())[:1] == (nodes,):
        return arrays.need(name, "bool", nodes, None).T
    return arrays.need(name, "bool", None, nodes)
