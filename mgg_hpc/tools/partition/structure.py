"""The edges of a graph file under other numbers, for orders and partitioners: in a temporary graph file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from ...data import checks, schema
from ...data.assembly import build_graph
from ...data.atomic_write import temporary
from ...data.readers.graph_file import NumberedEdges, slices
from ...data.store import GraphFile, open_graph
from ...data.streams import Imported
from ...errors import InputError
from ...plan.partitioners import SliceOfRows, SymmetricEdges


@contextmanager
def numbered(
    opened: GraphFile, place: NDArray[np.int64], *, memory: int, symmetric: bool = False
) -> Iterator[GraphFile]:
    """Yield a graph file of the edges alone, the ends of each under other numbers; it is gone when the program is.

    place: int64 [N], the number of each row. symmetric: with the reverse of each edge, and no edge twice.
    """
    beside = opened.path.resolve()
    path = temporary(beside.with_name(f"{beside.name}.edges"))
    edges = Imported(opened.name, NumberedEdges(opened, place, data=False))
    try:
        build_graph(edges, path, memory=memory, symmetric=symmetric, force=True)
        found = open_graph(path)
    finally:
        path.unlink(missing_ok=True)
    with found:
        yield found


@contextmanager
def original_pattern(opened: GraphFile, *, memory: int) -> Iterator[SymmetricEdges]:
    """Yield the symmetric pattern of the edges under the user's ids: the same for any numbering of the rows."""
    ids = user_ids(opened)
    weight = np.ones(opened.nodes, np.int64)
    degree = np.diff(opened.indptr())
    if ids is None:
        weight += degree
    else:
        weight[ids] += degree
    if ids is None and not opened.directed:
        yield _pattern(opened, weight)
        return
    place = np.arange(opened.nodes) if ids is None else ids
    with numbered(opened, place, memory=memory, symmetric=opened.directed) as edges:
        yield _pattern(edges, weight)


def user_ids(opened: GraphFile) -> NDArray[np.int64] | None:
    """Return the user's id of each row, int64 [N]; None where these are the row numbers.

    Raises InputError unless each comes once.
    """
    if schema.PERMUTATION not in opened.contents.datasets:
        return None
    with opened.compared():
        ids = opened.checked(schema.PERMUTATION, 0, opened.nodes)
        checks.original_ids(opened.where, ids, 0, opened.nodes)
    again = np.flatnonzero(np.bincount(ids, minlength=opened.nodes) > 1)
    if len(again):
        raise InputError(
            f"{opened.where}: /{schema.PERMUTATION} has {again[0]} more than once; each original id comes once"
        )
    return ids


def _pattern(opened: GraphFile, weight: NDArray[np.int64]) -> SymmetricEdges:
    return SymmetricEdges(opened.edges, weight, lambda: (SliceOfRows(*each) for each in slices(opened)))
