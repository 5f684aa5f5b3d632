"""Random graphs with every kind of content, for tests of files."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import h5py
import numpy as np
import pytest

from mgg_hpc.data.graph import Graph, SparseRows, csr_from_edges
from mgg_hpc.errors import InputError


@contextlib.contextmanager
def refused(reason: str) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Check that the block ends with an InputError of one line that matches ``reason``."""
    with pytest.raises(InputError, match=reason) as caught:
        yield caught
    assert "\n" not in str(caught.value)


def random_graph(
    rng: np.random.Generator,
    *,
    nodes: int = 40,
    edges: int = 200,
    features: int = 6,
    sparse: bool = False,
    multilabel: bool = False,
    weighted: bool = False,
    symmetric: bool = True,
    permuted: bool = False,
    half: bool = False,
    wide_ids: bool = False,
) -> Graph:
    """A graph with features, labels and masks; duplicates and self loops where it is not symmetric."""
    weight = rng.normal(size=edges).astype(np.float32) if weighted else None
    indptr, indices, weight = csr_from_edges(
        rng.integers(nodes, size=edges),
        rng.integers(nodes, size=edges),
        nodes,
        weight=weight,
        symmetric=symmetric,
    )
    classes = 5
    x = rng.normal(size=(nodes, features)).astype(np.float16 if half else np.float32)
    kind = rng.integers(4, size=nodes)
    return Graph(
        name="random",
        indptr=indptr,
        indices=indices.astype(np.int64) if wide_ids else indices,
        weight=weight,
        x=sparse_rows(rng, nodes, features) if sparse else x,
        y=rng.integers(2, size=(nodes, classes)).astype(np.float32)
        if multilabel
        else rng.integers(classes, size=nodes),
        train=kind == 0,
        val=kind == 1,
        test=kind == 2,
        directed=not symmetric,
        classes=classes,
        permutation=rng.permutation(nodes) if permuted else None,
    )


def sparse_rows(rng: np.random.Generator, nodes: int, features: int) -> SparseRows:
    kept = rng.random((nodes, features)) < 0.3
    rows, columns = np.nonzero(kept)
    indptr = np.concatenate([[0], np.cumsum(kept.sum(axis=1))])
    data = rng.normal(size=len(rows)).astype(np.float32)
    return SparseRows(indptr, columns.astype(np.int32), data, (nodes, features))


def edge_set(graph: Graph) -> set[tuple[int, int]]:
    """(source, destination) pairs, read off the CSR one by one."""
    rows = [(row, graph.indptr[row], graph.indptr[row + 1]) for row in range(graph.nodes)]
    return {(int(graph.indices[at]), row) for row, low, high in rows for at in range(low, high)}


def flip_byte(path: Path, dataset: str, at: int) -> None:
    """Damage a byte of a dataset."""
    with h5py.File(path) as file:
        offset = file[dataset].id.get_offset()
    with path.open("r+b") as file:
        file.seek(offset + at)
        byte = file.read(1)[0]
        file.seek(offset + at)
        file.write(bytes([byte ^ 1]))


def same(left: np.ndarray | None, right: np.ndarray | None) -> bool:
    """Whether two arrays, or nothings, are the same in type, shape and value."""
    if left is None or right is None:
        return left is right
    return left.dtype == right.dtype and np.array_equal(left, right)
