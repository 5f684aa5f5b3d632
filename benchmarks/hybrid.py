"""Hybrid mini-batches (MorphGL): plans that divide an epoch's batches between CPU and device.

    python benchmarks/hybrid.py paper                    # the nine settings of the paper, simulated
    python benchmarks/hybrid.py cores                    # its Figure 9: 2 to 16 cores for one GPU

paper: phases follow from the paper's Tables V to VII (GraphSAGE). T_CB is the CPU-only epoch over its batches, T_GB +
T_M the GPU-only one. On machine B, T_M is T_CB times that run's GPU utilisation; on A and C it is the one for which
Equation 6 gives the published plan. T_DMA is not published: --copy says what part of T_M it takes.
``speedup`` is over the faster of CPU-only and GPU-only preparation, ``over_bound`` beside the lower bound of any plan.
``published_plan_s`` is what the published buffers take in the simulator, ``published_s`` what the paper measured.

cores: the UK graph on machine B. One core launches work, as in the paper, and each other one prepares batches.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import click
from harness import options, run

from mgg_hpc.plan import hybrid
from mgg_hpc.plan.hybrid import Phases, Plan
from mgg_hpc.tools.bench.results import Results, Row, output_files

BATCHES = {"PA": 1179, "TW": 407, "UK": 759}
GPU_BUFFER = 10  # batches, in all of the paper's plans
# Of a machine's graphs: ms of T_CB, T_GB and T_M, the CPU's buffer, and seconds of an epoch (Tables V and VII).
PUBLISHED = {
    "A": {"PA": (24.7, 7.5, 11.8, 15, 17.0), "TW": (26.8, 34.7, 6.3, 20, 10.3), "UK": (24.5, 38.0, 8.9, 30, 16.6)},
    "B": {"PA": (45.5, 7.5, 9.8, 5, 19.4), "TW": (47.5, 16.0, 18.7, 8, 10.1), "UK": (44.0, 26.8, 13.4, 12, 21.2)},
    "C": {"PA": (48.0, 14.0, 18.5, 11, 31.6), "TW": (54.7, 35.9, 28.0, 24, 19.2), "UK": (50.5, 41.5, 26.3, 28, 34.7)},
}  # fmt: skip
CORES_OF_B = 8


def columns(phases: Phases, batches: int) -> tuple[Row, dict[str, Plan]]:
    """Return the columns of an epoch's plan, and the plans that it was chosen from."""
    began = time.perf_counter()
    found = hybrid.plans(phases, batches)
    plan, planning = hybrid.choose(found), 1e3 * (time.perf_counter() - began)
    static = min(found["cpu"].seconds, found["device"].seconds)
    row = {
        "plan": plan.name,
        "x": round(plan.on_device / plan.on_cpu, 3) if plan.on_cpu else math.inf,
        **{f"{name}_buffer": size for name, size in zip(("cpu", "gpu"), plan.buffers, strict=True)},
        "cpu_only_s": round(found["cpu"].seconds, 2),
        "gpu_only_s": round(found["device"].seconds, 2),
        "epoch_s": round(plan.seconds, 3),
        "speedup": round(static / plan.seconds, 3),
        "over_bound": round(plan.seconds / hybrid.bound(phases, batches), 4),
        **{f"{name}_busy": round(share, 3) for name, share in plan.busy.items()},
        "planning_ms": round(planning, 1),
    }
    return row, found


@click.group(help=__doc__)
def main() -> None: ...


@main.command()
@options.numbers("copy", "50", "T_DMA in percent of T_M.")
@output_files(pictures=False)
def paper(copy: list[int], files: tuple[Path, ...]) -> None:
    """Compare plans with the published ones."""
    results = Results("hybrid paper")
    for share in copy:
        for machine, graphs in PUBLISHED.items():
            for graph, (cpu, gpu, train, buffer, epoch) in graphs.items():
                phases = Phases(cpu / 1e3, share / 100 * train / 1e3, gpu / 1e3, train / 1e3)
                row, _ = columns(phases, BATCHES[graph])
                published = hybrid.dual(phases, BATCHES[graph], (buffer, GPU_BUFFER))
                results.rows.append(
                    {
                        "machine": machine,
                        "graph": graph,
                        "copy_percent": share,
                        "equation_6": round(hybrid.start(phases), 3),
                        "published_x": round(GPU_BUFFER / buffer, 3),
                        **row,
                        "published_plan_s": round(published.seconds, 3),
                        "published_s": epoch,
                    }
                )
    results.write(files)
    shown = (
        "equation_6",
        "published_x",
        "x",
        "epoch_s",
        "published_plan_s",
        "published_s",
        "speedup",
        "over_bound",
    )
    results.show("machine", "graph", *shown)


@main.command()
@options.numbers("cores", "2,4,6,8,10,12,14,16,32", "Cores of the CPU.")
@click.option("--copy", type=click.IntRange(0), default=50, help="T_DMA in percent of T_M.")
@output_files(pictures=False)
def cores(cores: list[int], copy: int, files: tuple[Path, ...]) -> None:
    """Compare plans over the number of cores."""
    cpu, gpu, train = (each / 1e3 for each in PUBLISHED["B"]["UK"][:3])
    results = Results("hybrid cores", graph="UK", machine="B", copy_percent=copy)
    for count in cores:
        phases = Phases((CORES_OF_B - 1) * cpu, copy / 100 * train, gpu, train, max(1, count - 1))
        row, _ = columns(phases, BATCHES["UK"])
        results.rows.append({"cores": count, **row})
    results.write(files)
    results.show("cores", "plan", "x", "cpu_only_s", "gpu_only_s", "epoch_s", "speedup", "over_bound")


if __name__ == "__main__":
    run(main)
