"""Write graph files as .npz or Matrix Market files, in bounded memory and in the numbering of their import."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import checks, schema
from .assembly import build_graph
from .atomic_write import check_output, replacement
from .edge_stream import EdgeBlock, Rows
from .graph import SPLITS, Graph
from .readers.graph_file import NumberedEdges, renumbered
from .readers.limits import check_memory
from .readers.npz import CLASSES, DIRECTED, NAME
from .store import GraphFile, open_graph

PIECE = 8 << 20  # bytes that are read at a time
LINES = 1 << 18  # lines of text that are made at a time
MEMBER_BYTES = 1 << 12  # more than the headers of a member of an archive take

# Names of datasets in .npz files; all others have their paths as names.
MEMBERS = {
    schema.INDPTR: "indptr",
    schema.INDICES: "indices",
    schema.WEIGHT: "weight",
    schema.X: "x",
    schema.X_INDPTR: "x_indptr",
    schema.X_INDICES: "x_indices",
    schema.X_DATA: "x_data",
    schema.Y: "y",
    **{path: f"{name}_mask" for name, path in zip(SPLITS, schema.MASKS, strict=True)},
}

Progress = Callable[[str, int, int], None]  # (phase, done, total)


@contextmanager
def in_imported_order(
    path: str | os.PathLike[str],
    folder: Path | None = None,
    *,
    memory: int,
    progress: Progress | None = None,
) -> Iterator[GraphFile]:
    """Open a graph file such that row i is node i as it was imported.

    A renumbered file is first copied to a temporary folder within ``folder`` [default: the system's], in ``memory``
    bytes. Raises InputError as `open_graph` and `build_graph` do.
    """
    with open_graph(path) as opened:
        if schema.PERMUTATION not in opened.contents.datasets:
            yield opened
            return
        ids = np.concatenate(list(_pieces(opened, schema.PERMUTATION)))
        checks.original_ids(opened.where, ids, 0, opened.nodes)
        order = np.empty_like(ids)
        order[ids] = np.arange(len(ids))
        with tempfile.TemporaryDirectory(prefix=".mgg_export_", dir=folder) as held:
            target, window = Path(held) / "imported.h5", memory // 8
            build_graph(
                renumbered(opened, order, None, memory=window),
                target,
                memory=memory - window,
                index=opened.index_dtype,
                progress=progress,
            )
            with open_graph(target) as again:
                yield again


def whole(opened: GraphFile) -> Graph:
    """Read a graph file into memory, in the numbering of the file.

    Raises InputError as `GraphFile.slice` does, and for a graph that does not fit into memory.
    """
    size = sum(layout.nbytes for layout in opened.contents.datasets.values())
    check_memory(opened.where, size)
    rows = vars(opened.slice(0, opened.nodes))
    rows.pop("ids")
    facts = {name: getattr(opened, name) for name in ("directed", "classes", "types")}
    return Graph(opened.name, **facts, **rows)


# --- archives of NumPy


def write_npz(
    opened: GraphFile, output: Path, *, force: bool = False, progress: Progress | None = None
) -> None:
    """Write a graph file as an uncompressed .npz file, without row ranges and renumbering.

    Raises InputError as `replacement` does, and for a block of the file whose digest differs.
    """
    held = opened.contents
    members = {NAME: _rows_of(np.array(list(held.name.encode()), np.uint8))}
    if held.classes:
        members[CLASSES] = _rows_of(np.array(held.classes))
    members[DIRECTED] = _rows_of(np.array(held.directed))
    if held.sparse_shape is not None:
        members["x_shape"] = _rows_of(np.array(held.sparse_shape, np.int64))
    for path in held.datasets:
        if path != schema.PERMUTATION and not path.startswith("partition/"):
            members[MEMBERS.get(path, path)] = _rows(opened, path)
    _write_members(output, members, force=force, progress=progress)


def _write_sparse_features(opened: GraphFile, output: Path, *, force: bool) -> None:
    """Write sparse features as scipy.sparse.save_npz writes a CSR matrix."""
    members = {
        "indices": _rows(opened, schema.X_INDICES),
        "indptr": _rows(opened, schema.X_INDPTR),
        "format": _rows_of(np.array(b"csr")),
        "shape": _rows_of(np.array(opened.contents.sparse_shape, np.int64)),
        "data": _rows(opened, schema.X_DATA),
    }
    _write_members(output, members, force=force)


def _pieces(opened: GraphFile, path: str) -> Iterator[NDArray[Any]]:
    """Yield a dataset in pieces. Raises InputError for a block whose digest differs."""
    layout = opened.contents.datasets[path]
    step = max(1, PIECE // max(1, layout.row_bytes))
    with opened.compared():
        for low in range(0, layout.shape[0], step):
            yield opened.checked(path, low, min(low + step, layout.shape[0]))


def _rows(opened: GraphFile, path: str) -> Rows:
    return Rows(opened.contents.datasets[path], lambda: _pieces(opened, path))


def _rows_of(array: NDArray[Any]) -> Rows:
    """Return an array in memory, of any number of dimensions, as a single piece."""
    return Rows(schema.Layout(array.dtype, array.shape), lambda: iter([array]))


def _write_members(
    output: Path, members: Mapping[str, Rows], *, force: bool, progress: Progress | None = None
) -> None:
    """Write arrays to a .npz file, one after the other."""
    sizes = [each.layout.dtype.itemsize * int(np.prod(each.layout.shape)) for each in members.values()]
    total, done = sum(sizes), 0

    def counted(pieces: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        nonlocal done
        for piece in pieces:
            yield piece
            done += piece.nbytes
            if progress:
                progress("writing", done, total)

    made = replacement(output, force=force, size=total + MEMBER_BYTES * len(members))
    with made as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, each in members.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                _write_npy(file, each.layout, counted(each.pieces()))


def _write_npy(file: Any, layout: schema.Layout, pieces: Iterable[NDArray[Any]]) -> None:
    """Write an array in NumPy's .npy format to a binary file."""
    header = {"descr": layout.dtype.str, "fortran_order": False, "shape": layout.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for piece in pieces:
        file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)


# --- Matrix Market files


def node_files(opened: GraphFile, output: Path) -> dict[str, Path]:
    """Return the files that `write_mtx` writes for node data, by path of the dataset: OUT.x.npy and so on."""
    there = (path for path in (schema.X, schema.Y, *schema.MASKS) if path in opened.contents.datasets)
    found = {path: output.with_suffix(f".{path.removeprefix('node/')}.npy") for path in there}
    return found | ({schema.X: output.with_suffix(".x.npz")} if opened.sparse else {})


def left_out(opened: GraphFile) -> list[str]:
    """Return the contents of a graph file that `write_mtx` leaves out, in words."""
    found = [f"the data of edges {name}" for name in opened.edge_data]
    if {schema.NODE_ID, schema.NAME_TEXT} & opened.contents.datasets.keys():
        found.append("the names of nodes")
    return found


def write_mtx(
    opened: GraphFile, output: Path, *, force: bool = False, progress: Progress | None = None
) -> list[Path]:
    """Write the edges as entries of a general matrix, and node data to `node_files`; return all files.

    An entry (i, j) is the edge i -> j. Weights have as few digits as identify the float32. Raises
    InputError as `replacement` does, and for a block of the file whose digest differs.
    """
    of_nodes = node_files(opened, output)
    for target in (output, *of_nodes.values()):
        check_output(target, force=force)
    kind = "real" if opened.weighted else "pattern"
    report = (lambda done: progress("writing", done, opened.edges)) if progress else None
    with replacement(output, force=force, size=0) as temporary, temporary.open("w") as file:
        file.write(f"%%MatrixMarket matrix coordinate {kind} general\n")
        file.write(f"{opened.nodes} {opened.nodes} {opened.edges}\n")
        for block in NumberedEdges(opened, None).blocks(progress=report):
            file.writelines(_lines(block))
    for path, target in of_nodes.items():
        if target.suffix == ".npz":
            _write_sparse_features(opened, target, force=force)
            continue
        rows = _rows(opened, path)
        made = replacement(target, force=force, size=rows.layout.nbytes)
        with made as temporary, temporary.open("wb") as array:
            _write_npy(array, rows.layout, rows.pieces())
    return [output, *of_nodes.values()]


def _lines(block: EdgeBlock) -> Iterator[str]:
    """Yield the entries of a block as text."""
    for low in range(0, len(block), LINES):
        part = slice(low, low + LINES)
        columns = [(ends[part].astype(np.int64) + 1).tolist() for ends in (block.sources, block.destinations)]
        if block.weight is None:
            yield "".join(f"{row} {column}\n" for row, column in zip(*columns, strict=True))
        else:
            values = block.weight[part].astype(np.str_).tolist()
            yield "".join(f"{r} {c} {value}\n" for r, c, value in zip(*columns, values, strict=True))
