"""Partitioners: assign rows to ranks so that ranks have equal work and need few rows from each other.

A partitioner finds an assignment, int32 [N], the part of each row; `arranged` makes an order of rows from it in which
each part is a contiguous range. The method "edges" needs none: it cuts the rows as they are numbered
(`plan.row_ranges`).
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..data import native, symmetry
from ..errors import InputError
from .row_ranges import edge_balanced
from .workload import prefix_sum

METHODS = ("edges", "metis", "ldg", "given")
MOST_PARTS = 4096  # as for -n


class SliceOfRows(NamedTuple):
    """A run of rows from ``first`` on.

    indptr: int64 [n + 1] from 0. indices: int32 or int64 [E], ascending in each row.
    """

    first: int
    indptr: NDArray[np.int64]
    indices: NDArray[Any]


@dataclass(frozen=True, eq=False)
class SymmetricEdges:
    """Edges of an undirected graph, which are read in slices of rows. edges: their number, both directions of each.

    weight: int64 [N], by which parts are balanced: 1 and the in-edges of each row. slices: starts a pass over all rows.
    """

    edges: int
    weight: NDArray[np.int64]
    slices: Callable[[], Iterator[SliceOfRows]]

    @property
    def nodes(self) -> int:
        """Number of rows."""
        return len(self.weight)

    def whole(self, dtype: type[np.signedinteger]) -> tuple[NDArray[np.int64], NDArray[Any]]:
        """Return the whole CSR: indptr int64 [N + 1], indices [E] of ``dtype``."""
        indptr, indices = np.zeros(self.nodes + 1, np.int64), np.empty(self.edges, dtype)
        for first, offsets, ends in self.slices():
            begin = indptr[first]
            indptr[first + 1 : first + len(offsets)] = begin + offsets[1:]
            indices[begin : begin + len(ends)] = ends
        return indptr, indices

    def ranges(self, parts: int) -> NDArray[np.int32]:
        """Return the assignment to contiguous ranges of equal weight, int32 [N]."""
        sizes = np.diff(edge_balanced(prefix_sum(self.weight), parts))
        return np.repeat(np.arange(parts, dtype=np.int32), sizes)


def check_memory(method: str, nodes: int, edges: int, memory: int) -> None:
    """Raise InputError if "metis" or "ldg" needs more than ``memory`` bytes. edges: of both directions.

    METIS's need, with its coarser graphs, was measured on a recursive-matrix graph. Graphs that become small quickly as
    they are made coarser take less: a web graph half of it. LDG keeps for each node its part, weight and offset, and
    one slice of rows.
    """
    needed = 130 * edges + 100 * nodes if method == "metis" else 48 * nodes + (128 << 20)
    if needed > memory:
        raise InputError(
            f"the method {method} takes up to {needed / 2**30:,.1f} GiB of memory for {edges:,} edges, and has "
            f"{memory / 2**30:,.1f}: give more by --memory, or use {'ldg' if method == 'metis' else 'edges'}"
        )


def arranged(
    assignment: NDArray[np.integer], parts: int, order: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return an order of rows in which parts follow one another, and the bounds of the parts in it.

    assignment: [N], the part of each row, 0 .. parts - 1. order: int64 [N], the order of the rows within each part.
    Returns int64 [N], the old number of each new row, and int64 [parts + 1].
    """
    kind = np.uint16 if parts <= 1 << 16 else np.int64  # NumPy sorts integers of 16 bits by radix
    found = order[np.argsort(assignment[order].astype(kind), kind="stable")]
    return found, prefix_sum(np.bincount(assignment, minlength=parts))


def checked(where: str, given: NDArray[np.integer], nodes: int, parts: int) -> NDArray[np.int32]:
    """Return an assignment of a file as int32 [N]. Raises InputError that names the row of a wrong value."""
    if given.ndim != 1 or given.dtype.kind not in "iu" or len(given) != nodes:
        raise InputError(
            f"{where} is {given.dtype} {list(given.shape)}; expected the part of each node, integers [{nodes}]"
        )
    wrong = np.flatnonzero((given < 0) | (given >= parts))
    if len(wrong):
        raise InputError(f"{where}: row {wrong[0]} has the part {given[wrong[0]]}; expected 0 .. {parts - 1}")
    return given.astype(np.int32)


# ---- METIS


def metis(edges: SymmetricEdges, parts: int) -> NDArray[np.int32]:
    """Assign rows by METIS, multilevel partitioning (Karypis and Kumar, SIAM J. Sci. Comput. 1998).

    The objective is METIS's communication volume, which is the number of rows of the halos, and not its default, the
    cut. Rows of the halos by volume and by cut, 4 parts: a web graph (cnr-2000) 2,536 and 2,995 (medians of ten seeds;
    some had a third more), a recursive-matrix graph of scale 18 284,500 and 308,800, a block model of 50,000 nodes
    70,900 and 73,300 (three seeds).

    Raises InputError without the package pymetis, or if some edge has no reverse.
    """
    try:
        import pymetis
    except ImportError as error:
        raise InputError(
            "the method metis needs pymetis; install it with `pip install mgg-hpc[metis]`"
        ) from error
    if parts == 1 or edges.nodes <= parts or not edges.edges:
        return edges.ranges(parts)  # METIS has no answer to some of these
    options = pymetis.Options(objtype=1, seed=1)  # METIS_OBJTYPE_VOL
    adjacency = pymetis.CSRAdjacency(*_simple(edges))
    with _silenced():
        found = pymetis.part_graph(parts, adjacency, vweights=edges.weight, options=options, recursive=False)
    return np.asarray(found.vertex_part, dtype=np.int32)


@contextmanager
def _silenced() -> Iterator[None]:
    """Drop the C library's output: METIS prints remarks on heavy rows, which would lie among the results on stdout."""
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


def _simple(edges: SymmetricEdges) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the CSR, int64, without self loops and duplicates, which METIS does not take."""
    indptr, indices = np.zeros(edges.nodes + 1, np.int64), np.empty(edges.edges, np.int64)
    at, imbalance = 0, 0
    for first, offsets, ends in edges.slices():
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


# ---- linear deterministic greedy

TRIED = 2  # passes from each start
PASSES = 10  # at most, from the better start; more were measured to change next to nothing
SETTLED = 1000  # a pass that moves less than one row in so many is the last
SLACK = 0.05  # share of the mean load by which a part may be larger


def ldg(edges: SymmetricEdges, parts: int) -> NDArray[np.int32]:
    """Assign rows by linear deterministic greedy in several passes, which read rows one after another.

    Stanton and Kliot (KDD 2012), restreamed as Nishimura and Ugander (KDD 2013) do. It begins twice, with edge-balanced
    ranges and with empty parts, and goes on with the start that keeps more edges within parts after TRIED passes: so a
    numbering that is good already is not lost, and one that means nothing does not hold rows where they are. Rows of
    the halos, 4 parts, 10 passes:

    - a web graph as crawled (cnr-2000; ranges have 30,000): 12,600 from ranges, 58,900 from empty parts;
    - a block model of 50,000 nodes (ranges have 149,000): 135,000 from ranges, 95,800 from empty parts.

    Fennel (Tsourakakis et al., WSDM 2014), its price of load raised from pass to pass, gave 13,000 to 18,300 and
    95,700. The weight of a part is at most 1 + SLACK times the mean, or the mean and the heaviest row if that is more.
    """
    starts = edges.ranges(parts), np.full(edges.nodes, -1, np.int32)
    kept = [[_ldg_pass(edges, parts, part_of) for _ in range(TRIED)][-1][1] for part_of in starts]
    part_of = starts[int(np.argmax(kept))]
    for _ in range(PASSES - TRIED):
        if _ldg_pass(edges, parts, part_of)[0] * SETTLED < edges.nodes:
            break
    return part_of


def _ldg_pass(edges: SymmetricEdges, parts: int, part_of: NDArray[np.int32]) -> tuple[int, int]:
    """Assign each row anew, in part_of; return the number of rows that moved, and of edges within parts."""
    held = part_of >= 0
    load = np.bincount(part_of[held], edges.weight[held], minlength=parts).astype(np.int64)
    capacity = int((1 + SLACK) * edges.weight.sum() / parts) + 1
    moved = kept = 0
    for first, indptr, indices in edges.slices():
        weight = edges.weight[first : first + len(indptr) - 1]
        found = native.load().stream_rows(first, indptr, indices, weight, capacity, load, part_of)
        moved, kept = moved + found[0], kept + found[1]
    return moved, kept


# Partitioners by method. They are deterministic.
FOUND: dict[str, Callable[[SymmetricEdges, int], NDArray[np.int32]]] = {"metis": metis, "ldg": ldg}
