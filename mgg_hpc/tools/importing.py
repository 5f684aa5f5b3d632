"""Turn graphs in other formats into graph files: which reader takes a source, its options, splits, and the build."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data import schema
from ..data.assembly import build_graph
from ..data.atomic_write import check_output
from ..data.edge_stream import Imported, Rows, Source
from ..data.graph import Graph, split_per_class, split_random
from ..data.store import open_graph
from ..data.writer import write
from ..errors import InputError
from ..runtime import cores
from .files import tell_written
from .terminal import phases, waiting

EDGE_LIST_NAMES = (".txt", ".csv", ".tsv", ".edges", ".edgelist", ".el", ".wel", ".net")
PACKED = (".gz", ".zst")

SPLITS = ("split_per_class", "split_random", "seed")
NODES = ("name", "features", "feature_type", "labels", "masks", *SPLITS)  # what goes with edges alone
EDGES = ("symmetric", "simple", "memory")  # what the build does with edges of any stream
FORMATS: dict[str, tuple[str, ...]] = {  # the options that each format takes
    "digits": ("seed",),
    "planetoid": ("name", "download"),
    "npz": ("directed", "split", *NODES, *EDGES),
    "edges": ("nodes", "first", "map_ids", "edge_data", *NODES, *EDGES),
    "npy": ("nodes", "edge_data", *NODES, *EDGES),
    "mtx": (*NODES, *EDGES),
    "metis": (*NODES, *EDGES),
    "ogb": ("name", "feature_type", *EDGES),
}
NEEDS = {  # options that do nothing unless one of others is given, where the format takes those
    "seed": ("split_per_class", "split_random"),
    "feature_type": ("features",),
}
ENDINGS = {".npz": "npz", ".npy": "npy", ".mtx": "mtx", ".graph": "metis", ".metis": "metis"}
ENDINGS |= dict.fromkeys(EDGE_LIST_NAMES, "edges")

Options = Mapping[str, Any]
ROWS = 1 << 22  # of masks that are looked at at a time


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
    inputs = _inputs(source, folder, options)
    _check_no_input(check_output(output, force=force), inputs)
    format_ = format_ or _format_of(source)
    _check_options(format_, options)
    if folder is not None and source != "planetoid":
        raise InputError(f"'{folder}' is one argument too many; a second one is for 'planetoid FOLDER'")
    with waiting("opening"):
        found = OPENERS[format_](folder or Path(source), options)
    key = _key(format_, source, inputs, options)
    if isinstance(found, Graph):
        with waiting("writing"):
            held = _write(found, output, force, options)
    else:
        held = _build(found, output, force, key, options)
    tell_written(output, held)
    if schema.Y in held.datasets and not _trains(output):
        print("there are no training rows; to train on this graph, import it with --split-per-class")


def _check_options(format_: str, options: Options) -> None:
    """Raise InputError for an option that the format does not take, or that does nothing without another one."""
    given = {name for name, value in options.items() if value not in (None, ()) and value is not False}
    for option in options:
        if option in given and option not in FORMATS[format_]:
            takers = [name for name, taken in FORMATS.items() if option in taken]
            listed = " and ".join([", ".join(takers[:-1]), takers[-1]] if takers[1:] else takers)
            raise InputError(f"{_flag(option)} does not go with the format {format_}; it is for {listed}")
    for option, needed in NEEDS.items():
        if option in given and set(needed) <= set(FORMATS[format_]) and not given & set(needed):
            raise InputError(f"{_flag(option)} needs {' or '.join(map(_flag, needed))}")
    if {"first", "map_ids"} <= given:
        raise InputError("--first does not go with --map-ids, which takes any ids; leave one of them out")
    name = options["name"]
    if name is not None and not (name.strip() and name.isprintable()):
        raise InputError(f"--name {name!r} is no name; expected characters that can be printed")


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def default_memory() -> int:
    """Return the memory of a build where none is asked for: half of the machine's."""
    return cores.memory_total() // 2


def _write(graph: Graph, output: Path, force: bool, options: Options) -> schema.Contents:
    """Write a graph that its reader gave whole."""
    if options["name"] is not None:
        graph = replace(graph, name=options["name"])
    write(output, graph, force=force)
    return schema.contents(graph)


def _build(found: Imported, output: Path, force: bool, key: str | None, options: Options) -> schema.Contents:
    """Build a file of a stream of edges, with a bar."""
    memory = options["memory"] or default_memory()
    asked = {"symmetric": options["symmetric"], "simple": options["simple"]}
    with phases(output) as report:
        return build_graph(found, output, memory=memory, force=force, key=key, progress=report, **asked)


def _inputs(source: str, folder: Path | None, options: Options) -> list[Path]:
    """Return the files that an import reads, those in its folders included."""
    of_nodes = [options[name] for name in ("features", "labels") if options[name] is not None]
    named = [folder or Path(source), *of_nodes, *(options["masks"] or ())]
    named += [Path(file) for _, file in _named_files(options)]
    return [each for path in named for each in (sorted(path.rglob("*")) if path.is_dir() else [path])]


def _named_files(options: Options) -> list[tuple[str, str]]:
    """Return name and file of each --edge-data. Raises InputError for a text that is not NAME=FILE.npy."""
    found: list[tuple[str, str]] = []
    for text in options["edge_data"]:
        name, equals, file = text.partition("=")
        if not (name and equals and file.endswith(".npy")) or name in dict(found):
            raise InputError(f"--edge-data {text}: expected NAME=FILE.npy, and each name once")
        found.append((name, file))
    schema.check_edge_names("--edge-data", [name for name, _ in found])
    return found


def _check_no_input(output: Path, inputs: list[Path]) -> None:
    """Raise InputError where an import would replace a file that it reads."""
    for path in inputs:
        if output.exists() and path.exists() and output.samefile(path):
            raise InputError(f"{output.name} is {path}, which the import reads; choose another output path")


def _key(format_: str, source: str, inputs: list[Path], options: Options) -> str | None:
    """Return what the edges of an import depend on: options, and the sizes and times of their files.

    Data of nodes are read once the edges are sorted, and may be mended in between. Returns None where a file is a pipe
    or a device, whose contents are others each time.
    """
    told, of_nodes = [], {options["features"], options["labels"], *(options["masks"] or ())}
    for path in inputs:
        if path in of_nodes:
            continue
        if path.is_file():
            facts = path.stat()
            told.append([str(path.resolve()), facts.st_size, facts.st_mtime_ns])
        elif path.exists() and not path.is_dir():
            return None
    kept = {name: str(value) for name, value in options.items() if name not in (*NODES, "memory")}
    return json.dumps([format_, source, told, kept], sort_keys=True)


def _format_of(source: str) -> str:
    """Return the format of a source by its name."""
    if source in ("digits", "planetoid"):
        return source
    if Path(source).is_dir():
        return "ogb" if (Path(source) / "raw").is_dir() else "planetoid"
    name = source.lower()
    for ending in PACKED:
        name = name.removesuffix(ending)
    for ending, format_ in ENDINGS.items():
        if name.endswith(ending):
            return format_
    from ..data.readers.pickles import refuse_pickle

    refuse_pickle(Path(source))
    raise InputError(
        f"the name of {source} does not tell its format; expected digits, planetoid, a name that ends in "
        f"one of {' '.join(ENDINGS)} (and .gz or .zst), a folder of OGB or Planetoid, or --format"
    )


def _trains(path: Path) -> bool:
    """Return whether a graph file has training rows."""
    with open_graph(path) as opened:
        if not opened.has_masks:
            return False
        rows = range(0, opened.nodes, ROWS)
        return any(opened.read(schema.TRAIN, low, min(low + ROWS, opened.nodes)).any() for low in rows)


def _with_nodes(open_: Callable[[int | None, str], Imported], options: Options) -> Imported:
    """Open edges, and add their data, the features, labels and masks of other files, and the split that is asked for.

    open_: called with the number of nodes, None where no option and no file tells it, and with what a message says
    about where it is from, "" for an option.
    """
    from ..data.readers.arrays.edges import WithData
    from ..data.readers.node_arrays import node_rows
    from ..data.readers.npy import open_array

    kind = options["feature_type"] or "float32"
    nodes, rows, fields = node_rows(
        features=options["features"], labels=options["labels"], masks=options["masks"] or None, dtype=kind
    )
    if nodes is not None and options["nodes"] not in (None, nodes):
        raise InputError(f"--nodes {options['nodes']}, but the features or labels are of {nodes} nodes")
    counted = "" if nodes is None else f"{options['features'] or options['labels']} has {nodes} rows"
    found = open_(options["nodes"] if nodes is None else nodes, counted)
    if data := _named_files(options):
        arrays = {name: open_array(Path(file)) for name, file in data}
        found = replace(found, edges=WithData(found.edges, arrays))
    of_nodes = found.rows
    if rows:
        found = replace(found, rows=lambda: _rows_of(of_nodes) | rows, **fields)
    if options["split_per_class"] or options["split_random"] is not None:
        labelled = found
        found = replace(found, rows=lambda: _rows_of(labelled.rows) | _split(labelled, options))
    return found if options["name"] is None else replace(found, name=options["name"])


def _rows_of(rows: Mapping[str, Rows] | Callable[[], Mapping[str, Rows]]) -> dict[str, Rows]:
    return dict(rows() if callable(rows) else rows)


def _split(found: Imported, options: Options) -> dict[str, Rows]:
    """Return the masks of the split that is asked for."""
    asked, shares = options["split_per_class"], options["split_random"]
    if asked and shares is not None:
        raise InputError("--split-per-class and --split-random are two splits; choose one")
    rows = _rows_of(found.rows)
    if schema.Y not in rows:
        raise InputError(f"--split-{'per-class' if asked else 'random'} needs labels; this graph has none")
    y = np.concatenate(list(rows[schema.Y].pieces()))
    rng = np.random.Generator(np.random.Philox(options["seed"] or 0))
    if shares is None:
        drawn = split_per_class(y, found.classes, rng)
    else:
        drawn = split_random(y, rng, train=shares[0], val=shares[1])
    return {path: _whole(drawn[path.removeprefix("node/")]) for path in schema.MASKS}


def _whole(array: np.ndarray) -> Rows:
    """Return an array in memory as the rows of a dataset."""

    def pieces() -> Iterator[np.ndarray]:
        yield from (array[low : low + ROWS] for low in range(0, len(array), ROWS))

    return Rows(schema.Layout(array.dtype, array.shape), pieces)


def _digits(source: Path, options: Options) -> Source:
    from ..data.readers.digits import read_digits

    return read_digits(seed=options["seed"] or 0)


def _planetoid(source: Path, options: Options) -> Source:
    from ..data.readers import planetoid

    name, folder = options["name"], None if str(source) == "planetoid" else source
    if options["download"]:
        if name is None or folder is not None:
            raise InputError("--download needs --name (cora, citeseer or pubmed) and no folder")
        return planetoid.download_planetoid(name)
    if folder is None:
        raise InputError("planetoid needs the folder with ind.NAME.* files, or --download")
    return planetoid.read_planetoid(folder, name or planetoid.only_name(folder))


def _npz(source: Path, options: Options) -> Source:
    from ..data.readers.npz import open_npz

    archive = open_npz(source, split=options["split"], directed=options["directed"])
    return _with_nodes(lambda *_: archive, options)


def _edges(source: Path, options: Options) -> Source:
    from ..data.readers.edge_list import lists_edges_once, open_edge_list

    first, ids = options["first"] or 0, "names" if options["map_ids"] else "numbers"
    if not options["symmetric"] and lists_edges_once(source):
        print(
            f"note: {source} lists each undirected edge once; --symmetric adds the reverse", file=sys.stderr
        )
    return _with_nodes(
        lambda nodes, counted: open_edge_list(source, nodes=nodes, first=first, ids=ids, counted=counted),
        options,
    )


def _npy(source: Path, options: Options) -> Source:
    from ..data.readers.edge_arrays import open_edge_arrays

    return _with_nodes(lambda nodes, counted: open_edge_arrays(source, nodes=nodes, counted=counted), options)


def _mtx(source: Path, options: Options) -> Source:
    from ..data.readers.matrix_market import open_matrix_market

    return _with_nodes(lambda *_: open_matrix_market(source), options)


def _metis(source: Path, options: Options) -> Source:
    from ..data.readers.metis import open_metis

    return _with_nodes(lambda *_: open_metis(source), options)


def _ogb(source: Path, options: Options) -> Source:
    from ..data.readers.ogb import open_ogb

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = open_ogb(source, dtype=options["feature_type"] or "float32")
    for each in told:
        print(each.message, file=sys.stderr)
    return found


OPENERS: dict[str, Callable[[Path, Options], Source]] = {
    "digits": _digits,
    "planetoid": _planetoid,
    "npz": _npz,
    "edges": _edges,
    "npy": _npy,
    "mtx": _mtx,
    "metis": _metis,
    "ogb": _ogb,
}
