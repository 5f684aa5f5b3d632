"""Find which row goes where: by an order of rows, by a partitioner, or by both."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...data.graph import Graph
from ...data.readers import npy
from ...data.store import GraphFile
from ...errors import InputError
from ...plan import order, partitioners
from ...plan.partitioners import SymmetricEdges
from ...plan.workload import prefix_sum
from .structure import original_pattern, user_ids

Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
    """Request of a user: ranges for ``parts`` ranks (None: none) by one of `partitioners.METHODS`, and an order of
    rows, one of `order.METHODS` (None: as they are). given: the file of the assignment for the method "given".
    """

    parts: int | None
    method: str = "edges"
    renumbering: str | None = None
    given: Path | None = None

    @property
    def label(self) -> str:
        """Name of the order that the file records."""
        return self.renumbering or "none" if self.method == "edges" else f"{self.method}-{self.parts}"


@dataclass(frozen=True, eq=False)
class Arrangement:
    """New rows of a graph file. ids: the user's id of each, int64 [N]. moved: the present row of each, int64 [N].

    bounds: int64 [P + 1] of the parts that a partitioner found; None for edge-balanced ranges.
    """

    ids: Numbers
    moved: Numbers
    bounds: Numbers | None

    @property
    def identity(self) -> bool:
        """Whether the rows are as they are."""
        return bool((self.moved == np.arange(len(self.moved))).all())


def arrange(opened: GraphFile, asked: Asked, *, memory: int) -> Arrangement:
    """Find the rows that are asked for. They do not depend on the present numbering, where an order is asked for.

    memory: bytes to use. Raises InputError if a method needs more of it, or something else that is missing, and for an
    assignment that does not fit.
    """
    ids = user_ids(opened)
    present = np.arange(opened.nodes, dtype=np.int64) if ids is None else ids
    if asked.renumbering in ("rcm", "community"):
        edges = opened.edges * (1 + opened.directed)
        order.check_size(asked.renumbering, opened.nodes, edges, where=opened.where, available=memory)
    if asked.method in partitioners.FOUND:
        partitioners.check_memory(asked.method, opened.nodes, opened.edges * (1 + opened.directed), memory)
    given = None
    if asked.given is not None and asked.parts is not None:
        given = partitioners.checked(
            str(asked.given), npy.open_array(asked.given).whole(), opened.nodes, asked.parts
        )
    with ExitStack() as stack:
        pattern = None
        if asked.renumbering in ("rcm", "community") or asked.method in partitioners.FOUND:
            pattern = stack.enter_context(original_pattern(opened, memory=memory))
        found = _ordered(opened, present, pattern, asked.renumbering)
        if pattern is not None and asked.method in partitioners.FOUND:
            assert asked.parts is not None
            given = partitioners.FOUND[asked.method](pattern, asked.parts)
    bounds = None
    if given is not None and asked.parts is not None:
        found, bounds = partitioners.arranged(given, asked.parts, found)
    return Arrangement(found, found if ids is None else order.inverse(ids)[found], bounds)


def parts_of(path: Path) -> int:
    """Return the number of parts of an assignment: its largest value and one.

    Raises InputError unless it has integers, and for a part beyond MOST_PARTS, by its row.
    """
    values = npy.open_array(path).whole()
    if values.ndim != 1 or values.dtype.kind not in "iu" or not len(values):
        raise InputError(
            f"{path} is {values.dtype} {list(values.shape)}; expected the part of each node, integers [N]"
        )
    row = int(values.argmax())
    largest = int(values[row])
    if largest >= partitioners.MOST_PARTS:
        raise InputError(
            f"{path}: row {row} has the part {largest}; expected 0 .. {partitioners.MOST_PARTS - 1}, for at most "
            f"{partitioners.MOST_PARTS:,} parts"
        )
    return max(1, largest + 1)


def _ordered(
    opened: GraphFile, present: Numbers, pattern: SymmetricEdges | None, method: str | None
) -> Numbers:
    """Return the user's ids in an order, int64 [N]. present: in the order of the file."""
    if method is None:
        return present
    if method == "none":
        return np.arange(opened.nodes, dtype=np.int64)
    if method == "degree":
        degree = np.empty(opened.nodes, np.int64)
        degree[present] = np.diff(opened.indptr())
        return order.by_degree(prefix_sum(degree))
    assert pattern is not None
    return order.permutation(Graph(opened.name, *pattern.whole(np.int32), directed=False), method)
