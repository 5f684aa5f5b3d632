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

FROM_SOURCES = ("bfs", "sssp")
ITEM_BYTES = {"parent": 8, "depth": 4, "distance": 4, "component": 8, "rank": 8}  # at most
CPU = {"cpu": "auto"}  # names of run.backend
ARRAYS = {
    "bfs": ("parent", "depth"),
    "sssp": ("distance",),
    "cc": ("component",),
    "pagerank": ("rank",),
}


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
    **options: Any,
) -> int:
    """Traverse a graph, print each run, and write the results, in the user's numbering; return the exit code.

    kind: bfs, sssp, cc or pagerank. edges: where those of a GPU lie. share_gpu: whether ranks may share one. nodes,
    sources: where to begin, or how many such nodes to draw by ``seed``. options: further arguments of the kind's
    function. Raises InputError for options that do not fit together, for a node that is none of the graph's, and where
    loading or the traversal does.
    """
    comm = mpi.world()
    with mpi.agree(comm):
        _check(kind, graph, nodes, sources, backend, share_gpu, options)
        if comm.rank == 0 and output is not None:
            for path in row_files.paths(output, list(ARRAYS[kind])).values():
                check_output(path, force=force)
    threads = mpi.threads(comm)
    made = backends.make(_chosen(backend, comm, share_gpu), comm, threads=threads)
    with backends.closed_on_error(made.memory.close):
        part = parts.load(graph, comm, made, weights=kind == "sssp", edges=edges)
        if output is not None:
            _check_room(part, kind, len(nodes) or sources or 1)
        done: list[Run] = []
        for run in _runs(kind, part, nodes, sources, seed, repeats, check, options):
            if comm.rank == 0 and not as_json:
                print(_line(part, run), flush=True)
            if kind not in FROM_SOURCES:
                done = [replace(each, arrays={}) for each in done]  # the last one is written
            done.append(run if output is not None else replace(run, arrays={}))
    if output is not None:
        _write(part, kind, output, done)
    if comm.rank == 0:
        files = {} if output is None else row_files.paths(output, list(ARRAYS[kind]))
        if as_json:
            document = _document(part, kind, check, done, threads)
            print(
                json.dumps(document | {"files": {name: str(path) for name, path in files.items()}}, indent=1)
            )
        else:
            for name, path in files.items():
                print(f"{path}: {name} {[part.nodes, *done[-1].arrays[name].shape[1:], *_columns(done)]}")
    comm.Barrier()
    made.memory.close()
    exit_code.record(0)
    return 0


def _chosen(backend: str, comm: Any, share_gpu: bool) -> backends.Chosen:
    """Return which backend this is."""
    if backends.needs_gpus(backend):
        return backends.choose(backend, comm, share_gpu=share_gpu)
    return backends.choose_cpu(CPU.get(backend, backend), comm)


def _check(
    kind: str,
    graph: Path,
    nodes: tuple[int, ...],
    sources: int | None,
    backend: str,
    share_gpu: bool,
    options: dict[str, Any],
) -> None:
    """Raise InputError for options that do not fit together or the graph, before it is read."""
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


def _check_room(part: Part, kind: str, sources: int) -> None:
    """Raise InputError, the same on all ranks, for results of so many sources that do not fit into memory."""
    bytes_of_row = sum(ITEM_BYTES[name] for name in ARRAYS[kind])
    needed = 2 * part.graph.rows * bytes_of_row * (sources if kind in FROM_SOURCES else 1)
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
    words = [f"source {run.source}:"] if run.source >= 0 else []
    words.append(f"{run.seconds * 1e3:.3f} ms, {run.edges / run.seconds / 1e6:,.1f} million edges/s")
    if run.source >= 0:
        words.append(f"{run.reached:,} of {part.nodes:,} nodes reached")
    words.append(f"{run.steps} steps")
    if part.comm.size > 1:
        words.append(f"{run.moved / 2**20:.2f} MiB crossed")
    return words[0] + " " + ", ".join(words[1:]) if run.source >= 0 else ", ".join(words)


def _document(part: Part, kind: str, check: bool, done: list[Run], threads: int) -> dict[str, Any]:
    """Return what --json prints."""
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
        "ranks": part.comm.size,
        "threads": threads,
        "checked": check,
        "runs": listed,
    }


def _write(part: Part, kind: str, output: Path, done: list[Run]) -> None:
    """Write the arrays of a run, or of several from a source each, with a column for each. Collective."""
    chosen = done if kind in FROM_SOURCES else done[-1:]
    arrays: dict[str, NDArray[Any]] = {}
    for name in ARRAYS[kind]:
        columns = [run.arrays[name] for run in chosen]
        arrays[name] = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
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


def _columns(done: list[Run]) -> list[int]:
    """Return the further dimension of arrays that have a column for each source."""
    return [len(done)] if done[-1].source >= 0 and len(done) > 1 else []
