"""Turn graphs in other formats into graph files: which reader takes a source, its options, splits, and the build."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..data import readers, schema
from ..data.assembly import build_graph
from ..data.atomic_write import check_output
from ..data.edge_stream import Imported, Rows, Source
from ..data.graph import Graph, split_per_class, split_random
from ..data.libraries import check_name
from ..data.readers import FORMATS, NODES, TEXT
from ..data.readers.array_edges import NodesOfTable, WithData
from ..data.readers.dialect import Dialect
from ..data.readers.edge_list import warn_of_one_direction
from ..data.readers.node_arrays import is_text, node_rows, of_array
from ..data.readers.npy import open_array, whole
from ..data.readers.pickles import refuse_pickle
from ..data.readers.tables import Head
from ..data.store import open_graph
from ..data.writer import write
from ..errors import InputError, did_you_mean
from ..runtime import cores
from .files import tell_written
from .terminal import phases, waiting

PACKED = (".gz", ".zst")
NEEDS = {  # options that do nothing unless one of others is given, where the format takes those
    "seed": ("split_per_class", "split_random"),
    "feature_type": ("features",),
    "combine": ("symmetric", "simple"),
    **dict.fromkeys(TEXT, ("features", "labels", "masks")),
}
ROWS = 1 << 22  # entries of a mask that are read at a time

Options = Mapping[str, Any]


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

    options: all other options of the command line by name; None, False or () where they are absent.
    """
    inputs = _inputs(source, folder, options)
    check_output(output, force=force, inputs=inputs)
    check_name(output)
    format_ = format_ or _format_of(source)
    _check_options(format_, options)
    if folder is not None and source != "planetoid":
        raise InputError(f"'{folder}' is one argument too many; a second one is for 'planetoid FOLDER'")
    with waiting("opening"):
        found, notes = _opened(format_, folder or Path(source), options)
    if isinstance(found, Graph):
        with waiting("writing"):
            write(output, found, force=force)
        held = schema.contents(found)
    else:
        with phases(output) as report:
            held = build_graph(
                found,
                output,
                memory=options["memory"] or default_memory(),
                symmetric=options["symmetric"],
                simple=options["simple"],
                combine=options["combine"] or "",
                force=force,
                key=_key(format_, source, inputs, options),
                progress=report,
            )
    tell_written(output, held)
    if isinstance(found, Imported) and found.direction and held.directed:
        print(found.direction)
    for note in [] if isinstance(found, Graph) else [*found.notes, *notes]:
        print(note)
    if schema.Y in held.datasets and not _has_training_rows(output):
        print("there are no training nodes; to train on this graph, import it with --split-random 0.6 0.2")


def _check_options(format_: str, options: Options) -> None:
    """Raise InputError for an option that the format does not take, or that does nothing without another one."""
    taken = {name: {*each.reads, *each.takes} for name, each in FORMATS.items()}
    present = {
        name
        for name, value in options.items()
        if value not in (None, ()) and (value is not False or name == "header")
    }
    for option in options:
        if option in present and option not in taken[format_]:
            takers = [name for name, each in taken.items() if option in each]
            listed = " and ".join([", ".join(takers[:-1]), takers[-1]] if takers[1:] else takers)
            raise InputError(f"{_flag(option)} does not go with the format {format_}; it is for {listed}")
    for option, needed in NEEDS.items():
        read = option in FORMATS[format_].reads
        if option in present and set(needed) <= taken[format_] and not (read or present & set(needed)):
            raise InputError(f"{_flag(option)} needs {' or '.join(map(_flag, needed))}")
    if {"first", "map_ids"} <= present:
        raise InputError("--first does not go with --map-ids, which takes any ids; leave one of them out")
    name = options["name"]
    if name is not None and not (name.strip() and name.isprintable()):
        raise InputError(f"--name {name!r} is no name; expected characters that can be printed")


def _flag(option: str) -> str:
    return f"--{option.replace('_', '-')}"


def default_memory() -> int:
    """Return the memory of a build without --memory: half of the machine's."""
    return cores.memory_total() // 2


def _inputs(source: str, folder: Path | None, options: Options) -> list[Path]:
    """Return the files that an import reads, those in its folders included."""
    named = [folder or Path(source), *_node_files(options), *map(Path, _edge_files(options).values())]
    return [each for path in named for each in (sorted(path.rglob("*")) if path.is_dir() else [path])]


def _node_files(options: Options) -> list[Path]:
    files = [options["features"], options["labels"], *(options["masks"] or ())]
    return [file for file in files if file is not None]


def _edge_files(options: Options) -> dict[str, str]:
    """Return the file of each --edge-data by name. Raises InputError for a text that is not NAME=FILE.npy."""
    found: dict[str, str] = {}
    for text in options["edge_data"]:
        name, equals, file = text.partition("=")
        if not (name and equals and file.endswith(".npy")) or name in found:
            raise InputError(f"--edge-data {text}: expected NAME=FILE.npy, and each name once")
        found[name] = file
    schema.check_edge_names("--edge-data", found.keys() - {"weight"})
    return found


def _key(format_: str, source: str, inputs: list[Path], options: Options) -> str | None:
    """Return a text that is the same for imports of the same edges: options, and sizes and times of the files of edges.

    Data of nodes are read once the edges are sorted, and may be mended in between. Returns None where a file is a pipe
    or a device, whose contents are others each time.
    """
    files = states(path for path in inputs if path not in _node_files(options))
    kept = {name: str(value) for name, value in options.items() if name not in (*NODES, "memory")}
    return None if files is None else json.dumps([format_, source, files, kept], sort_keys=True)


def states(paths: Iterable[Path]) -> list[list[str | int]] | None:
    """Return path, size and time of each file among some paths; None if one is a pipe or a device."""
    found: list[list[str | int]] = []
    for path in paths:
        if path.is_file():
            facts = path.stat()
            found.append([str(path.resolve()), facts.st_size, facts.st_mtime_ns])
        elif path.exists() and not path.is_dir():
            return None
    return found


def _format_of(source: str) -> str:
    """Return the format of a source by its name."""
    if source in ("digits", "planetoid"):
        return source
    if Path(source).is_dir():
        return "ogb" if (Path(source) / "raw").is_dir() else "planetoid"
    name = source.lower()
    for ending in PACKED:
        name = name.removesuffix(ending)
    endings = {ending: format_ for format_, each in FORMATS.items() for ending in each.endings}
    for ending, format_ in endings.items():
        if name.endswith(ending):
            return format_
    refuse_pickle(Path(source))
    raise InputError(
        f"the name of {source} does not tell its format; expected digits, planetoid, a name that ends in "
        f"one of {' '.join(endings)} (and .gz or .zst), a folder of OGB or Planetoid, or --format"
        f"{did_you_mean(source, ('digits', 'planetoid'))}"
    )


def _has_training_rows(path: Path) -> bool:
    with open_graph(path) as opened:
        if not opened.has_masks:
            return False
        rows = range(0, opened.nodes, ROWS)
        return any(opened.read(schema.TRAIN, low, min(low + ROWS, opened.nodes)).any() for low in rows)


def _opened(format_: str, source: Path, options: Options) -> tuple[Source, list[str]]:
    """Open a source, with data of edges and nodes from other files, the split and the name that options ask for.

    Returns it, and a list of lines to print on those of nodes once all was read.
    """
    described = FORMATS[format_]
    arguments = {name: options[name] for name in described.reads if name not in TEXT}
    dialect = Dialect.given(*(options[name] for name in TEXT))
    notes: list[str] = []
    doubtful: list[Path] = []
    if TEXT[0] in described.reads:
        arguments |= {"dialect": dialect, "keep_numbers": any(map(is_text, _node_files(options)))}
    heads: dict[Path, Head] = {}
    rows: dict[str, Rows] = {}
    fields: dict[str, Any] = {}
    if "features" in described.takes:
        kind = options["feature_type"] or "float32"
        files = {name: options[name] for name in ("features", "labels", "masks")}
        nodes, rows, fields = node_rows(**files, dtype=kind, dialect=dialect, notes=notes, heads=heads)
        doubtful = sorted(
            (file for file, head in heads.items() if head.may_be_header),
            key=lambda file: not heads[file].numbered,
        )
        hint = f"; --header if the first line of {doubtful[0]} names its columns" if doubtful else ""
        if nodes is not None and options["nodes"] not in (None, nodes):
            raise InputError(
                f"--nodes {options['nodes']}, but the features or labels are of {nodes} nodes{hint}"
            )
        if nodes is not None and "nodes" in arguments:
            counted = f"{options['features'] or options['labels']} has {nodes} rows{hint}"
            arguments |= {"nodes": nodes, "counted": counted}
    if format_ == "edges" and not options["symmetric"]:
        warn_of_one_direction(source)
    module, function = described.reader.split(".")
    reader = importlib.import_module(f"{readers.__name__}.{module}")
    found: Source = getattr(reader, function)(source, **arguments)
    if options["name"] is not None:
        found = replace(found, name=options["name"])
    if isinstance(found, Graph):
        return found, notes
    if doubtful and nodes is not None and options["nodes"] is None and not options["map_ids"]:
        table, numbered = str(doubtful[0]), heads[doubtful[0]].numbered
        found = replace(found, edges=NodesOfTable(found.edges, table, nodes, numbered=numbered))
    if data := _edge_files(options):
        arrays = {name: open_array(Path(file)) for name, file in data.items()}
        found = replace(found, edges=WithData(found.edges, arrays))
    if rows:
        found = replace(found, rows=_together(found.rows, lambda: rows), **fields)
    if options["split_per_class"] or options["split_random"] is not None:
        labelled = found
        found = replace(found, rows=_together(found.rows, lambda: _split(labelled, options)))
    return found, notes


def _together(
    rows: Mapping[str, Rows] | Callable[[], Mapping[str, Rows]], more: Callable[[], Mapping[str, Rows]]
) -> Callable[[], dict[str, Rows]]:
    """Return a function that returns datasets of nodes and more of them once the edges were read."""
    return lambda: {**(rows() if callable(rows) else rows), **more()}


def _split(found: Imported, options: Options) -> dict[str, Rows]:
    """Return the masks of the split that options ask for."""
    per_class, shares = options["split_per_class"], options["split_random"]
    if per_class and shares is not None:
        raise InputError("--split-per-class and --split-random are two splits; choose one")
    rows = found.rows() if callable(found.rows) else found.rows
    if schema.Y not in rows:
        raise InputError(
            f"--split-{'per-class' if per_class else 'random'} needs labels; this graph has none"
        )
    y = whole(rows[schema.Y])
    rng = np.random.Generator(np.random.Philox(options["seed"] or 0))
    if shares is None:
        drawn = split_per_class(y, found.classes, rng)
    else:
        drawn = split_random(y, rng, train=shares[0], val=shares[1])
    return {path: of_array(drawn[path.removeprefix("node/")]) for path in schema.MASKS}
