"""Renumber the rows of a graph file in bounded memory: the file is built again from its own edges and rows."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ...data.assembly import build_graph
from ...data.assembly.graph import LEAST_MEMORY
from ...data.readers.graph_file import NumberedEdges, renumbered
from ...data.store import GraphFile
from ...data.writer import Partition
from ...errors import InputError
from ...plan import order
from ..terminal import phases

NODE_BYTES = (
    48  # of the arrays of a node that are held: an order, its inverse, ids, offsets of rows, old and new
)


def free_memory(opened: GraphFile, memory: int) -> int:
    """Return the bytes of ``memory`` beside the arrays that have a number for each node.

    Raises InputError if they are too few for a build.
    """
    free = memory - NODE_BYTES * opened.nodes
    least = LEAST_MEMORY * 8 // 7 + 1
    if free < least:
        needed = least + NODE_BYTES * opened.nodes
        raise InputError(
            f"{opened.where}: renumbering {opened.nodes:,} nodes takes {-(-needed >> 20):,} MiB of memory at least, "
            f"and has {memory >> 20:,} MiB: give more by --memory"
        )
    return free


def rewrite(
    opened: GraphFile,
    moved: NDArray[np.int64],
    ids: NDArray[np.int64] | None,
    *,
    label: str,
    partitions: Sequence[Partition],
    memory: int,
) -> None:
    """Replace a graph file by the same graph with old row moved[i] as row i.

    ids: int64 [N], the user's id of each new row; None where these are the row numbers. label: the method that is
    recorded. memory: bytes to use, as `free_memory` has them. Raises InputError where `build_graph` does.
    """
    window = memory // 8
    with phases() as report:
        build_graph(
            renumbered(opened, moved, ids, memory=window),
            opened.path.resolve(),
            memory=memory - window,
            force=True,
            order=label if ids is not None else "",
            identity=opened.uuid if ids is not None else "",
            ranges=lambda indptr: partitions,
            index=opened.index_dtype,
            progress=report,
        )


def localities(opened: GraphFile, place: NDArray[np.int64]) -> tuple[order.Locality, order.Locality]:
    """Return how near the ends of edges are now, and once rows have the numbers ``place``, int64 [N]."""
    now, then = order.LocalityMeter(), order.LocalityMeter()
    for block in NumberedEdges(opened, None, data=False).blocks():
        now.add(block.destinations, block.sources)
        then.add(place[block.destinations], place[block.sources])
    return now.result(), then.result()
