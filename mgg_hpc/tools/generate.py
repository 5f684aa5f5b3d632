"""Write synthetic graphs to files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..data.atomic_write import check_output
from ..data.generate import rmat, sbm
from ..data.graph import Graph
from ..data.writer import write
from ..errors import InputError
from ..runtime import cores
from .files import tell_written
from .terminal import waiting

BYTES_PER_DRAWN_EDGE = 96  # measured peak memory of sorting drawn edges into a CSR


def process_generate(kind: str, output: Path, *, force: bool, options: dict[str, Any]) -> None:
    """Write a synthetic graph. kind: "rmat" or "sbm". options: the arguments of `generate.rmat` or `generate.sbm`."""
    check_output(output, force=force)
    make: Callable[..., Graph] = rmat if kind == "rmat" else sbm
    if kind == "rmat":
        nodes, feature_bytes = 1 << options["scale"], 4 * options["features"]
        drawn = nodes * options["edge_factor"]
    else:
        nodes, feature_bytes = options["nodes"], 8 * options["features"]
        drawn = int(nodes * options["degree"] / 2)
    needed, installed = drawn * BYTES_PER_DRAWN_EDGE + nodes * (16 + feature_bytes), cores.memory_total()
    if needed > installed:
        raise InputError(
            f"this graph takes about {needed / 2**30:,.1f} GiB to generate; "
            f"the machine has {installed / 2**30:,.1f} GiB: choose a smaller one"
        )
    with waiting("generating"):
        graph = make(**options)
        write(output, graph, force=force)
    tell_written(output, graph)
