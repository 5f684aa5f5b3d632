"""Variants of exchanging rows and summing them (OSDI '23, figures 7 to 10; arXiv, figure 2 and table 1).

    python benchmarks/studies/exchanges.py partitioning rmat:17 --ranks 1 --threads 2 -o partitioning.png
    python benchmarks/studies/exchanges.py interleaving rmat:17 -o interleaving.csv -o interleaving.png
    python benchmarks/studies/exchanges.py primitives rmat:17 --widths 16,64
    python benchmarks/studies/exchanges.py transfers rmat:17 --widths 16,64,256
    python benchmarks/studies/exchanges.py transfers --device cuda --share 0 --share 0.1 --share 0.2 -o overlap.svg

partitioning: destinations that are split, or summed whole. A thread claims a block of ps x wpb edges at once; a
destination of more than four blocks is a hub, whose parts threads share. interleaving: local rows are summed while
remote ones arrive, after that, or by separate threads. primitives: the calls by which a remote row is asked for.
transfers, also on a GPU: each transfer, and the parts of a halo, each without the other:

    hidden share = (sums + exchange - halo) / min(sums, exchange)

is 0 where one waits for the other, and 1 where the shorter one costs nothing. ``link_mbit`` is the rate of a link
between ranks at which the exchange would take as long as the sums (two_hosts.py has slow links).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

sys.path.insert(0, str(Path(__file__).parents[1]))

from harness import command, options, run
from harness.plots import draw
from harness.ranks import Subject, Variant
from harness.results import Results
from harness.study import BULK, DIRECT, GET, HALO, SHOWN, Study, conditions, finish, measured

from mgg_hpc.errors import InputError
from mgg_hpc.plan.overlap import hidden_share
from mgg_hpc.runtime import exit_code
from mgg_hpc.runtime.timing import spread

UNCUT = 2**30  # edges of a partition, in which no destination is split
ALL_GATHER, SUMS, EXCHANGE = (
    "all-gather, then sums (NCCL's whole partitions)",
    "sums alone",
    "halo's exchange alone",
)


def pointers(subject: Any) -> dict[str, Variant]:
    """Return the variant DIRECT where pointers lead to the rows of all ranks."""
    return {DIRECT: subject.variant("direct")} if subject.reaches_peers else {}


def partitioning(subject: Any) -> Mapping[str, Variant]:
    """Return the variants of cutting the work of CPUs."""
    usual = subject.geometry
    small, tiny, one, whole = (replace(usual, ps=ps, wpb=1) for ps in (256, 16, 1, UNCUT))
    transfer = "direct" if subject.reaches_peers else "get"
    return {
        f"blocks of {usual.ps * usual.wpb:,} edges, larger hubs split": subject.cut(transfer, usual),
        "blocks of 256 edges, larger hubs split": subject.cut(transfer, small, hubs=small),
        "blocks of 16 edges, larger hubs split": subject.cut(transfer, tiny, hubs=tiny),
        "blocks of 256 edges, destinations whole": subject.cut(transfer, small, hubs=whole),
        "a whole destination a block (no partitioning)": subject.cut(transfer, one, hubs=whole),
    }


def interleaving(subject: Any) -> Mapping[str, Variant]:
    """Return the variants of summing local and remote rows."""
    usual, found = subject.geometry, {HALO: subject.variant("halo"), BULK: subject.variant("bulk")}
    found["halo, local and remote on separate threads"] = subject.separate("halo")
    if direct := pointers(subject):
        found |= direct
        found["direct, nothing fetched ahead"] = subject.cut("direct", replace(usual, dist=0))
        found["direct, local and remote on separate threads"] = subject.separate("direct")
    return found


def primitives(subject: Any) -> Mapping[str, Variant]:
    """Return the variants of asking for remote rows."""
    usual = subject.geometry
    sizes = {
        "get: rows of one destination at a time": replace(usual, ps=1, wpb=1),
        "get: rows of 64 edges at a time": replace(usual, ps=64, wpb=1),
        f"get: rows of {usual.ps * usual.wpb:,} edges at a time": usual,
    }
    gets = {name: subject.cut("get", geometry) for name, geometry in sizes.items()}
    return pointers(subject) | gets | {HALO: subject.variant("halo"), BULK: subject.variant("bulk")}


def transfers(subject: Any) -> Mapping[str, Variant]:
    """Return the variants of exchanging rows, and their parts."""
    names = {HALO: "halo", BULK: "bulk", DIRECT: "direct", GET: "get", ALL_GATHER: "all-gather"}
    names |= {SUMS: "sum", EXCHANGE: "exchange", "all-gather alone": "all-gather alone"}
    if not subject.reaches_peers:
        del names[DIRECT]
    if not isinstance(subject, Subject):
        del names[ALL_GATHER], names["all-gather alone"]
        if not subject.plans[0].remote_edges:
            del names[EXCHANGE]
    return {shown: subject.variant(name) for shown, name in names.items()}


STUDIES: dict[str, Callable[[Any], Mapping[str, Variant]]] = {
    each.__name__: each for each in (partitioning, interleaving, primitives, transfers)
}


def parts(ms: Mapping[str, list[float]], more: dict[str, dict[str, Any]], ranks: int) -> None:
    """Add the hidden share to a halo's columns, and ``link_mbit`` to its exchange's, where both parts were measured."""
    if SUMS in ms and more.get(EXCHANGE, {}).get("crossing_bytes"):
        halo, summing, moving = (spread(ms[name])["median"] for name in (HALO, SUMS, EXCHANGE))
        more[HALO]["hidden_share"] = round(hidden_share(summing, moving, halo), 4)
        each = 8 * more[EXCHANGE]["crossing_bytes"] / ranks  # bits that a rank sends
        more[EXCHANGE]["link_mbit"] = round(each / summing / 1e3, 1)


@command(__doc__)
@click.argument("name", type=click.Choice(list(STUDIES)), metavar=f"[{'|'.join(STUDIES)}]")
@options.numbers("widths", "64", "Columns of rows.")
@measured()
def main(name: str, widths: list[int], study: Study) -> None:
    if study.device == "cuda" and name != "transfers":
        raise InputError(f"{name}: measured on CPUs only")
    results = Results(name)
    for width in sorted(widths, reverse=True):  # OpenSHMEM's heap has the size of the first one's
        for share in study.shares:
            subject = study.subject(width, share)
            results.same, counts = conditions(study.graph, subject)
            ms, more = subject.measure(STUDIES[name](subject), study.turns)
            parts(ms, more, len(subject.counts))
            results.compare(ms, more, width=width, **counts)
            subject.close()
            if exit_code.is_first():
                results.write(study.files, draw)  # what is measured stays, whatever ends the rest
    results.rows.sort(key=lambda row: widths.index(row["width"]))
    finish(results, study.files, ("remote_share", *SHOWN, "hidden_share", "link_mbit"))


if __name__ == "__main__":
    run(main)
