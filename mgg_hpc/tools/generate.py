"""Write synthetic graphs to files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ..data import generate
from ..data.assembly import build_graph
from ..data.assembly.graph import LEAST_MEMORY
from ..data.atomic_write import check_output
from ..data.generate import Drawn
from ..data.graph import index_dtype
from ..data.libraries import check_name
from ..errors import InputError
from ..runtime import cores
from ..sizes import shown
from .files import tell_written
from .terminal import phases

IDS_SORTED = (
    2  # ids of an edge that are stored while edges are sorted, on disk if they do not fit into memory
)


def process_generate(
    kind: str, output: Path, *, force: bool, memory: int | None, options: dict[str, Any]
) -> None:
    """Write a synthetic graph.

    Args:
        kind: rmat, uniform, grid, sbm or like.
        memory: bytes to use. [default: half of the machine's]
        options: arguments of ``draw_KIND`` of `data.generate`.

    Raises InputError for a graph that needs more memory or disk space than there is.
    """
    check_name(output)
    check_output(output, force=force)
    drawn: Drawn = getattr(generate, f"draw_{kind}")(**options)
    memory = (memory or cores.memory_total() // 2) - drawn.held
    if memory < LEAST_MEMORY:
        needed = -(-(drawn.held + LEAST_MEMORY) >> 20)
        raise InputError(
            f"drawing this graph takes {shown(drawn.held)} for its nodes and {shown(LEAST_MEMORY)} or more for its "
            f"edges, but the memory to use is {shown(memory + drawn.held)}: give --memory {needed}M or more, or draw a "
            "smaller graph"
        )
    _check_room(drawn, output, memory)
    key = json.dumps([kind, {name: str(value) for name, value in options.items()}], sort_keys=True)
    with phases(output) as report:
        held = build_graph(
            drawn.imported,
            output,
            memory=memory,
            symmetric=drawn.symmetric,
            simple=True,
            force=force,
            key=key,
            progress=report,
        )
    tell_written(output, held)


def _check_room(drawn: Drawn, output: Path, memory: int) -> None:
    """Raise InputError if the disk has no space for the file, and for the edges that do not fit into memory."""
    edges, rows = drawn.imported.edges, drawn.imported.rows
    assert edges.nodes is not None and not callable(rows)
    stored = drawn.most_edges * (2 if drawn.symmetric else 1)
    ids = stored * index_dtype(edges.nodes)().itemsize
    file = ids + 8 * (edges.nodes + 1) + sum(each.layout.nbytes for each in rows.values())
    sorting = IDS_SORTED * ids
    needed = file + (sorting if sorting > memory else 0)
    device = os.statvfs(output.resolve().parent)
    free = device.f_bavail * device.f_frsize
    if device.f_blocks and needed > free:  # file systems such as /proc have no blocks
        raise InputError(
            f"this graph of {edges.nodes:,} nodes and up to {stored:,} edges takes up to {shown(needed)} on disk; "
            f"{output.resolve().parent} has {shown(free)} free: choose a smaller one, or another folder"
        )
