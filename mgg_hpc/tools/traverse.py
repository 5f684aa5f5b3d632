"""`mgg traverse`: run traversals of a graph file, print their results and times, and write the results."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import row_files, schema
from ..data.atomic_write import check_output
from ..data.store import GraphFile, open_graph
from ..errors import InputError
from ..runtime import backends, cores, exit_code, mpi, node_names
from ..sizes import counted
from ..traversal import part as parts
from ..traversal import runs
from ..traversal.part import Part
from ..traversal.runs import Run

ARRAYS = {"bfs": ("parent", "depth"), "sssp": ("distance",), "cc": ("component",), "pagerank": ("rank",)}
FROM_SOURCES = ("bfs", "sssp")
FIRST = 5  # how many nodes of the highest PageRank are printed
BLOCK = 1 << 22  # entries of the permutation that are read at a time
OF_NODES = ("parent", "component")  # arrays whose values are numbers of nodes
ITEM_BYTES = {"parent": 8, "depth": 4, "distance": 4, "component": 8, "rank": 8}  # at most


def process_traverse(
    kind: str,
    graph: Path,
    *,
    output: Path | None,
    force: bool,
    as_json: bool,
    verbose: bool,
    check: bool,
    backend: str,
    edges: str = "device",
    share_gpu: bool = False,
    nodes: tuple[str, ...] = (),
    sources: int | None = None,
    seed: int = 0,
    repeats: int = 1,
    unweighted: bool = False,
    **options: Any,
) -> int:
    """Traverse a graph, print the results and write them, in the user's order of nodes; return the exit code.

    Args:
        kind: bfs, sssp, cc or pagerank.
        verbose: print also the speed and the steps of each run.
        edges: where the edges of a GPU are stored, "device" or "host".
        share_gpu: whether several ranks may drive one GPU.
        output: file for the results, or None.
        force: overwrite an existing output.
        as_json: print JSON instead of text.
        check: check each result with an independent method.
        backend: as run.backend, or "cpu" for the CPU backend that fits the ranks.
        nodes: nodes to begin at, by name or id if the graph file has these, else by number.
        sources: number of nodes to begin at, drawn by ``seed``, if ``nodes`` is empty. [default: 1]
        repeats: number of runs of a traversal that has no source (cc, pagerank).
        unweighted: ignore the weights of the file.
        options: further arguments of the traversal's function in `traversal.runs`.

    Raises InputError for options that do not fit together and for a node that the graph does not have.
    """
    comm = mpi.world()
    with mpi.agree(comm):
        weighted, begin, named = _check(kind, graph, nodes, sources, backend, share_gpu, options)
        written = [*ARRAYS[kind], *filter(None, [named])]
        paths = {} if output is None else row_files.paths(output, written)
        for path in paths.values() if comm.rank == 0 else ():
            check_output(path, force=force, inputs=[graph])
    threads = mpi.threads(comm)
    if backends.needs_gpus(backend):
        chosen = backends.choose(backend, comm, share_gpu=share_gpu)
    else:
        chosen = backends.choose_cpu("auto" if backend == "cpu" else backend, comm)
    made = backends.make(chosen, comm, threads=threads)
    with backends.closed_on_error(made.memory.close):
        by_weight = kind == "pagerank" and weighted and not unweighted
        part = parts.load(graph, comm, made, weights=kind == "sssp" or by_weight, edges=edges)
        if comm.rank == 0 and kind == "sssp" and not (weighted or options["random_lengths"] or as_json):
            print(f"{part.name} has no weights: each edge has a length of 1 (--random-lengths draws lengths)")
        if output is not None:
            of_nodes = node_names.read(comm, graph, *part.bounds[comm.rank : comm.rank + 2].tolist())
            _check_room(part, kind, len(begin) or sources or 1)
        begin = begin or (runs.draw_sources(part, sources or 1, seed) if kind in FROM_SOURCES else [])
        names = _names(comm, graph, begin)
        done: list[Run] = []
        answers: list[dict[str, Any]] = []
        for number, run in enumerate(_runs(kind, part, begin, seed, repeats, check, options), 1):
            if kind not in FROM_SOURCES:
                done = [replace(each, arrays={}) for each in done]  # only the last run is written
            # Without a source all runs find the same.
            asked = kind in FROM_SOURCES or number == repeats
            answers.append(answer(kind, part, run) if asked else {})
            names |= _names(comm, graph, [each["node"] for each in answers[-1].get("first", [])])
            done.append(run if output is not None else replace(run, arrays={}))
            if comm.rank == 0 and asked and not as_json:
                costs = [_cost(part, each, verbose) for each in done[-1 if kind in FROM_SOURCES else 0 :]]
                print("\n".join(_lines(kind, part, run, answers[-1], costs, names)), flush=True)
    if output is not None:
        arrays = _columns(kind, done) | {name: each[part.order] for name, each in of_nodes.items()}
        _write(part, kind, output, arrays, done, names)
    if comm.rank == 0 and as_json:
        of_weights = part.weight is not None and not options.get("random_lengths")
        document = _document(part, kind, check, done, answers, threads, of_weights, names)
        print(json.dumps(document | {"files": {name: str(path) for name, path in paths.items()}}, indent=1))
    elif comm.rank == 0:
        for name, path in paths.items():
            print(f"{path}: {name} {[part.nodes, *arrays[name].shape[1:]]}")
    comm.Barrier()
    made.memory.close()
    exit_code.record(0)
    return 0


def _check(
    kind: str,
    graph: Path,
    nodes: tuple[str, ...],
    sources: int | None,
    backend: str,
    share_gpu: bool,
    options: dict[str, Any],
) -> tuple[bool, list[int], str]:
    """Check the options against each other and the graph before its edges are read. Raises InputError.

    Returns whether the graph has weights, the numbers of the nodes to begin at, and the kind of its nodes'
    names (`row_files.kind_of_names`).
    """
    gpu = backends.needs_gpus(backend)
    if share_gpu and not gpu:
        raise InputError("--share-gpu is for --backend cuda")
    if gpu and options.get("width"):
        raise InputError("--width is for CPUs; GPUs have no buckets")
    if gpu and options.get("dtype") == "float64":
        raise InputError("--dtype float64 is for CPUs; GPUs have float32")
    if nodes and sources:
        raise InputError("--source names nodes, and --sources has them drawn; give one of them")
    if kind == "pagerank":
        runs.check_tolerance(options["tolerance"], options["dtype"])
    with open_graph(graph) as file:
        if kind == "cc":
            runs.check_undirected(file.name, directed=file.directed)
        return file.weighted, _numbers(file, nodes), row_files.kind_of_names(file.contents)


def _numbers(opened: GraphFile, words: tuple[str, ...]) -> list[int]:
    """Return the numbers of the nodes with these names, ids or numbers, without duplicates.

    words: as given by --source. Raises InputError for a node that the graph does not have.
    """
    kind = row_files.kind_of_names(opened.contents)
    wanted: dict[str, Any] = {word: os.fsencode(word) if kind == "name" else _integer(word) for word in words}
    found: dict[Any, int] = {}
    if not kind:
        found = {number: number for number in wanted.values() if number is not None and number < opened.nodes}
    elif words:
        found = row_files.rows_of_names(opened, [each for each in wanted.values() if each is not None])
        if schema.PERMUTATION in opened.contents.datasets:
            found = {
                name: int(opened.read(schema.PERMUTATION, row, row + 1)[0]) for name, row in found.items()
            }
    for word, name in wanted.items():
        if name not in found:
            known = f"nodes 0 to {opened.nodes - 1}" if not kind else f"no node with this {kind}"
            raise InputError(f"--source {word}: {opened.where} has {known}")
    return list(dict.fromkeys(found[name] for name in wanted.values()))


def _integer(word: str) -> int | None:
    """Return the value of a word of decimal digits, or None for any other word."""
    return int(word) if word.isascii() and word.isdecimal() and len(word) < 20 else None


def _check_room(part: Part, kind: str, sources: int) -> None:
    """Raise InputError, the same on all ranks, if results of ``sources`` runs do not fit into memory.

    Collective.
    """
    row_bytes = sum(ITEM_BYTES[name] for name in ARRAYS[kind])
    needed = 2 * part.graph.rows * row_bytes * (sources if kind in FROM_SOURCES else 1)
    with mpi.agree(part.comm):
        if needed > (free := cores.memory_available()):
            raise InputError(
                f"results of {counted(sources, 'source')} take {needed / 2**30:.1f} GiB on a rank, and "
                f"{free / 2**30:.1f} GiB are free; write those of fewer sources at a time"
            )


def _runs(
    kind: str,
    part: Part,
    begin: list[int],
    seed: int,
    repeats: int,
    check: bool,
    options: dict[str, Any],
) -> Iterator[Run]:
    if kind == "cc":
        return runs.components(part, repeats=repeats, check=check)
    if kind == "pagerank":
        return runs.pagerank(part, repeats=repeats, check=check, **options)
    if kind == "bfs":
        return runs.bfs(part, begin, check=check)
    return runs.sssp(part, begin, seed=seed, check=check, **options)


def answer(kind: str, part: Part, run: Run) -> dict[str, Any]:
    """Return a summary of a run's result, the same on all ranks, for printing. Collective.

    It has the keys "deepest" (bfs: largest depth), "farthest" (sssp: largest finite distance), "components" and
    "largest" (cc: number of components, and of the nodes of the largest), or "first" (pagerank: node and rank
    of the FIRST nodes of the highest rank).
    """
    comm, arrays = part.comm, run.arrays
    if kind == "bfs":
        return {"deepest": max(comm.allgather(int(arrays["depth"].max(initial=0))))}
    if kind == "sssp":
        distance = arrays["distance"]
        return {"farthest": max(comm.allgather(float(distance[np.isfinite(distance)].max(initial=0))))}
    if kind == "cc":
        joined = part.graph.out_degree > 0  # each other node is a component
        names, sizes = np.unique(arrays["component"][joined], return_counts=True)
        every = comm.allgather((names, sizes, int(np.count_nonzero(~joined))))
        alone = sum(each[2] for each in every)
        names, place = np.unique(np.concatenate([each[0] for each in every]), return_inverse=True)
        total = np.zeros(len(names), np.int64)
        np.add.at(total, place, np.concatenate([each[1] for each in every]))
        return {"components": len(names) + alone, "largest": int(total.max(initial=min(1, alone)))}
    rank = arrays["rank"]
    least = np.partition(rank, -FIRST)[-FIRST] if len(rank) > FIRST else -np.inf
    order = np.flatnonzero(rank >= least)
    order = order[np.lexsort((part.ids[order], -rank[order]))][:FIRST]
    every = comm.allgather(list(zip(part.ids[order].tolist(), arrays["rank"][order].tolist(), strict=True)))
    first = sorted((each for found in every for each in found), key=lambda each: (-each[1], each[0]))[:FIRST]
    return {"first": [{"node": node, "rank": rank} for node, rank in first]}


def _lines(
    kind: str, part: Part, run: Run, found: dict[str, Any], costs: list[str], names: dict[int, str]
) -> Iterator[str]:
    """Yield the lines to print about one run from a source, or about all runs of a traversal without a source.

    run: the run, or the last one. found: its `answer`. costs: text of `_cost` for each run. names: names of
    nodes by number (`_names`).
    """
    nodes = counted(part.nodes, "node")
    if kind in FROM_SOURCES:
        reached = f"source {names.get(run.source, run.source)}: {run.reached:,} of {nodes} reached"
        last = (
            f"deepest level {found['deepest']:,}"
            if kind == "bfs"
            else f"farthest distance {found['farthest']:g}"
        )
        yield f"{reached}, {last} ({costs[0]})"
        return
    if kind == "cc":
        yield f"{counted(found['components'], 'component')}; the largest has {found['largest']:,} of {nodes}"
    else:
        yield f"the first of {nodes} by rank:"
        for each in found["first"]:
            yield f"  {names.get(each['node'], str(each['node'])):<12} {each['rank']:.6g}"
    yield from (f"in {cost}" for cost in costs)


def _names(comm: Any, graph: Path, nodes: list[int]) -> dict[int, str]:
    """Return the names or ids of nodes by number, on rank 0; {} elsewhere, and if the graph has none.

    Collective.
    """
    if not nodes:
        return {}
    with mpi.agree(comm), open_graph(graph) as opened:
        if comm.rank or not row_files.kind_of_names(opened.contents):
            return {}
        rows = {node: node for node in nodes}
        if schema.PERMUTATION in opened.contents.datasets:
            for low in range(0, opened.nodes, BLOCK):
                ids = opened.read(schema.PERMUTATION, low, min(low + BLOCK, opened.nodes))
                rows |= {int(ids[at]): low + int(at) for at in np.flatnonzero(np.isin(ids, nodes))}
        return {node: _word(row_files.read_names(opened, row, row + 1)) for node, row in rows.items()}


def _word(names: NDArray[Any] | None) -> str:
    """Return the name or id in an array of length 1 as text."""
    assert names is not None
    return names[0].decode("utf-8") if names.dtype.kind == "S" else str(names[0])


def _cost(part: Part, run: Run, verbose: bool) -> str:
    """Return a run's time as text; with ``verbose`` also its speed, steps, and bytes sent between ranks."""
    words = [f"{run.seconds * 1e3:.3f} ms"]
    if verbose:
        words += [f"{run.edges / run.seconds / 1e6:,.1f} million edges/s", counted(run.steps, "step")]
        words += [f"{run.moved / 2**20:.2f} MiB crossed"] if part.comm.size > 1 else []
    return ", ".join(words)


def _document(
    part: Part,
    kind: str,
    check: bool,
    done: list[Run],
    answers: list[dict[str, Any]],
    threads: int,
    weighted: bool,
    names: dict[int, str],
) -> dict[str, Any]:
    """Return the document that --json prints.

    answers: `answer` of each run. weighted: True if the file's weights were used. names: names of nodes
    (`_names`).
    """

    def named(key: str, node: int) -> dict[str, str]:
        return {key: names[node]} if node in names else {}

    listed = [
        {
            "source": run.source if run.source >= 0 else None,
            **named("source_name", run.source),
            "seconds": run.seconds,
            "edges": run.edges,
            "reached": run.reached,
            "steps": run.steps,
            "bytes": run.moved,
            **found,
        }
        for run, found in zip(done, answers, strict=True)
    ]
    for first in (each for found in answers for each in found.get("first", [])):
        first.update(named("name", first["node"]))
    return {
        "format": "mgg-traversal",
        "version": 1,
        "traversal": kind,
        "graph": part.name,
        "nodes": part.nodes,
        "edges": part.edges,
        "directed": part.directed,
        "weighted": weighted,
        "ranks": part.comm.size,
        "threads": threads,
        "checked": check,
        "runs": listed,
    }


def _columns(kind: str, done: list[Run]) -> dict[str, NDArray[Any]]:
    """Return the arrays to write, by name: [n], or [n, k] for k runs from different sources.

    done: the runs. Without a source all give the same result, and the last one's is returned.
    """
    chosen = done if kind in FROM_SOURCES else done[-1:]
    if len(chosen) == 1:
        return chosen[0].arrays
    return {name: np.stack([run.arrays[name] for run in chosen], axis=1) for name in ARRAYS[kind]}


def _write(
    part: Part,
    kind: str,
    output: Path,
    arrays: dict[str, NDArray[Any]],
    done: list[Run],
    names: dict[int, str],
) -> None:
    """Write the arrays of `_columns` to a file, with the sources and seconds of the runs as attributes.

    Collective. names: names of nodes (`_names`), for the columns of tables.
    """
    chosen = done if kind in FROM_SOURCES else done[-1:]
    attributes: dict[str, Any] = {
        "format": "mgg-traversal",
        "version": 1,
        "traversal": kind,
        "graph": part.name,
        "graph_uuid": part.uuid,
        "seconds": np.array([run.seconds for run in chosen]),
    }
    labels: list[object] | None = None
    if kind in FROM_SOURCES:
        attributes["source"] = np.array([run.source for run in chosen], np.int64)
        labels = [names.get(run.source, run.source) for run in chosen]
    row_files.write(
        part.comm, output, part.ids, arrays, part.bounds, attributes, of_nodes=OF_NODES, labels=labels
    )
