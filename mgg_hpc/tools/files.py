"""Make graph files from other formats; print their contents and check them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..data.atomic_write import check_output
from ..data.graph import Graph, split_per_class, split_random
from ..data.verify import verify
from ..data.writer import write
from ..errors import InputError
from .describe import describe
from .terminal import waiting

EDGE_LIST_NAMES = (".txt", ".csv", ".tsv", ".edges", ".edgelist", ".el", ".wel")

DRAWN = ("split_per_class", "split_random", "seed")
FORMATS: dict[str, tuple[str, ...]] = {  # the options that each format takes
    "digits": ("seed",),
    "planetoid": ("name", "download", "address"),
    "npz": ("name", "directed", "split", *DRAWN),
    "edges": ("name", "nodes", "symmetric", "simple", "features", "labels", *DRAWN),
}


def process_import(
    source: str,
    folder: Path | None,
    output: Path,
    *,
    force: bool,
    format_: str | None,
    options: dict[str, Any],
) -> None:
    """Read a graph in another format and write it as a graph file.

    options: those of the command line by name, all of them; None or False where they are not given.
    """
    check_output(output, force=force)
    format_ = format_ or _format_of(source)
    for option, value in options.items():
        if value not in (None, False) and option not in FORMATS[format_]:
            takers = " and ".join(name for name, taken in FORMATS.items() if option in taken)
            flag = option.replace("_", "-").replace("address", "url")
            raise InputError(f"--{flag} does not go with the format {format_}; it is for {takers}")
    if folder is not None and source != "planetoid":
        raise InputError(f"'{folder}' is one argument too many; a second one is for 'planetoid FOLDER'")
    with waiting("reading"):
        graph = _read(format_, source, folder, options)
        if graph.train is None:
            graph = _split(graph, options)
        if options["name"] is not None:
            graph = replace(graph, name=options["name"])
        write(output, graph, force=force)
    tell_written(output, graph)
    if graph.y is not None and (graph.train is None or not graph.train.any()):
        print("there are no training rows; to train on this graph, import it with --split-per-class")


def _format_of(source: str) -> str:
    """Return the format of a source by its name."""
    if source in ("digits", "planetoid"):
        return source
    name = source.lower().removesuffix(".gz")
    if name.endswith(".npz"):
        return "npz"
    if name.endswith(EDGE_LIST_NAMES):
        return "edges"
    if Path(source).is_dir():
        return "planetoid"
    raise InputError(
        f"the name of {source} does not tell its format; expected digits, planetoid, a name that ends in "
        f".npz or one of {' '.join(EDGE_LIST_NAMES)} (and .gz), or --format"
    )


def _read(format_: str, source: str, folder: Path | None, options: dict[str, Any]) -> Graph:
    """Read a graph in one of FORMATS; a format's reader is loaded only when it is used."""
    if format_ == "digits":
        from ..data.readers.digits import read_digits

        return read_digits(seed=options["seed"] or 0)
    if format_ == "npz":
        from ..data.readers.npz import read_npz

        return read_npz(Path(source), split=options["split"], directed=options["directed"])
    if format_ == "planetoid":
        return _read_planetoid(folder or (None if source == "planetoid" else Path(source)), options)
    from ..data.readers.edge_list import read_edge_list
    from ..data.readers.node_arrays import read_node_arrays

    nodes, fields = read_node_arrays(options["features"], options["labels"])
    if nodes is not None and options["nodes"] not in (None, nodes):
        raise InputError(f"--nodes {options['nodes']}, but the features or labels are of {nodes} nodes")
    nodes = options["nodes"] if nodes is None else nodes
    symmetric, simple = options["symmetric"], options["simple"]
    return replace(read_edge_list(Path(source), nodes=nodes, symmetric=symmetric, simple=simple), **fields)


def _read_planetoid(folder: Path | None, options: dict[str, Any]) -> Graph:
    from ..data.readers import planetoid

    name = options["name"]
    if options["download"]:
        if name is None or folder is not None:
            raise InputError("--download needs --name (cora, citeseer or pubmed) and no folder")
        return planetoid.download_planetoid(name, base=options["address"] or planetoid.AUTHORS)
    if folder is None:
        raise InputError("planetoid needs the folder with ind.NAME.* files, or --download")
    return planetoid.read_planetoid(folder, name or planetoid.only_name(folder))


def _split(graph: Graph, options: dict[str, Any]) -> Graph:
    """Return the graph with the split that is asked for, if any."""
    asked, shares = options["split_per_class"], options["split_random"]
    if not asked and shares is None:
        return graph
    if asked and shares is not None:
        raise InputError("--split-per-class and --split-random are two splits; choose one")
    if graph.y is None:
        raise InputError(f"--split-{'per-class' if asked else 'random'} needs labels; this graph has none")
    rng = np.random.Generator(np.random.Philox(options["seed"] or 0))
    if shares is None:
        return replace(graph, **split_per_class(graph.y, graph.classes, rng))
    return replace(graph, **split_random(graph.y, rng, train=shares[0], val=shares[1]))


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
    console = Console(stderr=True)
    with Progress(
        TextColumn("verifying"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as bar:
        task = bar.add_task("verifying", total=None)
        facts = verify(path, lambda done, total: bar.update(task, completed=done, total=total))
    print(f"{path} is sound:")
    for fact in facts:
        print(f"  {fact}")


def tell_written(output: Path, graph: Graph) -> None:
    print(
        f"{output}: {graph.name}, {graph.nodes:,} nodes, {graph.edges:,} edges, "
        f"{graph.features:,} features, {graph.classes:,} classes"
    )
