"""Describe a graph file as plain data."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from ..data import schema
from ..data.store import GraphFile, open_graph
from ..data.structure import edge_slices


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return facts and statistics of a graph file, ready for JSON. Raises InputError as ``open_graph`` does."""
    with open_graph(path) as opened:
        facts: dict[str, Any] = {
            "file": str(path),
            "bytes": Path(path).stat().st_size,
            "name": opened.name,
            "uuid": opened.uuid,
            "version": schema.VERSION,
            "nodes": opened.nodes,
            "edges": opened.edges,
            "directed": opened.directed,
            "weighted": opened.weighted,
            "edge_data": _edge_data(opened),
            "index_type": opened.index_dtype.name,
            "renumbered": schema.PERMUTATION in opened.contents.datasets,
            "order": opened.order,
            "degrees": _degrees(opened),
            "features": _features(opened),
            "labels": _labels(opened),
            "partitions": _partitions(opened),
        }
        return facts


def _edge_data(opened: GraphFile) -> dict[str, dict[str, Any]]:
    """Return type and shape of an edge's part of each data of edges, by name."""
    layouts = {name: opened.contents.datasets[schema.EDGE + name] for name in opened.edge_data}
    return {
        name: {"type": layout.dtype.name, "shape": list(layout.shape[1:])} for name, layout in layouts.items()
    }


def _degrees(opened: GraphFile) -> dict[str, Any]:
    """Return statistics of in-degrees, self loops, and isolated nodes (without an edge to or from another node)."""
    degrees = np.diff(opened.indptr())
    touched = np.zeros(opened.nodes, dtype=bool)
    self_loops = 0
    for part in edge_slices(opened):
        loop = part.destinations == part.sources
        self_loops += int(np.count_nonzero(loop))
        touched[part.destinations[~loop]] = True
        touched[part.sources[~loop]] = True
    return {
        "min": int(degrees.min()),
        "median": float(np.median(degrees)),
        "mean": float(degrees.mean()),
        "max": int(degrees.max()),
        "isolated": int(np.count_nonzero(~touched)),
        "self_loops": self_loops,
    }


def _features(opened: GraphFile) -> dict[str, Any] | None:
    if not opened.has_x:
        return None
    held = opened.contents.datasets
    layout = held[schema.X_DATA if opened.sparse else schema.X]
    stored = layout.shape[0] if opened.sparse else opened.nodes * opened.features
    return {
        "columns": opened.features,
        "sparse": opened.sparse,
        "type": layout.dtype.name,
        "stored": stored,
        "density": stored / (opened.nodes * opened.features),
    }


def _labels(opened: GraphFile) -> dict[str, Any] | None:
    if not opened.has_y:
        return None
    facts: dict[str, Any] = {"classes": opened.classes, "multilabel": opened.multilabel}
    y = opened.read(schema.Y, 0, opened.nodes)
    if not opened.multilabel:
        facts["labelled"] = int(np.count_nonzero(y >= 0))
        facts["nodes_per_class"] = np.bincount(y[y >= 0], minlength=opened.classes).tolist()
    else:
        facts["nodes_per_class"] = np.count_nonzero(y, axis=0).tolist()
    for path in schema.MASKS if opened.has_masks else ():
        mask = opened.read(path, 0, opened.nodes)
        facts[path.removeprefix("node/")] = int(np.count_nonzero(mask))
    return facts


def _partitions(opened: GraphFile) -> list[dict[str, Any]]:
    found = []
    for parts, (method, edges) in opened.partitions.items():
        bounds = opened.bounds(parts)
        rows = [] if bounds is None else np.diff(bounds).tolist()
        found.append({"parts": parts, "method": method, "rows": rows, "edges": edges})
    return found
