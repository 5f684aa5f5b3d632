"""The command `mgg traverse` and its options."""

from __future__ import annotations

from typing import Any

import click
from click import IntRange, argument, option

from .options import Choice, Existing, Finite, Output, Verbs, example, together

_shared = together(
    argument("graph", type=Existing),
    option(
        "-o",
        "--output",
        type=Output,
        help="File for the results: .h5, .npy, .csv or .parquet. [default: none]",
    ),
    option("--force", is_flag=True, help="Replace the output if it exists."),
    option("--json", "as_json", is_flag=True, help="Print JSON."),
    option("--verbose", "-v", is_flag=True, help="Print also speed, steps and what crosses between ranks."),
    option("--check/--no-check", "check", default=True, help="Check each result by another route."),
    option(
        "--backend",
        type=Choice(["cpu", "serial", "shm", "shmem", "cuda"]),
        default="cpu",
        help="cpu: that of CPUs which fits the ranks; cuda: a GPU for each rank.",
    ),
    option(
        "--edges",
        type=Choice(["device", "host"]),
        default="device",
        help="With cuda: edges in the GPU's memory, or in the host's, where kernels read them (zero-copy).",
    ),
    option("--share-gpu", is_flag=True, help="With cuda: let several ranks drive one GPU."),
)
_from_sources = together(
    option(
        "--source",
        "nodes",
        multiple=True,
        metavar="NODE",
        help="Node to begin at: its name or id in a graph imported with --map-ids, else its number; repeatable.",
    ),
    option("--sources", type=IntRange(1), help="Draw so many nodes to begin at. [default: 1]"),
    option("--seed", type=IntRange(0, 2**63 - 1), default=0, help="Seed of what is drawn."),
)
_repeated = option("--repeats", type=IntRange(1), default=1, help="Times to run, for measurements.")


@click.group(
    cls=Verbs,
    short_help="Search, measure distances, find components, rank nodes.",
    epilog=example(
        "mgg traverse bfs cora.h5 --source 0 -o depths.h5",
        "mgg traverse sssp roads.h5 --sources 64",
        "mgg launch -n 4 traverse cc graph.h5 -o components.h5",
        "mgg traverse pagerank links.h5 -o ranks.h5",
    ),
)
def traverse() -> None:
    """Traverse a graph file on this rank, or on all ranks of mpirun or srun.

    Each result is checked by another route before it is written.
    """


@traverse.command(
    epilog=example(
        "mgg traverse bfs cora.h5 --source 0 -o out.h5", "mgg traverse bfs g.h5 --sources 64 --json"
    )
)
@_shared
@_from_sources
def bfs(**options: Any) -> int:
    """Search breadth-first: /parent and /depth of each node, -1 if it is not reached.

    With several sources the arrays have a column for each; in tables the source ends the column's name
    (depth_7).
    """
    return _process("bfs", options)


@traverse.command(
    epilog=example("mgg traverse sssp roads.h5 --source 7 -o out.h5", "mgg traverse sssp g.h5 --sources 64")
)
@_shared
@_from_sources
@option(
    "--width",
    type=Finite(1e-30, 1e30),
    help="On CPUs: distance that a bucket spans (delta of delta-stepping). [default: the mean length]",
)
@option(
    "--random-lengths",
    is_flag=True,
    help="Draw lengths by --seed, integers from 8 to 72, whatever the weights.",
)
def sssp(**options: Any) -> int:
    """Find shortest paths: /distance of each node, inf where there is no path.

    Lengths are the edges' weights, of at least 0, or 1 in a file without weights.
    """
    return _process("sssp", options)


@traverse.command(epilog=example("mgg traverse cc graph.h5 -o components.h5"))
@_shared
@_repeated
def cc(**options: Any) -> int:
    """Find connected components of an undirected graph: /component, the smallest node in a node's component."""
    return _process("cc", options)


@traverse.command(
    epilog=example(
        "mgg traverse pagerank links.h5 -o ranks.h5",
        "mgg traverse pagerank links.h5 --tolerance 1e-10 --dtype float64",
    )
)
@_shared
@_repeated
@option("--damping", type=Finite(0, 1, min_open=True, max_open=True), default=0.85)
@option(
    "--tolerance",
    type=Finite(0, min_open=True),
    default=1e-6,
    help="Iterate until ranks change by less, summed over all nodes.",
)
@option("--iterations", type=IntRange(1), default=1000, help="Iterations at most.")
@option("--dtype", type=Choice(["float32", "float64"]), default="float32", help="Type of the ranks.")
@option("--unweighted", is_flag=True, help="Ignore the edges' weights.")
def pagerank(**options: Any) -> int:
    """Rank nodes by PageRank: /rank, which sums to 1. Nodes without out-edges give their rank to all.

    A node's rank is divided among its out-edges by their weights, of at least 0, or evenly in a file without weights.
    """
    return _process("pagerank", options)


def _process(kind: str, options: dict[str, Any]) -> int:
    from ..tools.traverse import process_traverse

    return process_traverse(kind, **options)
