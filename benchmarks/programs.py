"""Programs on vertices and edges beside other libraries: steps of whole programs, and products by density.

    make bench-peers PYTHON=python3.11                       # once
    python benchmarks/programs.py --json programs.json       # fused and density
    python benchmarks/programs.py --parts schedules,overlap,ring --graphs rmat:15 --turns 3
    python benchmarks/programs.py --parts fused --programs gated --graphs rmat:14 --peers dgl --turns 3
    python benchmarks/programs.py --parts density --plot density.png

fused: a forward and a backward pass, with gradients of the rows and all weights, of G-GCN's gated sum, a gated maximum
and GG-NN's sum by types of edges: ours fused, ours with tensors of edges (fuse = False), and other libraries with all
products at vertices, each by its fastest form: DGL with int32 and int64 ids, PyG over an edge list, an EdgeIndex and a
CSR tensor. Results and gradients are compared. Memory is a process's peak in its first step, beyond its operands.
density: NGra's figure 13, a sparse matrix times a dense one, by a program's fused aggregation, MKL and torch.
GCN and a gated GCN on graphs that stream from slow stores (--rate): by schedules of sums (schedules, figure 14), with
and without loads ahead (overlap), and on --ranks that pass chunks on or load for themselves (ring, figure 16).

Libraries take turns (A B A B), each in a process of its own, with as many threads. --plot draws a picture for each
part, and puts the part's name before the ending where there are several.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import real_graphs
from ngra import density, fused
from ngra.parts import PARTS, PEERS, Request, measured

from mgg_hpc.errors import WRONG_INPUT, InputError
from mgg_hpc.tools.bench.harness import document
from mgg_hpc.tools.bench.harness.options import BenchOptions, numbers_of, words_of


@click.command(help=__doc__.partition("\n")[0])
@click.option("--parts", default="fused,density", show_default=True, help="Which, separated by commas.")
@click.option(
    "--graphs",
    "names",
    default="blogcatalog_asu,rmat:17",
    show_default=True,
    help="Of all parts but density.",
)
@click.option("--programs", default=",".join(fused.PROGRAMS), show_default=True, help="Of the part fused.")
@click.option("--width", type=click.IntRange(1), default=fused.WIDTH, show_default=True, help="Of rows.")
@click.option(
    "--nodes", type=click.IntRange(1), default=density.NODES, show_default=True, help="Of the part density."
)
@click.option(
    "--rate", type=click.FloatRange(0), default=0.0, help="GB/s of slow stores. [default: each part's]"
)
@click.option("--ranks", default="2,4", show_default=True, help="Of the part ring; a thread each.")
@click.option("--threads", type=click.IntRange(1), default=2, show_default=True)
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True)
@click.option("--peers", default=",".join(PEERS), show_default=True, help='Other libraries, or "none".')
@click.option(
    "--peers-env", type=click.Path(path_type=Path), help="Their environment. [default: .venv-peers]"
)
@click.option("--json", type=click.Path(path_type=Path), help="Write the figures to this file too.")
@click.option("--table", type=click.Path(path_type=Path), help="Write the tables to this file too.")
@click.option("--plot", type=click.Path(path_type=Path), help="Draw pictures into this file.")
def main(parts: str, names: str, programs: str, peers: str, ranks: str, **others: Any) -> None:
    """Measure, print and write."""
    more = {name: others.pop(name) for name in ("width", "nodes", "rate")}
    options = BenchOptions(pages="huge", peers=peers, **others)
    try:
        options.check_files()
        chosen = words_of("parts", parts, PARTS)
        request = Request(
            options=options,
            graphs=[real_graphs.structure(name) for name in names.split(",")]
            if set(chosen) - {"density"}
            else [],
            programs=words_of("programs", programs, fused.PROGRAMS),
            peers=words_of("peers", peers, PEERS, none=True),
            ranks=numbers_of("ranks", ranks),
            **more,
        )
        results = {part: measured(part, request) for part in chosen}
    except InputError as error:
        click.echo(f"programs: error: {error}", err=True)
        sys.exit(WRONG_INPUT)
    rows = {part: rows for part, (rows, _) in results.items()}
    sheets = [PARTS[part].sheet(rows[part]) for part in chosen]
    notes = [note for _, about in results.values() for note in about["notes"]]
    found = {**next(iter(results.values()))[1], "notes": notes, **rows}
    abouts = [
        about for _, about in results.values() if "contestants" in about
    ]  # of parts that compare libraries
    if abouts:
        found |= abouts[0] | {"notes": notes}
        found["contestants"] = {name: said for about in abouts for name, said in about["contestants"].items()}
    document.finish(found, sheets, options)
    if options.plot:
        for part in chosen:
            path = options.plot if len(chosen) == 1 else options.plot.with_stem(f"{options.plot.stem}-{part}")
            PARTS[part].draw(rows[part], found, path)


if __name__ == "__main__":
    main()
