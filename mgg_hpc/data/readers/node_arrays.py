"""Features and labels from .npy files, for formats that hold edges alone."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from .. import schema
from ..streams import Rows
from . import npy
from .limits import check_memory

PIECE = 16 << 20  # bytes that are converted at a time


def node_rows(
    *,
    features: Path | None = None,
    labels: Path | None = None,
    masks: Sequence[Path] | None = None,
    dtype: str = "float32",
) -> tuple[int | None, dict[str, Rows], dict[str, Any]]:
    """Return the number of nodes (None without files), the datasets of nodes by path, and fields of `Imported`.

    ``features`` holds numbers [N, F], stored as ``dtype``, "float32" or "float16"; ``labels`` integers [N], -1 where
    unlabelled, or 0 and 1 [N, C]; ``masks`` three files, of 0 and 1 [N] or of node numbers. Raises InputError for other
    types or shapes; passes over the rows raise it for a value that the stored type does not hold.
    """
    rows: dict[str, Rows] = {}
    fields: dict[str, Any] = {}
    counts: dict[Path, int] = {}
    if features is not None:
        x = _load(features)
        if x.ndim != 2 or x.dtype.kind not in "fiub":
            raise InputError(f"{features} is {x.dtype} {list(x.shape)}; expected numbers [nodes, features]")
        rows[schema.X] = converted(str(features), x, np.dtype(dtype))
        counts[features] = len(x)
    if labels is not None:
        y = _load(labels)
        found = label_fields(str(labels), y)
        array = found.pop("y")
        rows[schema.Y], counts[labels] = converted(str(labels), array, array.dtype), len(y)
        fields |= found | {"multilabel": array.ndim == 2}
    first, nodes = next(iter(counts.items()), (None, None))
    for path, count in counts.items():
        if count != nodes:
            raise InputError(f"{path} has {count} rows; {first} has {nodes}")
    for path, file in zip(schema.MASKS, masks or (), strict=False):
        rows[path] = converted(str(file), _mask(file, nodes), np.dtype(bool))
    return nodes, rows, fields


def converted(where: str, array: NDArray[Any], dtype: np.dtype[Any]) -> Rows:
    """Return an array, in memory or mapped, as rows of another type.

    A pass raises InputError, naming ``where``, row and column, for a finite number that the type makes infinite.
    """
    step = max(1, PIECE // max(1, math.prod(array.shape[1:]) * dtype.itemsize))

    def pieces() -> Iterator[NDArray[Any]]:
        for low in range(0, len(array), step):
            given = array[low : low + step]
            with np.errstate(over="ignore"):
                piece = np.ascontiguousarray(given).astype(dtype, copy=False)
            if dtype.kind == "f" and np.isinf(piece).any():
                grown = np.isinf(piece) & np.isfinite(given)
                if grown.any():
                    at = tuple(int(place[0]) for place in grown.nonzero())
                    column = f", column {at[1]}" if len(at) > 1 else ""
                    raise InputError(
                        f"{where} has {given[at]} at row {low + at[0]}{column}, which {dtype.name} does not hold"
                    )
            yield piece

    return Rows(schema.Layout(dtype, array.shape), pieces)


def _mask(path: Path, nodes: int | None) -> NDArray[np.bool_]:
    """Return a mask bool [N] from a file of 0 and 1 [N], or of node numbers."""
    values = _load(path)
    if nodes is None:
        raise InputError(f"{path}: masks need features or labels, which tell the number of nodes")
    if values.ndim == 1 and values.dtype.kind == "b" and len(values) == nodes:
        return np.asarray(values)
    if values.ndim != 1 or values.dtype.kind not in "iu":
        raise InputError(
            f"{path} is {values.dtype} {list(values.shape)}; expected bool [{nodes}], or node numbers"
        )
    if len(values) and not 0 <= int(values.min()) <= int(values.max()) < nodes:
        raise InputError(f"{path} has node numbers out of range; expected 0 .. {nodes - 1}")
    mask = np.zeros(nodes, dtype=bool)
    mask[values] = True
    return mask


def label_fields(where: str, y: np.ndarray) -> dict[str, Any]:
    """Return Graph's fields ``y`` and ``classes`` from integers [N] or from numbers [N, C] of 0 and 1."""
    if y.ndim == 1 and y.dtype.kind in "iu":
        return {"y": y.astype(np.int64, copy=False), "classes": max(int(y.max(initial=0)), 0) + 1}
    if y.ndim == 2 and y.shape[1] and y.dtype.kind in "fiub":
        return {"y": y.astype(np.float32, copy=False), "classes": y.shape[1]}
    raise InputError(
        f"{where} is {y.dtype} {list(y.shape)}; expected integers [nodes], or 0 and 1 [nodes, classes]"
    )


def _load(path: Path) -> np.ndarray:
    try:
        found = npy.load(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error
    check_memory(str(path), 4 * found.size)  # as float32
    return found
