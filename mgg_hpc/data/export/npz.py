"""Graph files as NumPy archives, under the names that `readers.npz` reads; and sparse features as SciPy's archives."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import schema
from ..atomic_write import replacement
from ..graph import SPLITS
from ..readers.npz import CLASSES, DIRECTED, NAME
from ..schema import Layout
from ..store import GraphFile
from ..streams import Rows
from .imported import Progress, pieces

# Names of datasets in archives; all others are there under their paths.
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
MEMBER_BYTES = 1 << 12  # more than the headers of a member take


def write_npz(
    opened: GraphFile, output: Path, *, force: bool = False, progress: Progress | None = None
) -> None:
    """Write all contents of a graph file but its row ranges and its numbering; members are stored, not deflated.

    Raises InputError where `replacement` does, and for a block of the file whose digest differs.
    """
    held = opened.contents
    told = {
        NAME: np.array(list(held.name.encode()), np.uint8),
        CLASSES: np.array(held.classes),
        DIRECTED: np.array(held.directed),
    }
    if not held.classes:
        del told[CLASSES]
    if held.sparse_shape is not None:
        told["x_shape"] = np.array(held.sparse_shape, np.int64)
    members = {name: of_array(array) for name, array in told.items()}
    for path in datasets(opened):
        members[MEMBERS.get(path, path)] = rows(opened, path)
    write_members(output, members, force=force, progress=progress)


def write_sparse_features(opened: GraphFile, output: Path, *, force: bool = False) -> None:
    """Write sparse features as SciPy's save_npz writes a matrix in CSR. Errors as for `write_npz`."""
    assert opened.contents.sparse_shape is not None
    members = {
        "indices": rows(opened, schema.X_INDICES),
        "indptr": rows(opened, schema.X_INDPTR),
        "format": of_array(np.array(b"csr")),
        "shape": of_array(np.array(opened.contents.sparse_shape, np.int64)),
        "data": rows(opened, schema.X_DATA),
    }
    write_members(output, members, force=force)


def datasets(opened: GraphFile) -> list[str]:
    """Return the paths of a graph file's datasets but for row ranges and the numbering."""
    return [
        path
        for path in opened.contents.datasets
        if path != schema.PERMUTATION and not path.startswith("partition/")
    ]


def rows(opened: GraphFile, path: str) -> Rows:
    """Return a dataset of a graph file as rows that come in pieces."""
    return Rows(opened.contents.datasets[path], lambda: pieces(opened, path))


def of_array(array: NDArray[Any]) -> Rows:
    """Return an array in memory, of any number of dimensions, as rows in one piece."""
    return Rows(Layout(array.dtype, array.shape), lambda: iter([array]))


def write_members(
    output: Path, members: Mapping[str, Rows], *, force: bool, progress: Progress | None = None
) -> None:
    """Write arrays into an archive, one after the other. Raises InputError where `replacement` does."""
    sizes = [each.layout.dtype.itemsize * int(np.prod(each.layout.shape)) for each in members.values()]
    total, done = sum(sizes), 0

    def counted(given: Iterable[NDArray[Any]]) -> Iterator[NDArray[Any]]:
        nonlocal done
        for piece in given:
            yield piece
            done += piece.nbytes
            if progress:
                progress("writing", done, total)

    made = replacement(output, force=force, size=total + MEMBER_BYTES * len(members))
    with made as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, each in members.items():
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as file:
                write_array(file, each.layout, counted(each.pieces()))


def write_array(file: Any, layout: Layout, given: Iterable[NDArray[Any]]) -> None:
    """Write an array in NumPy's .npy format to a binary file."""
    header = {"descr": layout.dtype.str, "fortran_order": False, "shape": layout.shape}
    np.lib.format.write_array_header_1_0(file, header)
    for piece in given:
        file.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
