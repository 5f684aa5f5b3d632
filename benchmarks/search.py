"""The search for ps, dist and wpb on CPUs beside all settings, and starts that take known settings.

    python benchmarks/search.py
    python benchmarks/search.py --graphs rmat18,mesh --widths 64 -o search.json
    python benchmarks/search.py --graphs none --start rmat:19:16 --turns 8

Part "sums" is of float32 rows on one rank. The search of `mgg train` measures its own settings first, one call each.
Then every setting of the knobs is measured in turns, and the fastest four once more beside the found one, the default
and (1, 1, 1), where the paper's search begins. ``times_first`` is the time over that of the found setting.

Parts "process" and "epoch" are of a GCN whose rows all have 64 bytes. It is trained with plan.tune = "full", and one of
the settings found is kept for all of its aggregations. Then two runs take turns: one with plan.tune = "auto", which
takes that setting from a cache folder of its own, and one whose job file has it. Both must give the same losses.
"""

from __future__ import annotations

import json
import os
import statistics
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import real_graphs
from harness import command, run, workers
from harness.training import train

from mgg_hpc.data import generate, writer
from mgg_hpc.data.graph import Graph, csr_from_edges
from mgg_hpc.errors import InputError
from mgg_hpc.plan.tune import Setting, search
from mgg_hpc.runtime import cores
from mgg_hpc.runtime.backends import DEFAULT_GEOMETRY
from mgg_hpc.runtime.backends.arguments import BY_WIDTH, Geometry
from mgg_hpc.runtime.turns import ratios, take_turns
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.aggregate import Aggregation, drawn_rows
from mgg_hpc.tools.bench.epoch import Shape, labelled
from mgg_hpc.tools.bench.results import Results, numbers_of, output_files, words_of
from mgg_hpc.training.tuning.tuner import LONGEST, WORTHWHILE, cpu_knobs

FIRST = Geometry(1, 1, 1)  # where the paper's search begins
AGAIN = 4  # fastest settings that are measured twice
SHAPE = Shape(features=16, hidden=16, classes=16, dropout=0.5)  # all rows have 64 bytes
EPOCHS = 60


def mesh(side: int) -> Graph:
    """Return a grid of side x side nodes, each with an edge to and from its four neighbours."""
    node = np.arange(side * side).reshape(side, side)
    pairs = [(node[1:], node[:-1]), (node[:, 1:], node[:, :-1])]
    source, destination = (np.concatenate([pair[end].reshape(-1) for pair in pairs]) for end in (0, 1))
    return Graph("mesh", *csr_from_edges(source, destination, side * side, symmetric=True)[:2])


def stars(nodes: int, hubs: int, each: int) -> Graph:
    """Return nodes with ``each`` edges to and from some of a few hubs, and as many to and from others."""
    rng = np.random.default_rng(0)
    source = np.repeat(np.arange(nodes), 2 * each)
    ends = [rng.integers(count, size=(nodes, each)) for count in (hubs, nodes)]
    destination = np.concatenate(ends, axis=1).reshape(-1)
    return Graph("stars", *csr_from_edges(source, destination, nodes, symmetric=True)[:2])


GRAPHS: dict[str, Callable[[], Graph]] = {
    "rmat18": lambda: generate.rmat(18, 16, seed=0),
    "cnr_2000": lambda: real_graphs.read("cnr_2000"),
    "mesh": lambda: mesh(1024),
    "stars": lambda: stars(1 << 18, 16, 4),
    "sbm": lambda: generate.sbm(1 << 18, classes=64, features=0, degree=16.0, homophily=0.8, seed=0),
}


@command(__doc__)
@click.option("--graphs", "names", help=f'Of sums, or "none". [default: {",".join(GRAPHS)}]')
@click.option("--widths", default="16,64,256", show_default=True, help="Columns of rows.")
@click.option("--threads", type=click.IntRange(1), help="Of sums. [default: all cores]")
@click.option("--start", default="rmat:17:16", show_default=True, help='Graph of starts, or "none".')
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True, help="Of starts.")
@click.option(
    "--turns", type=click.IntRange(1), default=5, show_default=True, help="Twice as many of starts."
)
@output_files(pictures=False)
def main(
    names: str | None,
    widths: str,
    threads: int | None,
    start: str,
    ranks: int,
    turns: int,
    files: tuple[Path, ...],
) -> None:
    columns, threads = numbers_of("widths", widths), threads or cores.available()
    results = Results("search", threads=threads)
    asked = words_of("graphs", names or ",".join(GRAPHS), GRAPHS, none=True)
    drawn = GRAPHS.keys() - {"cnr_2000"}
    chosen = real_graphs.present(asked, results.notes, given=names is not None, drawn=drawn)
    begin = None if start == "none" else starting(start, ranks)
    try:
        for name in chosen:
            graph = GRAPHS[name]()
            for width in columns:
                compare_settings(results, name, graph, width, threads, turns)
                results.write(files)
        if begin is not None:
            compare_starts(results, start, begin, ranks, turns)
            results.write(files)
    finally:  # what was measured is printed, whatever ended the rest
        shown = ("median_ms", "times_first", "over_best_percent", "min_times", "max_times")
        results.show("graph", "part", "width", "settings", "points", "variant", *shown)


def starting(name: str, ranks: int) -> Graph:
    """Return the graph of starts. Raises InputError for one that is too small for plan.tune = "auto"."""
    graph = labelled(graphs.read(name), SHAPE)
    if graph.edges < WORTHWHILE * ranks:
        raise InputError(f"--start {name}: has {graph.edges:,} edges; expected {WORTHWHILE:,} for each rank")
    return graph


def compare_settings(results: Results, name: str, graph: Graph, width: int, threads: int, turns: int) -> None:
    """Search, then measure every setting; add a row for the found one, the best, the default and (1, 1, 1)."""
    rows = drawn_rows(graph.nodes, width, "float32")
    sums = Aggregation(graph, rows, weight=None, backend="serial", threads=threads)
    format = sums.rows.format
    knobs = cpu_knobs(DEFAULT_GEOMETRY, format)

    def geometry(setting: Setting) -> Geometry:
        return replace(DEFAULT_GEOMETRY, **dict(zip((knob.name for knob in knobs), setting, strict=True)))

    def ms(chosen: Geometry) -> float:
        sums.backend.retune(sums.plan, format, chosen)
        sums.sums()  # makes the schedule
        return 1e3 * sums.seconds(sums.sums)

    for _ in range(8):  # ways to sweep wide rows are tried in the first calls
        ms(DEFAULT_GEOMETRY)
    begin = tuple(getattr(DEFAULT_GEOMETRY, knob.name) for knob in knobs)
    found = search(knobs, lambda setting: ms(geometry(setting)) / 1e3, begin)
    every = {geometry(setting) for setting in product(*(knob.values for knob in knobs))}
    taken = take_turns({each: partial(ms, each) for each in [*every, FIRST]}, turns)
    median = {each: statistics.median(times) for each, times in taken.items()}
    chosen = geometry(found.best)
    # The least of so many medians is a lucky one: the first few are measured once more, beside what was found.
    again = {*sorted(every, key=median.__getitem__)[:AGAIN], chosen, DEFAULT_GEOMETRY, FIRST}
    taken |= take_turns({each: partial(ms, each) for each in again}, 2 * turns)
    median |= {each: statistics.median(taken[each]) for each in again}
    best = min(again - {FIRST}, key=median.__getitem__)
    variants = {"found": chosen, "best": best, "default": DEFAULT_GEOMETRY, "(1, 1, 1)": FIRST}
    more = {
        variant: {
            "wpb": each.wpb,
            "dist": dist_of(each.dist),
            "over_best_percent": round(100 * (median[each] / median[best] - 1), 2),
        }
        for variant, each in variants.items()
    }
    case = {"graph": name, "part": "sums", "width": width, "settings": len(every), "points": found.points}
    results.compare({variant: taken[each] for variant, each in variants.items()}, more, **case)
    sums.backend.memory.close()


def compare_starts(results: Results, name: str, graph: Graph, ranks: int, turns: int) -> None:
    """Add a row for runs that take a setting from the cache and for runs whose job file has it, process and epoch.

    Raises RuntimeError where runs do not train the same, or take nothing from the cache.
    """
    with workers.workspace() as folder:
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
        writer.write(folder / "graph.h5", graph)
        job = {"graph": {"file": "graph.h5"}, "model": {"hidden": SHAPE.hidden}}

        def trained(plan: dict[str, Any], epochs: int = EPOCHS) -> dict[str, Any]:
            more = {"train": {"epochs": epochs}, "plan": {"transfer": "direct", **plan}}
            return train(folder, job | more, ranks)

        trained({"tune": "full"}, LONGEST + 1)
        setting = kept_setting(folder / "cache" / "mgg-hpc" / "tuned")
        given = partial(trained, {"tune": "never", **setting})
        taken = take_turns({"job file": given, "cache": partial(trained, {"tune": "auto"})}, 2 * turns)
    losses = {each["final_loss"] for done in taken.values() for each in done}
    if len(losses) > 1 or not all(each["tuned"] for each in taken["cache"]):
        raise RuntimeError("the runs did not train the same, or took nothing from the cache")
    figures = {"process": lambda each: each["process_ms"], "epoch": lambda each: each["epoch_ms"]["median"]}
    for part, figure in figures.items():
        ms = {variant: list(map(figure, done)) for variant, done in taken.items()}
        spread = ratios(ms["cache"], ms["job file"])
        times = {f"{end}_times": round(spread[end], 4) for end in ("min", "max")}
        results.compare(ms, {"cache": times}, graph=name, part=part, ranks=ranks, **setting)


def kept_setting(tuned: Path) -> dict[str, Any]:
    """Return the setting of the first entry of a cache folder, after giving it to all others."""
    entries = sorted(tuned.glob("*.json"))
    chosen: dict[str, int] = json.loads(entries[0].read_text())["chosen"]
    for entry in entries:
        entry.write_text(json.dumps(json.loads(entry.read_text()) | {"chosen": chosen}))
    return {"ps": chosen["ps"], "dist": dist_of(chosen["dist"]), "wpb": chosen["wpb"]}


def dist_of(value: int) -> int | str:
    """Return the value of plan.dist in a job file."""
    return "auto" if value == BY_WIDTH else value


if __name__ == "__main__":
    run(main)
