"""Matrix Market files, as SciPy reads them."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.io
import scipy.sparse

from data.graphs import refused
from mgg_hpc.data.readers.matrix_market import open_matrix_market

from .text_graphs import PACKINGS, blocks_of, check_marks, joined, write

NODES = 20


def random_matrix(rng: np.random.Generator, field: str, symmetry: str) -> scipy.sparse.coo_matrix:
    """Draw a matrix with entries on the diagonal, too."""
    dense = rng.integers(1, 99, size=(NODES, NODES)) * (rng.random((NODES, NODES)) < 0.15)
    dense = dense if field == "integer" else dense * rng.normal(size=(NODES, NODES))
    return scipy.sparse.coo_matrix(dense if symmetry == "general" else np.tril(dense) + np.tril(dense, -1).T)


@pytest.mark.parametrize("packing", PACKINGS)
@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
@pytest.mark.parametrize("field", ["real", "integer", "pattern"])
def test_a_matrix_is_what_scipy_reads(field, symmetry, packing, rng, tmp_path, small_blocks):
    matrix = random_matrix(rng, field, symmetry)
    scipy.io.mmwrite(tmp_path / "m", matrix, field=field, symmetry=symmetry, comment="one\ntwo 3")
    read = scipy.io.mmread(tmp_path / "m.mtx").toarray().astype(np.float32)
    text = (tmp_path / "m.mtx").read_bytes()
    path = write(tmp_path / "some.mtx", text, packing)
    imported = open_matrix_market(path)
    assert (imported.name, imported.edges.nodes) == ("some", NODES)
    assert imported.directed is (None if symmetry == "general" else False)
    blocks = blocks_of(imported)
    sources, destinations, weights = joined(blocks)
    assert (weights is None) == (field == "pattern")
    found = np.zeros((NODES, NODES), np.float32)
    np.add.at(found, (destinations, sources), np.float32(1 if weights is None else weights))
    assert np.array_equal(found, read)
    check_marks(lambda: open_matrix_market(path), blocks, text)


def test_entries_that_are_stored_twice_are_two_edges(tmp_path):
    text = (
        "%%matrixmarket MATRIX Coordinate Pattern General\r\n\r\n 3  3\t3 \r\n3 1\r\n 3\t1 \r\n% end\r\n1 1"
    )
    imported = open_matrix_market(write(tmp_path / "m.mtx", text))
    assert joined(blocks_of(imported)) == ([0, 0, 0], [2, 2, 0], None)


HEAD = "%%MatrixMarket matrix coordinate real general\n"
WRONG = {
    "nothing": (
        "",
        ":1: '' begins no matrix; expected '%%MatrixMarket matrix coordinate real general' or alike",
    ),
    "an edge list": ("1 2\n", ":1: '1 2' begins no matrix"),
    "dense": (
        "%%MatrixMarket matrix array real general\n",
        ":1: the matrix is 'matrix array'; expected 'matrix coord",
    ),
    "complex": (
        HEAD.replace("real", "complex"),
        ":1: the matrix is 'complex'; expected pattern or integer or real",
    ),
    "skew": (
        HEAD.replace("general", "skew-symmetric"),
        ":1: the matrix is 'skew-symmetric'; expected general or sym",
    ),
    "no sizes": (HEAD + "% 1 1 1\n", ":2: the file ends before its sizes"),
    "sizes of an array": (HEAD + "3 3\n", ":2: '3 3'; expected 3 whole numbers: rows, columns, entries"),
    "a negative size": (HEAD + "3 3 -1\n", ":2: '3 3 -1'; expected 3 whole numbers"),
    "a huge size": (HEAD + "9" * 15 + " " + "9" * 15 + " 1\n", ":2: a graph of 9{15} nodes needs"),
    "wide": (HEAD + "3 4 1\n1 1 1\n", ":2: the matrix is 3 x 4; expected as many columns as rows"),
    "empty": (HEAD + "0 0 0\n", ":2: the matrix is 0 x 0"),
    "row 0": (HEAD + "3 3 1\n0 1 1\n", r":3: the node id 0 is too small; expected 1 \.\. 3"),
    "row 4": (HEAD + "3 3 1\n1 4 1\n", r":3: the node id 4 is too large; expected 1 \.\. 3"),
    "no value": (HEAD + "3 3 1\n1 1\n", ":3: 2 columns; expected 3: row, column and value"),
    "commas": (HEAD + "3 3 1\n1,1,1\n", ":3: 1 columns; expected 3: row, column and value"),
    "a word": (HEAD + "3 3 1\n1 1 x\n", ":3: 'x' is not a value; expected a number"),
    "other comments": (HEAD + "3 3 1\n# 1 1 1\n", ":3: 4 columns; expected 3"),
    "too few": (HEAD + "3 3 3\n1 1 1\n\n2 2 1\n", ": the file ends behind 2 entries; expected 3"),
    "too many": (HEAD + "3 3 2\n1 1 1\n\n2 2 1\n%\n3 3 1\n", ":7: an entry behind the last of 2"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_named(wrong, tmp_path):
    text, reason = WRONG[wrong]
    with refused(rf"m\.mtx{reason}"):
        blocks_of(open_matrix_market(write(tmp_path / "m.mtx", text)))


def test_a_symmetric_matrix_has_no_entry_above_its_diagonal(tmp_path, small_blocks):
    text = "%%MatrixMarket matrix coordinate real symmetric\n3 3 40\n" + "2 1 5\n" * 20 + "% comment\n1 3 5\n"
    path = write(tmp_path / "m.mtx", text + "2 1 5\n" * 19)
    with refused(r"m\.mtx:24: '1 3 5' is above the diagonal; a symmetric matrix lists"):
        blocks_of(open_matrix_market(path))
