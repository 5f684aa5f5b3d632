"""Describe graph files as data for JSON, print their contents, and check them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from ..data import schema
from ..data.graph import Graph
from ..data.header import check_structure
from ..data.store import GraphFile, open_graph
from ..data.verify import edge_slices, verify
from ..sizes import counted
from .terminal import phases


def describe(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return facts and statistics of a graph file, ready for JSON. Raises InputError as `open_graph` does."""
    with open_graph(path) as opened:
        return {
            "file": str(path),
            "bytes": Path(path).stat().st_size,
            "name": opened.name,
            "uuid": opened.uuid,
            "version": schema.VERSION,
            "nodes": opened.nodes,
            "edges": opened.edges,
            "directed": opened.directed,
            "weighted": opened.weighted,
            "edge_data": {
                name: {"type": layout.dtype.name, "shape": list(layout.shape[1:])}
                for name, layout in (
                    (name, opened.contents.datasets[schema.EDGE + name]) for name in opened.edge_data
                )
            },
            "index_type": opened.index_dtype.name,
            "renumbered": schema.PERMUTATION in opened.contents.datasets,
            "order": opened.order,
            "degrees": _degrees(opened),
            "features": _features(opened),
            "labels": _labels(opened),
            "partitions": [
                {
                    "parts": parts,
                    "method": method,
                    "rows": np.diff(np.asarray(opened.bounds(parts))).tolist(),
                    "edges": edges,
                }
                for parts, (method, edges) in opened.partitions.items()
            ],
        }


def _degrees(opened: GraphFile) -> dict[str, Any]:
    """Return statistics of in-degrees, self loops, and isolated nodes (without edges to or from other nodes)."""
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


def process_info(path: Path, *, as_json: bool) -> None:
    """Print the facts of a graph file."""
    facts = describe(path)
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    console = Console()
    table = Table(title=str(path), title_style="bold", show_header=False)
    for key, value in _info_rows(facts):
        table.add_row(key, value)
    console.print(table)


def _info_rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the rows (label, text) of the table that `mgg info` prints."""
    degrees, features, labels = facts["degrees"], facts["features"], facts["labels"]
    kind = schema.direction(facts["directed"])
    yield "name", facts["name"]
    yield "uuid", facts["uuid"]
    yield "size", f"{facts['bytes'] / 2**20:,.1f} MiB"
    method = f" ({facts['order']})" if facts["order"] else ""
    yield "nodes", f"{facts['nodes']:,}" + (f", renumbered{method}" if facts["renumbered"] else "")
    yield "edges", f"{facts['edges']:,} ({kind}{', weighted' if facts['weighted'] else ''})"
    for name, held in facts["edge_data"].items():
        columns = math.prod(held["shape"])
        yield f"edge data {name}", f"{held['type']}, {counted(columns, 'value')} an edge"
    yield (
        "in-degree",
        f"{degrees['min']:,} .. {degrees['max']:,}, mean {degrees['mean']:,.1f}, "
        f"median {degrees['median']:,.0f}",
    )
    yield "isolated", f"{counted(degrees['isolated'], 'node')}; {counted(degrees['self_loops'], 'self loop')}"
    if features:
        form = f"sparse, {features['density']:.2%} stored" if features["sparse"] else "dense"
        yield "features", f"{features['columns']:,} ({features['type']}, {form})"
    else:
        yield "features", "none"
    if labels:
        yield "classes", f"{labels['classes']:,}" + (" (multi-label)" if labels["multilabel"] else "")
        counts = labels["nodes_per_class"]
        shown = ", ".join(f"{count:,}" for count in counts[:12])
        many = f", ... ({min(counts):,} .. {max(counts):,})" if len(counts) > 12 else ""
        yield "nodes a class", shown + many
    else:
        yield "classes", "no labels"
    if labels and "train" in labels:
        yield "split", f"{labels['train']:,} train, {labels['val']:,} val, {labels['test']:,} test"
    for part in facts["partitions"]:
        edges = f"{min(part['edges']):,} .. {counted(max(part['edges']), 'edge')}"
        rows = f"{min(part['rows']):,} .. {counted(max(part['rows']), 'node')}"
        yield f"{counted(part['parts'], 'part')}", f"by {part['method']}: {edges}, {rows} each"


def process_verify(path: Path) -> None:
    """Check a graph file, and print the facts that hold."""
    check_structure(path)
    with phases() as report:
        facts = verify(path, lambda done, total: report("verifying", done, total))
    print(f"{path} is sound:")
    for fact in facts:
        print(f"  {fact}")


def tell_written(output: Path, held: schema.Contents | Graph) -> None:
    """Print a line about a file that was written."""
    print(
        f"{output}: {held.name}, {counted(held.nodes, 'node')}, {counted(held.edges, 'edge')} "
        f"({schema.direction(held.directed)}), {counted(held.features, 'feature')}, "
        f"{counted(held.classes, 'class', 'classes')}"
    )
