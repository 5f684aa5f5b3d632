"""Random graphs with every kind of content, for tests of files."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.sparse

from mgg_hpc.data import schema
from mgg_hpc.data.graph import Graph, SparseRows, csr_from_edges
from mgg_hpc.data.writer import graph_file
from mgg_hpc.errors import InputError


@contextlib.contextmanager
def refused(reason: str) -> Iterator[pytest.ExceptionInfo[InputError]]:
    """Check that the block ends with an InputError of one line that matches ``reason``."""
    with pytest.raises(InputError, match=reason) as caught:
        yield caught
    assert "\n" not in str(caught.value)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    """Leave 1 GiB of address space."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (1 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


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
    drawn = scipy.sparse.random_array((nodes, features), density=0.3, rng=rng, format="csr")
    drawn.sort_indices()
    data = rng.normal(size=drawn.nnz).astype(np.float32)
    return SparseRows(drawn.indptr.astype(np.int64), drawn.indices.astype(np.int32), data, (nodes, features))


def write_with(path: Path, graph: Graph, more: dict[str, np.ndarray]) -> None:
    """Write a graph with further datasets by their paths, such as names of nodes."""
    held = schema.contents(graph)
    layouts = {name: schema.Layout(array.dtype, array.shape) for name, array in more.items()}
    with graph_file(path, replace(held, datasets={**held.datasets, **layouts}), force=True) as file:
        for name, array in {**schema.arrays(graph), **more}.items():
            file.put(name, [array])


def rows_of_edges(indptr: np.ndarray) -> np.ndarray:
    """The row, which is the destination, of each edge of a CSR."""
    return np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))


def edge_set(graph: Graph) -> set[tuple[int, int]]:
    """(source, destination) pairs."""
    return set(zip(graph.indices.tolist(), rows_of_edges(graph.indptr).tolist(), strict=True))


def flip_byte(path: Path, dataset: str, at: int) -> None:
    """Damage a byte of a dataset."""
    with h5py.File(path) as file:
        offset = file[dataset].id.get_offset()
    np.memmap(path, np.uint8, "r+")[offset + at] ^= 1


def same(left: np.ndarray | None, right: np.ndarray | None) -> bool:
    """Whether two arrays, or nothings, are the same in type, shape and value."""
    if left is None or right is None:
        return left is right
    return left.dtype == right.dtype and np.array_equal(left, right)


def same_graph(found: Graph, expected: Graph) -> None:
    """Check that two graphs are the same but for their names."""
    arrays = schema.arrays(found)
    assert arrays.keys() == schema.arrays(expected).keys()
    for name, array in schema.arrays(expected).items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name, strict=True)
    assert (found.classes, found.directed) == (expected.classes, expected.directed)
