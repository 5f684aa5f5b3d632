"""How much of fetching remote rows hides behind sums on one GPU, which plays two PEs, by the share of remote rows.

    python benchmarks/studies/remote_share.py
    python benchmarks/studies/remote_share.py uniform:20:16 --width 64 --shares 0.05,0.1,0.2 -o overlap.svg

The second PE's rows lie in page-locked memory of the host (harness/pes.py). Sums and exchange are measured alone, too:

    hidden share = (sum + exchange - halo) / min(sum, exchange)

is 0 where one waits for the other, and 1 where the shorter one costs nothing. The figure that counts is the one where
sums and exchange take about as long.
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import command, pes, run
from harness.plots import lines_by

from mgg_hpc.errors import InputError
from mgg_hpc.plan.overlap import hidden_share
from mgg_hpc.runtime.turns import spread
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.results import Results, output_files

WAYS = {
    "halo: each remote row once, sums meanwhile (ours)": "halo",
    "get: by warps, dist stages ahead (ours)": "get",
    "bulk exchange, then sums (as ROC, DGCL)": "bulk",
    "direct over pinned rows (as DGL's zero-copy)": "direct",
    "sums alone, all rows on the GPU": "sum",
    "halo's exchange alone": "exchange",
}
SHOWN = (
    "remote_share",
    "variant",
    "median_ms",
    "min_ms",
    "max_ms",
    "times_first",
    "hidden_share",
    "crossing_bytes",
)


@command(__doc__)
@click.argument("graph", default="uniform:20:16")
@click.option(
    "--width", type=click.IntRange(1, 65536), default=128, show_default=True, help="Columns of rows."
)
@click.option(
    "--shares", default="0,0.01,0.02,0.05,0.1,0.2,0.3,0.5", show_default=True, help="Of remote rows."
)
@click.option(
    "--turns", type=click.IntRange(1), default=9, show_default=True, help="Measurements of each variant."
)
@output_files()
def main(graph: str, width: int, shares: str, turns: int, files: tuple[Path, ...]) -> None:
    read = graphs.read(graph)
    results = Results("remote-share", graph=read.name, edges=read.edges, width=width)
    for share in shares_of(shares):
        subject = pes.Subject(read, width, share)
        ways = {name: way for name, way in WAYS.items() if way != "exchange" or subject.plans[0].remote_edges}
        ms, more = subject.measure({name: subject.way(way) for name, way in ways.items()}, turns)
        columns = subject.columns()
        results.same["gpu"] = columns.pop("device")
        if len(ways) == len(WAYS):
            halo, _, _, _, sums, exchange = (spread(taken)["median"] for taken in ms.values())
            more[next(iter(WAYS))]["hidden_share"] = round(hidden_share(sums, exchange, halo), 4)
        results.compare(ms, more, **columns)
        results.write(files, lines_by("remote_share"))
    results.show(*SHOWN)


def shares_of(words: str) -> list[float]:
    """Return the shares of a comma-separated list. Raises InputError for a word that is no share."""
    try:
        found = sorted({float(word) for word in words.split(",")})
    except ValueError:
        found = [-1.0]
    if not all(0 <= each < 1 for each in found):
        raise InputError(f"--shares {words}: expected numbers from 0 to less than 1, such as 0,0.05,0.1")
    return found


if __name__ == "__main__":
    run(main)
