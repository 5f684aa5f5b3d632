"""The share of an exchange of rows that sums hide: every way of exchanging, in turns, and the parts of a halo.

    python benchmarks/overlap.py rmat:17:16 --ranks 2 --width 64
    mgg launch -n 2 benchmarks/overlap.py my.h5 --ways halo,bulk,get -o overlap.json
    python benchmarks/overlap.py --hosts link,gigabit,threads --turns 15 -o overlap.json -o overlap.md

"sum" and "exchange" are the parts of a halo, each without the other, and

    hidden share = (sum + exchange - halo) / min(sum, exchange)

is 0 where one waits for the other, and 1 where the shorter one costs nothing.

--hosts measures on two hosts made of network namespaces (as root), with one rank of one thread each: "link" slows their
link down until the exchange alone takes as long as the sums alone, and "gigabit" to 1 Gbit/s. "threads" compares one
rank of two threads with two ranks of one, on this host. ``unthrottled_ms`` and ``unthrottled_cpu_ms`` are of the
link as it is. ``bound`` is the hidden share if nothing but the sums and that CPU time took time. Where
``exchange_over_sums`` is further than a tenth from 1 after six tries, a note says that the link is not matched.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import click
import two_hosts
from harness import children, command, run
from harness.plots import bars_by
from harness.ranks import Subject
from harness.study import ON_CPU, conditions, finish, on_ranks, read, start
from real_graphs import data_folder

from mgg_hpc.errors import InputError
from mgg_hpc.plan.overlap import hidden_share
from mgg_hpc.runtime import mpi
from mgg_hpc.tools.bench import graphs
from mgg_hpc.tools.bench.results import Results, Row, words_of

WAYS = ("halo", "bulk", "direct", "get", "all-gather")
PHASES = ("sum", "exchange")  # of a halo, each without the other
PARTS = ("link", "gigabit", "threads")
WIDTHS = (16, 64, 128, 256)  # of "threads"
SECONDS = 300  # of a run on hosts
MATCHED, TRIES = 0.1, 6  # how far exchange and sums may be apart on the slowed link, relative
SHOWN = ("variant", "median_ms", "min_ms", "max_ms", "cpu_ms", "times_first", "crossing_bytes")
DRAW = bars_by("case", "graph", "width")
SHARES = ("times_first", "hidden_share", "bound", "exchange_over_sums", "auto_over_best", "link_mbit")


@command(__doc__)
@click.argument("graph", required=False)
@click.option("--width", type=click.IntRange(1, 65536), default=64, help="Columns of rows. [default: 64]")
@click.option("--ways", default=",".join(WAYS), help="Of exchanging; all are compared with the first.")
@click.option("--hosts", help=f"Measure on two hosts: some of {', '.join(PARTS)}.")
@on_ranks()
def main(
    graph: str | None,
    width: int,
    ways: str,
    hosts: str | None,
    ranks: int,
    turns: int,
    files: tuple[Path, ...],
    **launch_options: Any,
) -> int | None:
    chosen = words_of("ways", ways, WAYS)
    graphs.check(graph or ON_CPU)
    if hosts is not None:
        on_hosts(graph, words_of("hosts", hosts, PARTS), turns, files)
        return None
    if (code := start(ranks)) is not None:
        return code
    whole = read(graph or ON_CPU)
    # The choice takes memory for halos.
    subject = Subject(mpi.world(), whole, width, halos=3, **launch_options)
    choice = subject.choice()
    chosen = [way for way in chosen if way != "direct" or subject.reaches_peers]
    ms, more = subject.measure({way: subject.way(way) for way in (*chosen, *PHASES)}, turns)
    same, counts = conditions(whole, subject)
    results = Results("overlap", **same, width=width, transfer=str(choice))
    results.compare(ms, more, **counts)
    results.notes.append(f"auto takes {choice} ({choice.why})")
    if "halo" in ms and subject.remote_edges:
        hidden = hidden_share(*(median(ms[way]) for way in (*PHASES, "halo")))
        results.rows[list(ms).index("halo")]["hidden_share"] = round(hidden, 4)
        results.notes.append(f"hidden share {hidden:.2f}")
    subject.close()
    finish(results, files, DRAW, SHOWN)
    return None


def on_hosts(graph: str | None, parts: Sequence[str], turns: int, files: Sequence[Path]) -> None:
    """Measure on two hosts, and this one by itself. Raises InputError where no hosts can be made."""
    if mpi.launched():
        raise InputError("--hosts starts its ranks itself, without a launcher")
    cnr = str(data_folder() / "cnr_2000" / "cnr_2000.npz")
    results, given = Results("overlap on hosts"), [graph] if graph else []
    with ExitStack() as stack:
        if set(parts) != {"threads"}:
            if lacking := two_hosts.missing():
                raise InputError(f"--hosts: two hosts need {lacking}")
            hosts = stack.enter_context(two_hosts.connect())
        for part in parts:
            usual = {"link": ["rmat:17:16", "rmat:17:64"], "gigabit": [cnr], "threads": ["rmat:18:16", cnr]}
            for name in given or usual[part]:
                if part == "link":
                    on_matched_link(results, hosts, name, turns)
                elif part == "gigabit":
                    results.rows += on_gigabit(hosts, name, turns)
                else:
                    results.rows += ranks_and_threads(name, turns)
                results.write(files, DRAW)  # what is measured stays, whatever ends the rest
    shown = ("case", "graph", "width", "variant", "median_ms", *SHARES)
    results.show(*(name for name in shown if any(name in row for row in results.rows)))


def rows_of(*words: object, hosts: two_hosts.Hosts | None = None) -> dict[str, Row]:
    """Return the rows of this script by variant. hosts: on them, with one rank of one thread each.

    Raises InputError where it fails.
    """
    with tempfile.TemporaryDirectory(prefix="mgg-bench-") as folder:
        path = Path(folder) / "overlap.json"
        command = [sys.executable, __file__, *map(str, words), "-o", str(path)]
        if hosts:
            command += ["--backend", "shmem", "--threads", "1"]
            try:
                done = hosts.run(command, 1, {"OMP_NUM_THREADS": "1"}, seconds=SECONDS)
            except subprocess.TimeoutExpired as late:
                raise InputError(f"{' '.join(command)}: not done after {SECONDS} seconds") from late
        else:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        children.checked(done, " ".join(command))
        found = json.loads(path.read_text())
    same = {name: found[name] for name in ("graph", "edges", "width", "transfer")}
    return {row["variant"]: same | row for row in found["rows"]}


def on_matched_link(results: Results, hosts: two_hosts.Hosts, graph: str, turns: int) -> None:
    """Add the rows of a link on which the exchange alone takes as long as the sums alone; a note if none was found."""
    words = (graph, "--ways", "halo,bulk", "--turns")
    hosts.throttle()
    free = rows_of(*words, 5, hosts=hosts)
    # Each host sends about half of the bytes.
    rate = 4 * free["exchange"]["crossing_bytes"] / free["sum"]["median_ms"] * 1e3
    for _ in range(TRIES):
        hosts.throttle(rate=f"{int(rate / 1e3)}kbit")
        found, used = rows_of(*words, turns, hosts=hosts), rate
        summing, moving = (found[phase]["median_ms"] for phase in PHASES)
        rate *= moving / summing
        if matched := abs(moving / summing - 1) <= MATCHED:
            break
    if not matched:
        said = f"{graph}: after {TRIES} tries the exchange takes {moving / summing:.2f} times as long as the sums"
        results.notes.append(said)
    # Nothing can be faster than the CPU time, in which rows are moved as well as summed.
    busy = summing + free["exchange"]["cpu_ms"]
    found["halo"]["bound"] = round(hidden_share(summing, moving, max(busy, moving)), 4)
    for way, row in found.items():
        row |= {
            "link_mbit": round(used / 1e6, 1),
            "exchange_over_sums": round(moving / summing, 4),
            "unthrottled_ms": free[way]["median_ms"],
            "unthrottled_cpu_ms": free[way]["cpu_ms"],
        }
    case = "matched link" if matched else "link not matched"
    results.rows += [{"case": case} | row for row in found.values()]


def on_gigabit(hosts: two_hosts.Hosts, graph: str, turns: int) -> list[Row]:
    """Measure on 1 Gbit/s, with a delay where this kernel has one."""
    case = "1 Gbit/s, 0.2 ms"
    try:
        hosts.throttle(rate="1gbit", delay="200us")
    except OSError:
        case = "1 Gbit/s, no netem"
        hosts.throttle(rate="1gbit")
    rows = rows_of(graph, "--ways", "halo,bulk,get,all-gather", "--turns", turns, hosts=hosts)
    return [{"case": case} | row for row in rows.values()]


def ranks_and_threads(graph: str, turns: int) -> list[Row]:
    """Measure one rank of two threads, and two ranks of one, whose medians are compared with it."""
    rows = []
    for width in WIDTHS:
        words = (graph, "--width", width, "--turns", turns)
        one = rows_of(*words, "--ranks", 1, "--threads", 2, "--ways", "direct")["direct"]
        two = rows_of(*words, "--ranks", 2, "--threads", 1, "--ways", "direct,get,halo")
        ways = [two[way] for way in ("direct", "get", "halo")]
        chosen = two[ways[0]["transfer"]]
        chosen["auto_over_best"] = round(chosen["median_ms"] / min(row["median_ms"] for row in ways), 4)
        for ranks, row in (("one rank", one), *(("two ranks", row) for row in ways)):
            row["times_first"] = round(row["median_ms"] / one["median_ms"], 4)
            rows.append({"case": "one host"} | row | {"variant": f"{ranks}, {row['variant']}"})
    return rows


if __name__ == "__main__":
    run(main)
