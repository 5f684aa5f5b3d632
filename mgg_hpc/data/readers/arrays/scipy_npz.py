"""Archives of SciPy's save_npz: matrices in the forms CSR, CSC and COO, as edges or as features of nodes."""

from __future__ import annotations

from pathlib import Path

from ....errors import InputError
from ...edge_stream import Imported, Rows
from ..limits import shown
from ..npy import Array
from .archive import Archive
from .edges import CompressedEdges, PairedEdges
from .node_rows import check_nodes, sparse_rows

FORMS = ("csr", "csc", "coo")


def is_matrix(archive: Archive) -> bool:
    """Return whether an archive is one of SciPy's, by the names of its members."""
    return {"format", "shape", "data"} <= set(archive.names)


def open_matrix(archive: Archive) -> Imported:
    """Open a square matrix as a stream of edges: row i lists the sources of i's in-edges, its values are their weights.

    Where all values are 1, edges have no weights. Entries that are stored twice are two edges. Raises InputError for
    other forms and shapes; reading raises it for offsets that are none, and ids out of range.
    """
    where, form, shape = str(archive.path), _form(archive), _shape(archive)
    if shape[0] != shape[1]:
        raise InputError(f"{where}: the matrix is {list(shape)}; expected as many columns as rows")
    nodes = shape[0]
    check_nodes(archive.path, nodes)
    if form == "coo":
        row = archive.need("row", "int", None)
        column = archive.need("col", "int", len(row))
        weight = _weight(archive, len(row))
        return Imported(
            archive.path.stem, PairedEdges(where, (column, row), nodes, weight=weight), directed=None
        )
    indices = archive.need("indices", "int", None)
    edges = CompressedEdges(
        where,
        archive.need("indptr", "int", nodes + 1),
        indices,
        weight=_weight(archive, len(indices)),
        by_source=form == "csc",
    )
    return Imported(archive.path.stem, edges, directed=None)


def open_features(path: Path) -> tuple[dict[str, Rows], tuple[int, int]]:
    """Open a matrix [N, F] in CSR as sparse features: their datasets, and (N, F). Raises InputError for others."""
    archive = Archive(path)
    if not is_matrix(archive):
        raise InputError(f"{path} is no matrix of SciPy; expected what scipy.sparse.save_npz writes")
    form, (nodes, columns) = _form(archive), _shape(archive)
    if form != "csr":
        raise InputError(f"{path} is a matrix in the form {form}; expected csr: save its .tocsr()")
    if not 1 <= columns < 2**31:
        raise InputError(f"{path} has {columns} columns; expected 1 .. {2**31 - 1}")
    check_nodes(path, nodes)
    indices = archive.need("indices", "int", None)
    data = archive.need("data", "any number", len(indices))
    return sparse_rows(archive.need("indptr", "int", nodes + 1), indices, data, columns), (nodes, columns)


def _form(archive: Archive) -> str:
    value = archive.need("format", "text")
    found = "" if value.header.nbytes > 64 else value.whole().item()
    text = found.decode("latin1") if isinstance(found, bytes) else str(found)
    if text not in FORMS:
        raise InputError(
            f"{archive.path} is a matrix in the form {shown(text)}; expected {', '.join(FORMS)}: save its .tocsr()"
        )
    return text


def _shape(archive: Archive) -> tuple[int, int]:
    rows, columns = archive.need("shape", "int", 2).whole().tolist()
    if rows < 0 or columns < 0:
        raise InputError(f"{archive.path}: shape is {[rows, columns]}; expected no negative lengths")
    return rows, columns


def _weight(archive: Archive, entries: int) -> Array | None:
    """Return the values of a matrix, None if all are 1."""
    values = archive.need("data", "any number", entries)
    return None if all((piece == 1).all() for piece in values.rows().pieces()) else values
