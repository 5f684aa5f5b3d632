"""Features and labels from .npy files, for formats that hold edges alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InputError
from . import npy
from .limits import check_memory


def read_node_arrays(features: Path | None, labels: Path | None) -> tuple[int | None, dict[str, Any]]:
    """Return the number of nodes (None without files) and Graph's fields ``x``, ``y`` and ``classes``.

    ``features`` holds numbers [N, F]; ``labels`` integers [N], -1 where unlabelled, or 0 and 1 [N, C]. Raises
    InputError for other types or shapes.
    """
    fields: dict[str, Any] = {}
    nodes: int | None = None
    if features is not None:
        x = _load(features)
        if x.ndim != 2 or x.dtype.kind not in "fiub":
            raise InputError(f"{features} is {x.dtype} {list(x.shape)}; expected numbers [nodes, features]")
        fields["x"] = x if x.dtype == np.float16 else x.astype(np.float32, copy=False)
        nodes = len(x)
    if labels is not None:
        y = _load(labels)
        if nodes is not None and y.shape[:1] != (nodes,):
            raise InputError(f"{labels} is {y.dtype} {list(y.shape)}; {features} has {nodes} rows")
        fields |= label_fields(str(labels), y)
        nodes = len(y)
    return nodes, fields


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
