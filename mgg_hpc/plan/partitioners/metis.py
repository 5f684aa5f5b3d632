"""METIS: multilevel partitioning, by the package pymetis.

Karypis and Kumar, "A Fast and High Quality Multilevel Scheme for Partitioning Irregular Graphs", SIAM J. Sci. Comput.
1998.

The objective is METIS's communication volume, which is the number of rows of the halos, and not its default, the cut.
Rows of the halos by volume and by cut, 4 parts: a web graph (cnr-2000) 2,536 and 2,995 (medians of ten seeds; some had
a third more), a recursive-matrix graph of scale 18 284,500 and 308,800, a block model of 50,000 nodes 70,900 and 73,300
(three seeds).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...data import symmetry
from ...errors import InputError
from .pattern import Pattern

VOLUME = 1  # METIS_OBJTYPE_VOL
SEED = 1


def assign(pattern: Pattern, parts: int) -> NDArray[np.int32]:
    """Return the part of each row, int32 [N]. Raises InputError without pymetis, or if the pattern is not symmetric."""
    pymetis = _load()
    if parts == 1 or pattern.nodes <= parts or not pattern.edges:
        return pattern.ranges(parts)  # METIS has no answer to some of these
    indptr, indices = _simple(pattern)
    options = pymetis.Options(objtype=VOLUME, seed=SEED)
    adjacency = pymetis.CSRAdjacency(indptr, indices)
    with _unprinted():
        found = pymetis.part_graph(
            parts, adjacency, vweights=pattern.weight, options=options, recursive=False
        )
    return np.asarray(found.vertex_part, dtype=np.int32)


def memory(nodes: int, edges: int) -> int:
    """Return about how many bytes METIS takes with its coarser graphs, as measured on a recursive-matrix graph.

    Graphs that become small quickly as they are made coarser take less: a web graph half of it.
    """
    return 130 * edges + 100 * nodes


def _load() -> Any:
    try:
        import pymetis
    except ImportError as error:
        raise InputError(
            "the method metis needs pymetis; install it with `pip install mgg-hpc[metis]`"
        ) from error
    return pymetis


@contextmanager
def _unprinted() -> Iterator[None]:
    """Drop what the C library prints: METIS has remarks on heavy rows, which would lie among the results on stdout."""
    flush = ctypes.CDLL(None).fflush
    flush(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
        flush(None)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _simple(pattern: Pattern) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the CSR, int64, without self loops and copies of edges, which METIS does not take."""
    indptr, indices = np.zeros(pattern.nodes + 1, np.int64), np.empty(pattern.edges, np.int64)
    at, imbalance = 0, 0
    for first, offsets, ends in pattern.slices():
        imbalance += symmetry.csr_imbalance(first, offsets, ends, None)
        rows = np.repeat(np.arange(first, first + len(offsets) - 1), np.diff(offsets))
        kept = ends != rows
        kept[1:] &= (ends[1:] != ends[:-1]) | (rows[1:] != rows[:-1])
        counts = np.bincount(rows[kept] - first, minlength=len(offsets) - 1)
        indptr[first + 1 : first + len(offsets)] = at + np.cumsum(counts)
        indices[at : at + int(counts.sum())] = ends[kept]
        at += int(counts.sum())
    if imbalance % 2**64:
        raise InputError(
            "the graph is said to be undirected, but some edge has no reverse; `mgg verify` names it"
        )
    return indptr, indices[:at]
