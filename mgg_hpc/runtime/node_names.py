"""Names of nodes for results, in text of one length on all ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..data import row_files
from ..data.store import open_graph
from ..errors import InputError
from . import cores, mpi

COPIES = 3  # of the names that may be in memory at once


def read(comm: Any, path: Path, low: int, high: int) -> row_files.Arrays:
    """Return the names of a graph file's rows low .. high - 1 by `row_files.kind_of_names`, if it has any. Collective.

    Raises InputError, the same on all ranks, for names that are not UTF-8, damaged, or do not fit into memory.
    """
    with mpi.agree(comm), open_graph(path) as opened:
        kind, longest = row_files.kind_of_names(opened.contents), row_files.longest_name(opened, low, high)
    width = max(1, *comm.allgather(longest))
    ranks = mpi.node(comm).Get_size()
    with mpi.agree(comm), open_graph(path) as opened:
        needed, free = COPIES * width * (high - low), cores.memory_available() // ranks
        if needed > free:
            raise InputError(
                f"{path}: the longest name of a node has {width:,} bytes, and with as much for each node a rank needs "
                f"{needed / 2**30:.1f} GiB, of which {free / 2**30:.1f} GiB are free; give that node a shorter name"
            )
        names = row_files.read_names(opened, low, high, width)
    return {} if names is None else {kind: names}
