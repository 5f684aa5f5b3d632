"""Random graphs with every kind of content, for tests of files."""

from __future__ import annotations

import numpy as np

from mgg_hpc.data.graph import Graph, SparseRows, csr_from_edges


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
    pairs = set()
    for row in range(graph.nodes):
        for at in range(graph.indptr[row], graph.indptr[row + 1]):
            pairs.add((int(graph.indices[at]), row))
    return pairs
