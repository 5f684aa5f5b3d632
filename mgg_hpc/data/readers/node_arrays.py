"""Features, labels and masks from files of their own, for formats that hold edges alone.

Files are arrays of NumPy (.npy), tables as text (.csv, .tsv, .txt, plain, .gz or .zst), Parquet's (.parquet), or for
sparse features matrices of SciPy (.npz).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from .. import schema
from ..edge_stream import Rows
from . import npy
from .arrays.node_rows import check_nodes, feature_rows, label_rows, mask_rows
from .arrays.table import ENDINGS, open_table

PACKED = (".gz", ".zst")
EXPECTED = ".npy, .csv, .tsv or .txt (and .gz or .zst), or .parquet"


def node_rows(
    *,
    features: Path | None = None,
    labels: Path | None = None,
    masks: Sequence[Path] | None = None,
    dtype: str = "float32",
) -> tuple[int | None, dict[str, Rows], dict[str, Any]]:
    """Return the number of nodes (None without files), the datasets of nodes by path, and fields of `Imported`.

    ``features`` holds numbers [N, F], stored as ``dtype``, "float32" or "float16", or a sparse matrix [N, F];
    ``labels`` integers [N], -1 where unlabelled, or 0 and 1 [N, C]; ``masks`` three files, of 0 and 1 [N] or of node
    numbers. Raises InputError for other types or shapes; passes over the rows raise it, with row and column, for a
    value that is not finite, or that the stored type does not hold.
    """
    rows: dict[str, Rows] = {}
    fields: dict[str, Any] = {}
    counts: dict[Path, int] = {}
    if features is not None:
        found, sparse_shape = _features(features, dtype)
        rows |= found
        if sparse_shape is not None:
            fields["sparse_shape"] = sparse_shape
        counts[features] = _length(found)
    if labels is not None:
        rows[schema.Y], told = _labels(labels)
        fields |= told
        counts[labels] = rows[schema.Y].layout.shape[0]
    first, nodes = next(iter(counts.items()), (None, None))
    for path, count in counts.items():
        if count != nodes:
            raise InputError(f"{path} has {count} rows; {first} has {nodes}")
        check_nodes(path, count)
    for mask, file in zip(schema.MASKS, masks or (), strict=False):
        if nodes is None:
            raise InputError(f"{file}: masks need features or labels, which tell the number of nodes")
        rows[mask] = mask_rows(str(file), open_numbers(file), nodes)
    return nodes, rows, fields


def open_numbers(path: Path) -> Rows:
    """Open a file of numbers by the ending of its name: [N] or [N, F].

    Raises InputError for another ending, and for a file that does not hold numbers.
    """
    name = path.name.lower()
    if name.endswith(".parquet"):
        from .arrays.parquet import open_parquet

        return open_parquet(path)
    if name.endswith(".npy"):
        array = npy.open_array(path)
        if not array.shape:
            raise InputError(f"{path} is {array}; expected rows of numbers")
        return array.rows()
    for ending in PACKED:
        name = name.removesuffix(ending)
    if name.endswith(ENDINGS):
        return open_table(path)
    raise InputError(f"{path}: its name does not tell what it is; expected {EXPECTED}")


def _features(path: Path, dtype: str) -> tuple[dict[str, Rows], tuple[int, int] | None]:
    """Return the datasets of features, and their shape if they are sparse."""
    if not path.name.lower().endswith(".npz"):
        return {schema.X: feature_rows(str(path), open_numbers(path), np.dtype(dtype))}, None
    from .arrays.scipy_npz import open_features

    if dtype != "float32":
        raise InputError(
            f"{path}: sparse features are stored as float32; --feature-type {dtype} is for dense ones"
        )
    return open_features(path)


def _length(rows: dict[str, Rows]) -> int:
    return rows[schema.X].layout.shape[0] if schema.X in rows else rows[schema.X_INDPTR].layout.shape[0] - 1


def _labels(path: Path) -> tuple[Rows, dict[str, Any]]:
    """Return the dataset of labels, and fields of `Imported`."""
    rows = open_numbers(path)
    is_array = path.name.lower().endswith(".npy")
    if is_array and rows.layout.dtype.kind == "f" and len(rows.layout.shape) == 1:
        raise InputError(f"{path} is {rows.layout}; expected integers [nodes], or 0 and 1 [nodes, classes]")
    return label_rows(str(path), rows, column=not is_array)


def label_fields(where: str, y: np.ndarray) -> dict[str, Any]:
    """Return Graph's fields ``y`` and ``classes`` from integers [N] or from numbers [N, C] of 0 and 1."""
    if y.ndim == 1 and y.dtype.kind in "iu":
        return {"y": y.astype(np.int64, copy=False), "classes": max(int(y.max(initial=0)), 0) + 1}
    if y.ndim == 2 and y.shape[1] and y.dtype.kind in "fiub":
        return {"y": y.astype(np.float32, copy=False), "classes": y.shape[1]}
    raise InputError(
        f"{where} is {y.dtype} {list(y.shape)}; expected integers [nodes], or 0 and 1 [nodes, classes]"
    )
