"""Convert graph files to other formats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..data import libraries, schema
from ..data.atomic_write import check_output, replacement
from ..data.export import Progress, in_imported_order, left_out, node_files, write_mtx, write_npz
from ..data.store import GraphFile, open_graph
from ..errors import InputError
from ..sizes import counted
from .importing import default_memory
from .terminal import phases


def process_export(graph: Path, output: Path, *, force: bool, memory: int | None) -> None:
    """Write a graph in the format that the output's ending tells, with the node numbers of the import."""
    write = WRITERS.get(output.suffix.lower())
    if write is None:
        raise InputError(
            f"{output}: its name does not tell a format; expected one that ends in {', '.join(WRITERS)}"
        )
    target = check_output(output, force=force)
    with phases() as report:
        opening = in_imported_order(graph, target.parent, memory=memory or default_memory(), progress=report)
        with opening as opened:
            lines = write(opened, output, force, report)
    with open_graph(graph) as opened:
        if opened.partitions:
            lines.append("left out: the ranges of ranks; mgg partition makes them again")
    for line in lines:
        print(line)


def _npz(opened: GraphFile, output: Path, force: bool, report: Progress) -> list[str]:
    write_npz(opened, output, force=force, progress=report)
    return [_written(opened, output)]


def _mtx(opened: GraphFile, output: Path, force: bool, report: Progress) -> list[str]:
    files = write_mtx(opened, output, force=force, progress=report)
    of_nodes = node_files(opened, output)
    lines = [_written(opened, output), *(f"{path}: data of nodes" for path in files[1:])]
    lines += [f"left out: {what}, for which .mtx has no place; .npz has" for what in left_out(opened)]
    command = f"mgg import {output}"
    command += f" --features {of_nodes[schema.X]}" if schema.X in of_nodes else ""
    command += " --feature-type float16" if opened.x_dtype == schema.FLOAT16 else ""
    command += f" --labels {of_nodes[schema.Y]}" if schema.Y in of_nodes else ""
    if schema.TRAIN in of_nodes:
        command += " --masks " + " ".join(str(of_nodes[path]) for path in schema.MASKS)
    return [*lines, f"to read it again: {command} -o {opened.name or 'graph'}.h5"]


def _pt(opened: GraphFile, output: Path, force: bool, report: Progress) -> list[str]:
    import torch

    data = libraries.to_pyg(opened.path)
    report("writing", 0, 0)
    with replacement(output, force=force, size=0) as temporary:
        torch.save(data, temporary)
    lines = [
        _written(opened, output),
        "it is a pickle: torch.load(..., weights_only=False) of PyG reads it, and runs what is in it",
    ]
    if {schema.NODE_ID, schema.NAME_TEXT} & opened.contents.datasets.keys():
        lines.append("left out: the names of nodes; .npz has them")
    return lines


def _written(opened: GraphFile, output: Path) -> str:
    return f"{output}: {opened.name}, {counted(opened.nodes, 'node')}, {counted(opened.edges, 'edge')}"


WRITERS: dict[str, Callable[[GraphFile, Path, bool, Progress], list[str]]] = {
    ".npz": _npz,
    ".mtx": _mtx,
    ".pt": _pt,
}
