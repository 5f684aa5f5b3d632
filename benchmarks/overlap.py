"""The figures of exchanges: hidden shares, hosts against each other, one host's ranks against its threads.

    python benchmarks/overlap.py --folder benchmarks/results/overlap

Runs `mgg bench overlap` on two hosts made of network namespaces (as root), whose link is slowed down until the
exchange alone takes as long as the sums alone, and then to 1 Gbit/s; and on this machine, one rank of two threads
against two of one. What is written: overlap.json and overlap.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import real_graphs
import two_hosts
from rich.console import Console

MGG = Path(sys.executable).with_name("mgg")
MATCHED = 0.1  # how far exchange and sums may be apart, relative
TRIES = 6


def on_hosts(hosts: two_hosts.Hosts, folder: Path, *arguments: object) -> dict[str, Any]:
    """What `mgg bench overlap` measures with one rank of one thread on each host."""
    path = folder / "hosts.json"
    command = [MGG, "bench", "overlap", *arguments, "--backend", "shmem", "--threads", "1", "--json", path]
    ended = hosts.run([str(word) for word in command], 1, {"OMP_NUM_THREADS": "1"}, seconds=300)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))} failed:\n{ended.stdout}{ended.stderr}")
    found = json.loads(path.read_text())
    del found["command"]  # names files that are gone by now
    return found


def hidden(hosts: two_hosts.Hosts, folder: Path, edge_factor: int, turns: int) -> dict[str, Any]:
    """The pipeline on a link on which the exchange alone takes as long as the sums alone."""
    graph, ways = f"rmat:17:{edge_factor}", ("--ways", "halo,bulk", "--width", 64)
    hosts.throttle()
    free = on_hosts(hosts, folder, graph, *ways, "--turns", 5)
    sent = max(free["halo_rows"]) * free["row_bytes"]
    rate = 8 * sent / (free["ms"]["sum"]["median"] / 1e3)
    for attempt in range(TRIES):
        hosts.throttle(rate=f"{int(rate / 1e3)}kbit")
        found = on_hosts(hosts, folder, graph, *ways, "--turns", turns)
        ratio = found["ms"]["exchange"]["median"] / found["ms"]["sum"]["median"]
        if abs(ratio - 1) <= MATCHED or attempt == TRIES - 1:
            break
        rate *= ratio
    found["rate_mbit"] = rate / 1e6
    found["unthrottled_ms"] = free["ms"]
    found["unthrottled_processor_ms"] = free["processor_ms"]
    # Nothing can be faster than what the processors have to do, and they move rows as well as sum them.
    summing, moving = found["ms"]["sum"]["median"], found["ms"]["exchange"]["median"]
    busy = summing + free["processor_ms"]["exchange"]
    found["bound"] = (summing + moving - max(busy, moving)) / min(summing, moving)
    return found


def gigabit(hosts: two_hosts.Hosts, folder: Path, turns: int) -> dict[str, Any]:
    """cnr_2000 over 1 Gbit/s: halo, all-gather of all rows, one get an edge."""
    delay = "0.2 ms"
    try:
        hosts.throttle(rate="1gbit", delay="200us")
    except OSError:
        delay = "no delay (this kernel has no netem)"
        hosts.throttle(rate="1gbit")
    graph = real_graphs.data_folder() / "cnr_2000" / "cnr_2000.npz"
    ways = "halo,bulk,get,all-gather"
    return on_hosts(hosts, folder, graph, "--ways", ways, "--turns", turns) | {"delay": delay}


def one_host(folder: Path, turns: int, mpi: str) -> list[dict[str, Any]]:
    """One rank of two threads, and two ranks of one, for both graphs and four widths."""
    rows = []
    for graph in ("rmat:18:16", real_graphs.data_folder() / "cnr_2000" / "cnr_2000.npz"):
        for width in (16, 64, 128, 256):
            pair = []
            for ranks in (1, 2):
                path = folder / "one.json"
                options = ["--width", width, "--ways", "halo,direct,get" if ranks == 2 else "direct"]
                command = [MGG, "launch", "-n", ranks, "--mpi", mpi, "bench", "overlap", graph, *options]
                command += ["--threads", 2 // ranks, "--turns", turns, "--json", path]
                subprocess.run(list(map(str, command)), check=True, capture_output=True)
                pair.append(json.loads(path.read_text()))
            alone, both = pair
            times = {way: both["ms"][way]["median"] for way in ("direct", "get", "halo")}
            rows.append(
                {
                    "graph": both["graph"],
                    "width": width,
                    "one_rank_ms": alone["ms"]["direct"]["median"],
                    "two_ranks_ms": times,
                    "auto": both["transfer"],
                    "reason": both["transfer_reason"],
                    "auto_over_best": times[both["transfer"]] / min(times.values()),
                    "two_over_one": times[both["transfer"]] / alone["ms"]["direct"]["median"],
                }
            )
    return rows


def tables(found: dict[str, Any]) -> str:
    """Everything as Markdown."""
    lines = ["# Exchanges and sums", "", "    python benchmarks/overlap.py", ""]
    if rows := found.get("hidden"):
        lines += [
            f"- {rows[0]['date']}",
            f"- machine: {', '.join(f'{k} {v}' for k, v in rows[0]['machine'].items())}",
            "",
            "## Two hosts, one rank of one thread each, width 64, the link as fast as the sums (ms, medians)",
            "",
            "Processor: what the exchange alone takes of a processor where nothing slows it down. The bound is the "
            "hidden share if nothing but the sums and this work took time.",
            "",
            "| graph | link, Mbit/s | sums | exchange | bulk | halo | hidden share | processor | bound |",
            "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
        ]
        for row in rows:
            ms = {way: times["median"] for way, times in row["ms"].items()}
            lines.append(
                f"| {row['graph']}, {row['edges']:,} edges | {row['rate_mbit']:.0f} | {ms['sum']:.1f} | "
                f"{ms['exchange']:.1f} | {ms['bulk']:.1f} | {ms['halo']:.1f} | {row['hidden_share']:.2f} | "
                f"{row['unthrottled_processor_ms']['exchange']:.1f} | {row['bound']:.2f} |"
            )
    if row := found.get("gigabit"):
        ms = {way: times["median"] for way, times in row["ms"].items()}
        lines += ["", f"## Two hosts, 1 Gbit/s, {row['delay']}, {row['graph']}, width 64 (ms, medians)", ""]
        lines += ["| way | ms | halo is as fast |", "|---|---:|---:|"]
        lines += [f"| {way} | {ms[way]:.1f} | {ms[way] / ms['halo']:.1f} |" for way in ms]
    if rows := found.get("one_host"):
        lines += [
            "",
            "## One host: one rank of two threads, two ranks of one thread (ms, medians)",
            "",
            "| graph | width | 1 x 2 | 2 x 1 direct | get | halo | auto | auto over best | 2 x 1 over 1 x 2 |",
            "|---|---:|---:|---:|---:|---:|---|---:|---:|",
        ]
        for row in rows:
            ways = " | ".join(f"{row['two_ranks_ms'][way]:.1f}" for way in ("direct", "get", "halo"))
            lines.append(
                f"| {row['graph']} | {row['width']} | {row['one_rank_ms']:.1f} | {ways} | {row['auto']} | "
                f"{row['auto_over_best']:.2f} | {row['two_over_one']:.2f} |"
            )
    return "\n".join(lines) + "\n"


@click.command(help=__doc__.partition("\n")[0])
@click.option("--only", default="hidden,gigabit,one_host", show_default=True, help="Which, by commas.")
@click.option(
    "--edge-factors", default="16,64", show_default=True, help="Of the graphs whose exchange hides."
)
@click.option("--turns", type=click.IntRange(1), default=15, show_default=True)
@click.option("--mpi", default="auto", show_default=True, help="On one host, as in `mgg launch`.")
@click.option(
    "--folder", type=click.Path(path_type=Path, exists=True), help="Write overlap.json and .md here."
)
def main(only: str, edge_factors: str, turns: int, mpi: str, folder: Path | None) -> None:
    """Measure, print and write."""
    parts = only.split(",")
    found: dict[str, Any] = {"turns": turns}
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        if {"hidden", "gigabit"} & set(parts):
            if lacking := two_hosts.missing():
                raise click.ClickException(f"two hosts need {lacking}")
            with two_hosts.connect() as hosts:
                if "hidden" in parts:
                    factors = map(int, edge_factors.split(","))
                    found["hidden"] = [hidden(hosts, scratch, factor, turns) for factor in factors]
                if "gigabit" in parts:
                    found["gigabit"] = gigabit(hosts, scratch, turns)
        if "one_host" in parts:
            found["one_host"] = one_host(scratch, turns, mpi)
    text = tables(found)
    Console(width=160, highlight=False).print(text, markup=False)
    if folder:
        (folder / "overlap.json").write_text(json.dumps(found, indent=2) + "\n")
        (folder / "overlap.md").write_text(text)


if __name__ == "__main__":
    main()
