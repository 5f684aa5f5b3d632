"""Edges as an array of NumPy: both shapes, all types, both orders of bytes and of entries."""

from __future__ import annotations

import numpy as np
import pytest

from mgg_hpc.data.readers.edge_arrays import open_edge_arrays

from ..graphs import refused
from .streamed import check_marks, edges_of

TYPES = ("i1", "<i2", ">i4", "<i4", "<i8", ">i8", "u1", "<u4", ">u8")


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("by_edge", [False, True])
@pytest.mark.parametrize("kind", TYPES)
def test_edges_are_those_of_the_array(rng, tmp_path, blocks, kind, by_edge, order):
    pairs = rng.integers(100, size=(2, int(rng.integers(3, 60)))).astype(kind)
    np.save(tmp_path / "e.npy", np.array(pairs.T if by_edge else pairs, order=order))
    imported = open_edge_arrays(tmp_path / "e.npy")
    found = edges_of(imported)
    np.testing.assert_array_equal(found.sources, pairs[0])
    np.testing.assert_array_equal(found.destinations, pairs[1])
    assert (imported.name, imported.edges.nodes, imported.edges.total) == ("e", None, pairs.shape[1])
    assert len(found.marks) == (-(-pairs.shape[1] // 7) if blocks else 1)
    check_marks(imported)


def test_two_edges_are_read_by_rows(tmp_path):
    np.save(tmp_path / "e.npy", np.array([[1, 2], [3, 4]]))
    found = edges_of(open_edge_arrays(tmp_path / "e.npy", nodes=9))
    assert (found.sources.tolist(), found.destinations.tolist()) == ([1, 2], [3, 4])


@pytest.mark.parametrize("by_edge", [False, True])
def test_negative_ids_are_named_with_their_place(rng, tmp_path, blocks, by_edge):
    pairs = rng.integers(100, size=(2, 40))
    pairs[1, 23] = -5
    np.save(tmp_path / "e.npy", pairs.T if by_edge else pairs)
    with refused(r"e\.npy: edge 23 has the destination -5; expected 0 \.\."):
        edges_of(open_edge_arrays(tmp_path / "e.npy"))
    np.save(tmp_path / "e.npy", np.array([[0, 2**63], [0, 0]], np.uint64))
    with refused(r"e\.npy: edge 1 has the source 9223372036854775808; expected"):
        edges_of(open_edge_arrays(tmp_path / "e.npy"))


@pytest.mark.parametrize(
    "array",
    [np.zeros(4, int), np.zeros((3, 3), int), np.zeros((2, 4)), np.zeros((2, 2, 2), int), np.array(3)],
)
def test_other_arrays_are_no_edges(tmp_path, array):
    np.save(tmp_path / "e.npy", array)
    with refused(r"e\.npy is \w+ \[.*\]; expected integers \[2, edges\] or \[edges, 2\]"):
        open_edge_arrays(tmp_path / "e.npy")


def test_files_that_are_not_there_or_cut(tmp_path):
    with refused(r"none\.npy cannot be read: No such file"):
        open_edge_arrays(tmp_path / "none.npy")
    np.save(tmp_path / "e.npy", np.zeros((2, 40), int))
    data = (tmp_path / "e.npy").read_bytes()
    (tmp_path / "e.npy").write_bytes(data[:-1])
    with refused(r"e\.npy claims int64 \[2, 40\], 640 bytes; the file does not hold them"):
        open_edge_arrays(tmp_path / "e.npy")
    (tmp_path / "e.npy").write_bytes(data)
    imported = open_edge_arrays(tmp_path / "e.npy")
    (tmp_path / "e.npy").write_bytes(data[:-1])
    with refused(r"e\.npy became shorter while it was read"):
        edges_of(imported)
