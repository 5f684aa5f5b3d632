"""NumPy archives: a CSR and what belongs to its nodes, under fixed names.

``indptr`` [N+1] and ``indices`` [E] are an in-edge CSR; the optional ``dir_indptr``, ``dir_indices`` the
directed original of a symmetrised one; ``weight`` [E]. Features are ``x`` [N, F], or ``x_indptr``,
``x_indices``, ``x_data``, ``x_shape``. ``y`` is integer [N] (-1 unlabelled), or 0 and 1 [N, C].
``train_mask``, ``val_mask``, ``test_mask`` are bool [N]; ``train_masks`` and so on hold several splits, bool
[S, N] or, as PyG has them under either name, [N, S].
"""

from __future__ import annotations

import lzma
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from ..graph import SPLITS, Graph, SparseRows, index_dtype
from ..structure import undirected_if_symmetric
from .node_arrays import label_fields

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
    lzma.LZMAError,
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
    except DAMAGE as error:
        raise InputError(f"{path} is not a NumPy archive (.npz): {error}") from error


class _Arrays:
    """The arrays of an archive; types and sizes are checked before one is read."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self.archive = path, archive
        self.members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}

    def peek(self, name: str) -> tuple[int, ...] | None:
        """Return the shape of an array, None if there is none."""
        if name not in self.members:
            return None
        with self.archive.open(self.members[name]) as file:
            return self._header(name, file)[0]

    def _header(self, name: str, file: Any) -> tuple[tuple[int, ...], bool, np.dtype]:
        """Read shape, Fortran order and type from the array's first bytes."""
        try:
            version = np.lib.format.read_magic(file)
            if version == (1, 0):
                return np.lib.format.read_array_header_1_0(file)
            return np.lib.format.read_array_header_2_0(file)
        except ValueError as error:
            raise InputError(f"{self.path}: {name} is not a NumPy array: {error}") from error

    def get(self, name: str, kind: str, *shape: int | None) -> np.ndarray | None:
        """Read an array of a kind (a key of KINDS) and shape (None: any length); None if there is none."""
        if name not in self.members:
            return None
        info = self.members[name]
        with self.archive.open(info) as file:
            found, fortran, dtype = self._header(name, file)
            fits = len(found) == len(shape) and all(
                want in (None, have) for want, have in zip(shape, found, strict=True)
            )
            if not fits or dtype.kind not in KINDS[kind]:
                wanted = ", ".join("any" if length is None else str(length) for length in shape)
                raise InputError(f"{self.path}: {name} is {dtype} {list(found)}; expected {kind} [{wanted}]")
            size = math.prod(found) * dtype.itemsize
            if file.tell() + size != info.file_size:
                raise InputError(f"{self.path}: {name} claims {dtype} {list(found)}, which it does not hold")
            data = file.read(size)
        if len(data) != size:
            raise InputError(f"{self.path}: {name} is truncated")
        array = np.frombuffer(data, dtype=dtype).reshape(found, order="F" if fortran else "C")
        return np.ascontiguousarray(array.astype(dtype.newbyteorder("="), copy=False))

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
