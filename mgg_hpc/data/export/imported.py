"""Graph files with the rows in the numbering in which they were imported."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import checks, schema
from ..assembly import build_graph
from ..graph import Graph
from ..readers.graph_file import renumbered
from ..readers.limits import check_memory
from ..store import GraphFile, open_graph

PIECE = 8 << 20  # bytes that a pass reads at a time

Progress = Callable[[str, int, int], None]


@contextmanager
def in_imported_order(
    path: str | os.PathLike[str],
    folder: Path | None = None,
    *,
    memory: int,
    progress: Progress | None = None,
) -> Iterator[GraphFile]:
    """Yield a graph file whose row i is node i as it was imported.

    A file whose rows were renumbered is written anew in a temporary folder within ``folder`` (the system's without
    one), in so many bytes of memory. Raises InputError where `open_graph` and `build_graph` do.
    """
    with open_graph(path) as opened:
        if schema.PERMUTATION not in opened.contents.datasets:
            yield opened
            return
        ids = np.concatenate(list(pieces(opened, schema.PERMUTATION)))
        checks.original_ids(opened.where, ids, 0, opened.nodes)
        order = np.empty_like(ids)
        order[ids] = np.arange(len(ids))
        with tempfile.TemporaryDirectory(prefix=".mgg_export_", dir=folder) as held:
            target, window = Path(held) / "imported.h5", memory // 8
            build_graph(
                renumbered(opened, order, None, memory=window),
                target,
                memory=memory - window,
                index=opened.index_dtype,
                progress=progress,
            )
            with open_graph(target) as again:
                yield again


def pieces(opened: GraphFile, path: str) -> Iterator[NDArray[Any]]:
    """Start a pass over a dataset. Raises InputError for a block whose digest differs."""
    layout = opened.contents.datasets[path]
    step = max(1, PIECE // max(1, layout.row_bytes))
    with opened.compared():
        for low in range(0, layout.shape[0], step):
            yield opened.checked(path, low, min(low + step, layout.shape[0]))


def whole(opened: GraphFile) -> Graph:
    """Return a graph file as a graph in memory, in the numbering of the file.

    Raises InputError where `GraphFile.slice` does, and for a graph that is larger than memory.
    """
    size = sum(layout.nbytes for layout in opened.contents.datasets.values())
    check_memory(opened.where, size)
    rows = opened.slice(0, opened.nodes)
    return Graph(
        name=opened.name,
        indptr=rows.indptr,
        indices=rows.indices,
        weight=rows.weight,
        x=rows.x,
        y=rows.y,
        train=rows.train,
        val=rows.val,
        test=rows.test,
        directed=opened.directed,
        classes=opened.classes,
        edge=rows.edge,
    )
