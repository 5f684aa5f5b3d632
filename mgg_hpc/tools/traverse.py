"""`mgg traverse`: run traversals of a graph file, print what they took, and write what they found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data import row_files
from ..data.atomic_write import check_output
from ..data.store import open_graph
from ..errors import InputError
from ..runtime import backends, cores, exit_code, mpi
from ..traversal import part as parts
from ..traversal import runs
from ..traversal.part import Part
from ..traversal.runs import Run

ARRAYS = {"bfs": ("parent", "depth"), "sssp": ("distance",), "cc": ("component",), "pagerank": ("rank",)}
FROM_SOURCES = ("bfs", "sssp")
ITEM_BYTES = {"parent": 8, "depth": 4, "distance": 4, "component": 8, "rank": 8}  # at most


def process_traverse(
    kind: str,
    graph: Path,
    *,
    output: Path | None,
    force: bool,
    as_json: bool,
    check: bool,
    backend: str,
    edges: str = "device",
    share_gpu: bool = False,
    nodes: tuple[int, ...] = (),
    sources: int | None = None,
    seed: int = 0,
    repeats: int = 1,
    unweighted: bool = False,
    **options: Any,
) -> int:
    """Traverse a graph, print each run, and write the results in the user's numbering; return the exit code.

    Args:
        kind: bfs, sssp, cc or pagerank.
        edges: where the edges of a GPU are stored, "device" or "host".
        share_gpu: whether several ranks may drive one GPU.
        nodes: nodes to begin at.
        sources: number of nodes to draw, by ``seed``, if none are named.
        repeats: number of runs of a traversal without a source.
        unweighted: leave the weights of the file out.
        options: further arguments of the traversal's function in `traversal.runs`.

    Raises InputError for options that do not fit together and for a node that the graph does not have.
    """
    comm = mpi.world()
    paths = {} if output is None else row_files.paths(output, list(ARRAYS[kind]))
    with mpi.agree(comm):
        weighted = _check(kind, graph, nodes, sources, backend, share_gpu, options)
        for path in paths.values() if comm.rank == 0 else ():
            check_output(path, force=force)
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
            _check_room(part, kind, len(nodes) or sources or 1)
        done: list[Run] = []
        for run in _runs(kind, part, nodes, sources, seed, repeats, check, options):
            if comm.rank == 0 and not as_json:
                print(_line(part, run), flush=True)
            if kind not in FROM_SOURCES:
                done = [replace(each, arrays={}) for each in done]  # only the last run is written
            done.append(run if output is not None else replace(run, arrays={}))
    arrays = {} if output is None else _columns(kind, done)
    if output is not None:
        _write(part, kind, output, arrays, done)
    if comm.rank == 0 and as_json:
        of_weights = part.weight is not None and not options.get("random_lengths")
        document = _document(part, kind, check, done, threads, of_weights)
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
    nodes: tuple[int, ...],
    sources: int | None,
    backend: str,
    share_gpu: bool,
    options: dict[str, Any],
) -> bool:
    """Return whether the graph has weights.

    Raises InputError for options that do not fit together or the graph, before its edges are read.
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
        for node in nodes:
            if node >= file.nodes:
                raise InputError(f"--source {node}: {graph} has nodes 0 to {file.nodes - 1}")
        if kind == "cc":
            runs.check_undirected(file.name, directed=file.directed)
        return file.weighted


def _check_room(part: Part, kind: str, sources: int) -> None:
    """Raise InputError, the same on all ranks, if the results of so many sources do not fit into memory."""
    row_bytes = sum(ITEM_BYTES[name] for name in ARRAYS[kind])
    needed = 2 * part.graph.rows * row_bytes * (sources if kind in FROM_SOURCES else 1)
    with mpi.agree(part.comm):
        if needed > (free := cores.memory_available()):
            raise InputError(
                f"results of {sources} sources take {needed / 2**30:.1f} GiB on a rank, and {free / 2**30:.1f} GiB "
                "are free; write those of fewer sources at a time"
            )


def _runs(
    kind: str,
    part: Part,
    nodes: tuple[int, ...],
    sources: int | None,
    seed: int,
    repeats: int,
    check: bool,
    options: dict[str, Any],
) -> Iterator[Run]:
    if kind == "cc":
        return runs.components(part, repeats=repeats, check=check)
    if kind == "pagerank":
        return runs.pagerank(part, repeats=repeats, check=check, **options)
    begin = list(dict.fromkeys(nodes)) or runs.draw_sources(part, sources or 1, seed)
    if kind == "bfs":
        return runs.bfs(part, begin, check=check)
    return runs.sssp(part, begin, seed=seed, check=check, **options)


def _line(part: Part, run: Run) -> str:
    """Return the line that is printed about a run."""
    words = [f"{run.seconds * 1e3:.3f} ms", f"{run.edges / run.seconds / 1e6:,.1f} million edges/s"]
    words += [f"{run.reached:,} of {part.nodes:,} nodes reached"] if run.source >= 0 else []
    words += [f"{run.steps} steps"]
    words += [f"{run.moved / 2**20:.2f} MiB crossed"] if part.comm.size > 1 else []
    source = f"source {run.source}: " if run.source >= 0 else ""
    return source + ", ".join(words)


def _document(
    part: Part, kind: str, check: bool, done: list[Run], threads: int, weighted: bool
) -> dict[str, Any]:
    """Return the document that --json prints. weighted: whether the file's weights were used."""
    listed = [
        {
            "source": run.source if run.source >= 0 else None,
            "seconds": run.seconds,
            "edges": run.edges,
            "reached": run.reached,
            "steps": run.steps,
            "bytes": run.moved,
        }
        for run in done
    ]
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
    """Return the arrays of the last run, or of several runs from a source each, with a column for each."""
    chosen = done if kind in FROM_SOURCES else done[-1:]
    if len(chosen) == 1:
        return chosen[0].arrays
    return {name: np.stack([run.arrays[name] for run in chosen], axis=1) for name in ARRAYS[kind]}


def _write(part: Part, kind: str, output: Path, arrays: dict[str, NDArray[Any]], done: list[Run]) -> None:
    """Write arrays, with the sources and the seconds of their runs. Collective."""
    chosen = done if kind in FROM_SOURCES else done[-1:]
    attributes: dict[str, Any] = {
        "format": "mgg-traversal",
        "version": 1,
        "traversal": kind,
        "graph": part.name,
        "graph_uuid": part.uuid,
        "seconds": np.array([run.seconds for run in chosen]),
    }
    if kind in FROM_SOURCES:
        attributes["source"] = np.array([run.source for run in chosen], np.int64)
    row_files.write(part.comm, output, part.ids, arrays, part.bounds, attributes)
