"""The command generate, with a subcommand for each kind of synthetic graph."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click import FloatRange, IntRange, argument, option

from .options import Choice, Memory, Verbs, example, to_file, together


@click.group(
    short_help="Write a synthetic graph.",
    cls=Verbs,
    epilog=example(
        "mgg generate rmat --scale 14 -o rmat14.h5",
        "mgg generate sbm --nodes 10000 --classes 5 -o sbm.h5",
        "mgg generate like reddit --scale 0.1 -o reddit.h5",
    ),
)
def generate() -> None:
    """Write a synthetic graph. The same options, --seed among them, give the same file.

    Edges are drawn block by block and sorted within --memory, so a graph may be larger than that. Self loops and
    duplicates are dropped. The same command continues a command that was stopped.
    """


drawn = together(
    to_file("Graph file to write."),
    option("--memory", type=Memory, help="Memory to use, such as 2G. [default: half of the machine's]"),
    option("--seed", type=IntRange(0), default=0, help="Another seed gives another graph."),
)
random_rows = together(  # data that is independent of the edges
    option("--features", type=IntRange(0), default=0, help="Normal feature columns."),
    option("--classes", type=IntRange(0), default=0, help="Classes of random labels."),
)
directed_option = option("--directed", is_flag=True, help="Do not add the reverse of each edge.")
edge_factor_option = option("--edge-factor", type=IntRange(0), default=16, help="Drawn edges a node.")


@generate.command("rmat", epilog=example("mgg generate rmat --scale 16 --edge-factor 16 -o rmat16.h5"))
@option("--scale", type=IntRange(0, 40), required=True, help="Number of nodes: 2 to this power.")
@edge_factor_option
@option(
    "--probabilities",
    type=(float, float, float),
    default=(0.57, 0.19, 0.19),
    metavar="A B C",
    help="Probabilities of three quarters of the matrix.",
)
@directed_option
@random_rows
@drawn
def generate_rmat(probabilities: tuple[float, float, float], directed: bool, **options: Any) -> None:
    """A recursive-matrix graph: skewed degrees, as Graph500 has them."""
    quarters: dict[str, Any] = dict(zip("abc", probabilities, strict=True))
    _generate("rmat", **options, **quarters, symmetric=not directed)


@generate.command(
    "uniform", epilog=example("mgg generate uniform --nodes 100000 --edges 1000000 -o uniform.h5")
)
@option("--nodes", type=IntRange(1), required=True)
@option("--edges", type=IntRange(0), required=True, help="Edges to draw.")
@directed_option
@random_rows
@drawn
def generate_uniform(directed: bool, **options: Any) -> None:
    """A uniform random graph: any two nodes are as likely to have an edge as any others."""
    _generate("uniform", **options, symmetric=not directed)


@generate.command(
    "grid",
    epilog=example(
        "mgg generate grid --rows 1000 --columns 1000 -o plane.h5",
        "mgg generate grid --rows 100 --columns 100 --depth 100 --periodic -o torus.h5",
    ),
)
@option("--rows", type=IntRange(1), required=True)
@option("--columns", type=IntRange(1), required=True)
@option("--depth", type=IntRange(1), help="Layers, for a mesh of three dimensions.")
@option("--periodic", is_flag=True, help="Join the last node along each axis to the first one.")
@random_rows
@drawn
def generate_grid(rows: int, columns: int, depth: int | None, **options: Any) -> None:
    """A mesh of two or three dimensions, in which nodes have 4 or 6 neighbours."""
    _generate("grid", sides=(rows, columns, *([depth] if depth else [])), **options)


@generate.command("sbm", epilog=example("mgg generate sbm --nodes 10000 --classes 5 --features 32 -o sbm.h5"))
@option("--nodes", type=IntRange(1), required=True)
@option("--classes", type=IntRange(1), default=4)
@option("--features", type=IntRange(0), default=16)
@option("--degree", type=FloatRange(0), default=10.0, help="Mean degree.")
@option("--homophily", type=FloatRange(0, 1), default=0.8, help="Share of edges within a class.")
@drawn
def generate_sbm(**options: Any) -> None:
    """A stochastic block model: communities with features and labels to learn."""
    _generate("sbm", **options)


@generate.command(
    "like",
    epilog=example(
        "mgg generate like reddit --scale 0.1 -o reddit.h5",
        "mgg generate like products --features 16 --memory 4G -o products.h5",
    ),
)
@argument(
    "name",
    type=Choice(["reddit", "products", "proteins", "orkut", "enwiki", "papers100M"], case_sensitive=False),
)
@option("--scale", type=float, default=1.0, help="This many times its nodes and edges.")
@option("--features", type=IntRange(0), help="Feature columns. [default: as many as it has]")
@drawn
def generate_like(**options: Any) -> None:
    """A graph like a well-known one: as many nodes, edges, features and classes, and degrees as skewed.

    Its labels can be learned. docs/files.md says which numbers are published and which are assumed.
    """
    _generate("like", **options)


def _generate(kind: str, *, output: Path, force: bool, memory: int | None, **options: Any) -> None:
    from ..tools.generate import process_generate

    process_generate(kind, output, force=force, memory=memory, options=options)
