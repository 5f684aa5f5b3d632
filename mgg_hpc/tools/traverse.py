"""`mgg traverse`: run traversals of a graph file, print what they took, and write what they found."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..data.atomic_write import check_output
from ..data.export import row_files
from ..errors import InputError
from ..runtime import backends, exit_code, mpi
from ..traversal import part as parts
from ..traversal import runs
from ..traversal.part import Part
from ..traversal.runs import Run

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
    nodes: tuple[int, ...] = (),
    sources: int | None = None,
    seed: int = 0,
    repeats: int = 1,
    **options: Any,
) -> int:
    """Traverse a graph, print each run, and write the results, in the user's numbering; return the exit code.

    kind: of `runs.KINDS`. edges: where those of a GPU lie. nodes, sources: where to begin, or how many such nodes to
    draw by ``seed``. options: further arguments of the kind's function. Raises InputError for options that do not fit
    together, a node that the graph has not, and where loading or the traversal does.
    """
    comm = mpi.world()
    with mpi.agree(comm):
        if edges != "device" and not backends.needs_gpus(backend):
            raise InputError(f"--edges {edges} is for --backend cuda; CPUs have one memory")
        if nodes and sources:
            raise InputError("--source names nodes, and --sources has them drawn; give one of them")
        if comm.rank == 0 and output is not None:
            for path in row_files.paths(output, list(ARRAYS[kind])).values():
                check_output(path, force=force)
    threads = mpi.threads(comm)
    choose = backends.choose if backends.needs_gpus(backend) else backends.choose_cpu
    made = backends.make(choose(backend, comm), comm, threads=threads)
    with backends.closed_on_error(made.memory.close):
        part = parts.load(graph, comm, made, weights=kind == "sssp", edges=edges)
        found = _runs(kind, part, nodes, sources, seed, repeats, check, options)
        done = []
        for run in found:
            if comm.rank == 0 and not as_json:
                print(_line(part, run), flush=True)
            done.append(run if output is not None else replace(run, arrays={}))
        if output is not None:
            _write(part, kind, output, done)
    if comm.rank == 0 and as_json:
        print(json.dumps(_document(part, kind, check, done, threads), indent=1))
    comm.Barrier()
    made.memory.close()
    exit_code.record(0)
    return 0


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
    for node in nodes:
        if node >= part.nodes:
            raise InputError(f"--source {node}: {part.name} has nodes 0 to {part.nodes - 1}")
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
    chosen = done if kind in ("bfs", "sssp") else done[-1:]
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
    if kind in ("bfs", "sssp"):
        attributes["source"] = np.array([run.source for run in chosen], np.int64)
    row_files.write(part.comm, output, part.ids, arrays, part.bounds, attributes)
    if part.comm.rank == 0:
        for name, path in row_files.paths(output, list(arrays)).items():
            print(f"{path}: {name} {[part.nodes, *arrays[name].shape[1:]]}")
