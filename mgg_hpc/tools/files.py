"""Make graph files from generators and other formats; look into them and prove them sound."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..data.atomic_write import check_output
from ..data.generate import rmat, sbm
from ..data.graph import Graph, split_per_class, split_random
from ..data.store import write
from ..data.verify import verify
from ..errors import InputError
from .describe import describe
from .terminal import waiting

EDGE_LIST_NAMES = (".txt", ".csv", ".tsv", ".edges", ".edgelist", ".el", ".wel")
BYTES_PER_DRAWN_EDGE = 96  # while edges are sorted into a CSR, measured as peak memory over edges drawn


def process_generate_rmat(
    output: Path,
    *,
    force: bool,
    scale: int,
    edge_factor: int,
    seed: int,
    probabilities: tuple[float, float, float],
    directed: bool,
    features: int,
    classes: int,
) -> None:
    """Write a recursive-matrix graph; see ``rmat``."""
    check_output(output, force=force)
    nodes = 1 << scale
    _check_memory((nodes * edge_factor) * BYTES_PER_DRAWN_EDGE + nodes * (16 + 4 * features))
    a, b, c = probabilities
    with waiting("generating"):
        graph = rmat(
            scale,
            edge_factor,
            seed,
            a=a,
            b=b,
            c=c,
            symmetric=not directed,
            features=features,
            classes=classes,
        )
        write(output, graph, force=force)
    _tell_written(output, graph)


def process_generate_sbm(
    output: Path,
    *,
    force: bool,
    nodes: int,
    classes: int,
    features: int,
    degree: float,
    homophily: float,
    seed: int,
) -> None:
    """Write a stochastic block model; see ``sbm``."""
    check_output(output, force=force)
    _check_memory(int(nodes * degree / 2) * BYTES_PER_DRAWN_EDGE + nodes * (16 + 8 * features))
    with waiting("generating"):
        graph = sbm(nodes, classes=classes, features=features, degree=degree, homophily=homophily, seed=seed)
        write(output, graph, force=force)
    _tell_written(output, graph)


@dataclass(frozen=True)
class ImportOptions:
    """What the command line says about a source; None and False where it says nothing."""

    name: str | None = None
    download: bool = False
    address: str | None = None
    nodes: int | None = None
    directed: bool = False
    symmetric: bool = False
    simple: bool = False
    features: Path | None = None
    labels: Path | None = None
    split: int | None = None
    split_per_class: bool = False
    split_random: tuple[float, float] | None = None
    seed: int | None = None


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
    options: ImportOptions,
) -> None:
    """Read a graph in another format and write it as a graph file."""
    check_output(output, force=force)
    format_ = format_ or _format_of(source)
    _check_options(format_, options)
    if folder is not None and source != "planetoid":
        raise InputError(f"'{folder}' is one argument too many; a second one is for 'planetoid FOLDER'")
    with waiting("reading"):
        graph = _READERS[format_](source, folder, options)
        if graph.train is None:
            graph = _split(graph, options)
        if options.name is not None:
            graph = replace(graph, name=options.name)
        write(output, graph, force=force)
    _tell_written(output, graph)
    if graph.y is not None and (graph.train is None or not graph.train.any()):
        print("there are no training rows; to train on this graph, import it with --split-per-class")


def _format_of(source: str) -> str:
    """The format that a source's name tells."""
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


def _check_options(format_: str, options: ImportOptions) -> None:
    """Refuse an option that the format would ignore."""
    for option, value in vars(options).items():
        if value not in (None, False) and option not in FORMATS[format_]:
            takers = " and ".join(name for name, taken in FORMATS.items() if option in taken)
            flag = option.replace("_", "-").replace("address", "url")
            raise InputError(f"--{flag} does not go with the format {format_}; it is for {takers}")


def _read_digits(source: str, folder: Path | None, options: ImportOptions) -> Graph:
    from ..data.readers.digits import read_digits

    return read_digits(seed=options.seed or 0)


def _read_planetoid(source: str, folder: Path | None, options: ImportOptions) -> Graph:
    from ..data.readers import planetoid

    folder = folder or (None if source == "planetoid" else Path(source))
    if options.download:
        if options.name is None or folder is not None:
            raise InputError("--download needs --name (cora, citeseer or pubmed) and no folder")
        return planetoid.download_planetoid(options.name, base=options.address or planetoid.AUTHORS)
    if folder is None:
        raise InputError("planetoid needs the folder with ind.NAME.* files, or --download")
    return planetoid.read_planetoid(folder, options.name or planetoid.only_name(folder))


def _read_npz(source: str, folder: Path | None, options: ImportOptions) -> Graph:
    from ..data.readers.npz import read_npz

    return read_npz(Path(source), split=options.split, directed=options.directed)


def _read_edges(source: str, folder: Path | None, options: ImportOptions) -> Graph:
    from ..data.readers.edge_list import read_edge_list
    from ..data.readers.node_arrays import read_node_arrays

    nodes, fields = read_node_arrays(options.features, options.labels)
    if nodes is not None and options.nodes not in (None, nodes):
        raise InputError(f"--nodes {options.nodes}, but the features or labels are of {nodes} nodes")
    graph = read_edge_list(
        Path(source),
        nodes=options.nodes if nodes is None else nodes,
        symmetric=options.symmetric,
        simple=options.simple,
    )
    return replace(graph, **fields)


_READERS: dict[str, Callable[[str, Path | None, ImportOptions], Graph]] = {
    "digits": _read_digits,
    "planetoid": _read_planetoid,
    "npz": _read_npz,
    "edges": _read_edges,
}


def _split(graph: Graph, options: ImportOptions) -> Graph:
    """The graph with the split that is asked for, if one is."""
    asked, shares = options.split_per_class, options.split_random
    if not asked and shares is None:
        return graph
    if asked and shares is not None:
        raise InputError("--split-per-class and --split-random are two splits; choose one")
    if graph.y is None:
        raise InputError(f"--split-{'per-class' if asked else 'random'} needs labels; this graph has none")
    rng = np.random.Generator(np.random.Philox(options.seed or 0))
    if shares is None:
        train, val, test = split_per_class(graph.y, graph.classes, rng)
    else:
        train, val, test = split_random(graph.y, rng, train=shares[0], val=shares[1])
    return replace(graph, train=train, val=val, test=test)


def process_info(path: Path, *, as_json: bool) -> None:
    """Print what is in a graph file."""
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
    """The lines of ``mgg info``."""
    degrees, features, labels = facts["degrees"], facts["features"], facts["labels"]
    kind = "directed" if facts["directed"] else "undirected, both directions stored"
    yield "name", facts["name"]
    yield "uuid", facts["uuid"]
    yield "size", f"{facts['bytes'] / 2**20:,.1f} MiB"
    yield "nodes", f"{facts['nodes']:,}" + _renumbering(facts)
    yield "edges", f"{facts['edges']:,} ({kind}{', weighted' if facts['weighted'] else ''})"
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
        yield "nodes a class", _shortened(labels["nodes_per_class"])
    else:
        yield "classes", "no labels"
    if labels and "train" in labels:
        yield "split", f"{labels['train']:,} train, {labels['val']:,} val, {labels['test']:,} test"
    for part in facts["partitions"]:
        edges = f"{min(part['edges']):,} .. {max(part['edges']):,} edges"
        rows = f"{min(part['rows']):,} .. {max(part['rows']):,} rows"
        yield f"{part['parts']} parts", f"by {part['method']}: {edges}, {rows} each"


def _renumbering(facts: dict[str, Any]) -> str:
    method = f" ({facts['order']})" if facts["order"] else ""
    return f", renumbered{method}" if facts["renumbered"] else ""


def _shortened(counts: list[int]) -> str:
    shown = ", ".join(f"{count:,}" for count in counts[:12])
    return shown if len(counts) <= 12 else f"{shown}, ... ({min(counts):,} .. {max(counts):,})"


def process_verify(path: Path) -> None:
    """Prove a graph file sound, and print what was proven."""
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


def _tell_written(output: Path, graph: Graph) -> None:
    print(
        f"{output}: {graph.name}, {graph.nodes:,} nodes, {graph.edges:,} edges, "
        f"{graph.features:,} features, {graph.classes:,} classes"
    )


def _check_memory(needed: int) -> None:
    """Refuse what this machine's memory cannot hold, with both numbers, before it is tried."""
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > installed:
        raise InputError(
            f"this graph takes about {needed / 2**30:,.1f} GiB to generate; "
            f"the machine has {installed / 2**30:,.1f} GiB: choose a smaller one"
        )
