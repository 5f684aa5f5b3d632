"""Print the contents of graph files, and check them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from ..data.graph import Graph
from ..data.header import check_structure
from ..data.schema import Contents
from ..data.verify import verify
from .describe import describe
from .terminal import phases


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
    """Yield the lines of ``mgg info``."""
    degrees, features, labels = facts["degrees"], facts["features"], facts["labels"]
    kind = "directed" if facts["directed"] else "undirected, both directions stored"
    yield "name", facts["name"]
    yield "uuid", facts["uuid"]
    yield "size", f"{facts['bytes'] / 2**20:,.1f} MiB"
    method = f" ({facts['order']})" if facts["order"] else ""
    yield "nodes", f"{facts['nodes']:,}" + (f", renumbered{method}" if facts["renumbered"] else "")
    yield "edges", f"{facts['edges']:,} ({kind}{', weighted' if facts['weighted'] else ''})"
    for name, held in facts["edge_data"].items():
        columns = math.prod(held["shape"])
        yield f"edge data {name}", f"{held['type']}, {columns:,} value{'s' if columns > 1 else ''} an edge"
    yield (
        "in-degree",
        f"{degrees['min']:,} .. {degrees['max']:,}, mean {degrees['mean']:,.1f}, "
        f"median {degrees['median']:,.0f}",
    )
    yield "isolated", f"{degrees['isolated']:,} nodes; {degrees['self_loops']:,} self loops"
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
        edges = f"{min(part['edges']):,} .. {max(part['edges']):,} edges"
        rows = f"{min(part['rows']):,} .. {max(part['rows']):,} rows"
        yield f"{part['parts']} parts", f"by {part['method']}: {edges}, {rows} each"


def process_verify(path: Path) -> None:
    """Check a graph file, and print the facts that hold."""
    check_structure(path)
    with phases() as report:
        facts = verify(path, lambda done, total: report("verifying", done, total))
    print(f"{path} is sound:")
    for fact in facts:
        print(f"  {fact}")


def tell_written(output: Path, held: Contents | Graph) -> None:
    """Print what a file holds that was written."""
    print(
        f"{output}: {held.name}, {held.nodes:,} nodes, {held.edges:,} edges, "
        f"{held.features:,} features, {held.classes:,} classes"
    )
