"""Graph files as Matrix Market files, with the data of nodes in files of their own beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from .. import schema
from ..atomic_write import check_output, replacement
from ..readers.graph_file import NumberedEdges
from ..store import GraphFile
from ..streams import EdgeBlock
from .imported import Progress
from .npz import rows, write_array, write_sparse_features

LINES = 1 << 18  # of text that are made at a time
BESIDE = {schema.X: "x", schema.Y: "y", **{path: path.removeprefix("node/") for path in schema.MASKS}}


def files_beside(opened: GraphFile, output: Path) -> dict[str, Path]:
    """Return the files that `write_mtx` writes for data of nodes, by path of the dataset: OUT.x.npy and so on."""
    found = {
        path: output.with_suffix(f".{name}.npy")
        for path, name in BESIDE.items()
        if path in opened.contents.datasets
    }
    if opened.sparse:
        found[schema.X] = output.with_suffix(".x.npz")
    return found


def left_out(opened: GraphFile) -> list[str]:
    """Return what a graph file has that `write_mtx` leaves out, in words."""
    found = [f"the data of edges {name}" for name in opened.edge_data]
    if {schema.NODE_ID, schema.NAME_TEXT} & opened.contents.datasets.keys():
        found.append("the names of nodes")
    return found


def write_mtx(
    opened: GraphFile, output: Path, *, force: bool = False, progress: Progress | None = None
) -> list[Path]:
    """Write the edges as entries of a general matrix, and features, labels and masks beside; return all files.

    Row i lists the sources of i's in-edges. Weights have as few digits as give the same float32 again. Raises
    InputError where `replacement` does, and for a block of the file whose digest differs.
    """
    beside = files_beside(opened, output)
    for target in (output, *beside.values()):
        check_output(target, force=force)
    kind = "real" if opened.weighted else "pattern"
    with replacement(output, force=force, size=0) as temporary, temporary.open("w") as file:
        file.write(f"%%MatrixMarket matrix coordinate {kind} general\n")
        file.write(f"{opened.nodes} {opened.nodes} {opened.edges}\n")
        for block in NumberedEdges(opened, None).blocks(
            progress=(lambda done: progress("writing", done, opened.edges)) if progress else None
        ):
            file.writelines(_lines(block))
    for path, target in beside.items():
        if target.suffix == ".npz":
            write_sparse_features(opened, target, force=force)
            continue
        dataset = rows(opened, path)
        made = replacement(target, force=force, size=dataset.layout.nbytes)
        with made as temporary, temporary.open("wb") as array:
            write_array(array, dataset.layout, dataset.pieces())
    return [output, *beside.values()]


def _lines(block: EdgeBlock) -> Iterator[str]:
    """Yield the entries of a block as text."""
    for low in range(0, len(block), LINES):
        part = slice(low, low + LINES)
        columns = [(ends[part].astype(np.int64) + 1).tolist() for ends in (block.destinations, block.sources)]
        if block.weight is None:
            yield "".join(f"{row} {column}\n" for row, column in zip(*columns, strict=True))
        else:
            values = block.weight[part].astype(np.str_).tolist()
            yield "".join(f"{r} {c} {value}\n" for r, c, value in zip(*columns, values, strict=True))
