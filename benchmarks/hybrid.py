"""Hybrid mini-batches (MorphGL): plans that divide an epoch's batches between CPU and device.

    python benchmarks/hybrid.py paper                    # the nine settings of the paper, simulated
    python benchmarks/hybrid.py cores                    # its Figure 9: 2 to 16 cores for one GPU
    python benchmarks/hybrid.py check                    # the simulator against epochs that are run
    python benchmarks/hybrid.py check --device cuda      # the same on a GPU

paper: phases follow from the paper's Tables V to VII (GraphSAGE). T_CB is the CPU-only epoch divided by its batches,
T_GB + T_M the GPU-only epoch. On machine B, T_M is T_CB times that run's GPU utilisation; on A and C it is the time for
which Equation 6 gives the published plan. T_DMA is not published: --copy is its share of T_M. ``speedup`` compares with
the faster of CPU-only and GPU-only preparation, ``over_bound`` with the lower bound of any plan. In ``sequential_s``
batches are prepared, copied and trained one after another. ``published_plan_s`` is the simulated epoch with the
published buffers, ``published_s`` the epoch that the paper measured.

cores: the UK graph on machine B. One core launches kernels, as in the paper, and each other core prepares batches.

check: phases are measured, and then the chosen plan, the static plans and --fixed ratios run epochs in turn. The
fastest epoch of each is compared with the simulator; ``over_best`` compares the chosen plan with the fastest of the
fixed ratios. Without a GPU the thread that trains plays the device: all operators work on a small graph, and wait until
they have taken the times of a setting (--slower times as long, so that two cores suffice). On a GPU nothing waits.
"""

from __future__ import annotations

import contextlib
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from harness import graphs, options, run, shown
from harness.results import Results, Row, output_files
from harness.shapes import Shape, labelled

from mgg_hpc import config
from mgg_hpc.data import writer
from mgg_hpc.plan import hybrid
from mgg_hpc.plan.hybrid import Phases, Plan
from mgg_hpc.runtime import mpi
from mgg_hpc.runtime.backends.cuda import module
from mgg_hpc.runtime.timing import interleaved
from mgg_hpc.training.job import build
from mgg_hpc.training.minibatch.executor import Run
from mgg_hpc.training.minibatch.measured import measure
from mgg_hpc.training.minibatch.operators import OPERATORS
from mgg_hpc.training.trainer import Trainer

BATCHES = {"PA": 1179, "TW": 407, "UK": 759}
GPU_BUFFER = 10  # batches, in all of the paper's plans
# By machine and graph: T_CB, T_GB and T_M in ms, the CPU's buffer, and seconds of an epoch (Tables V and VII).
PUBLISHED = {
    "A": {"PA": (24.7, 7.5, 11.8, 15, 17.0), "TW": (26.8, 34.7, 6.3, 20, 10.3), "UK": (24.5, 38.0, 8.9, 30, 16.6)},
    "B": {"PA": (45.5, 7.5, 9.8, 5, 19.4), "TW": (47.5, 16.0, 18.7, 8, 10.1), "UK": (44.0, 26.8, 13.4, 12, 21.2)},
    "C": {"PA": (48.0, 14.0, 18.5, 11, 31.6), "TW": (54.7, 35.9, 28.0, 24, 19.2), "UK": (50.5, 41.5, 26.3, 28, 34.7)},
}  # fmt: skip
CORES_OF_B = 8
SETTINGS = ("A-PA", "A-TW", "B-TW", "B-UK", "C-UK")  # of `check`
# Graph, sizes of the model, fanouts, and training rows of a batch, of `check` by device.
JOBS = {
    "cpu": ("rmat:12:8", Shape(32, 16, 8, 0.5), [5, 5], 16),
    "cuda": ("rmat:20:16", Shape(128, 256, 32, 0.5), [15, 10], 1024),
}


def phases_of(machine: str, graph: str, *, copy: int = 50, slower: float = 1.0) -> Phases:
    """Return the phases of a setting of the paper. copy: T_DMA in percent of T_M. slower: factor of all times."""
    cpu, gpu, train = (slower * ms / 1e3 for ms in PUBLISHED[machine][graph][:3])
    return Phases(cpu, copy / 100 * train, gpu, train)


def columns(phases: Phases, batches: int) -> Row:
    """Return the columns of an epoch's plan."""
    found = hybrid.plans(phases, batches)
    plan, static = hybrid.choose(found), [found[name].seconds for name in ("cpu", "device", "sequential")]
    return {
        "plan": plan.name,
        "x": round(plan.on_device / plan.on_cpu, 3) if plan.on_cpu else math.inf,
        **{f"{name}_buffer": size for name, size in zip(("cpu", "gpu"), plan.buffers, strict=True)},
        **{
            f"{name}_s": round(each, 2)
            for name, each in zip(("cpu_only", "gpu_only", "sequential"), static, strict=True)
        },
        "epoch_s": round(plan.seconds, 3),
        "speedup": round(min(static) / plan.seconds, 3),
        "over_bound": round(plan.seconds / hybrid.bound(phases, batches), 4),
        **{f"{name}_busy": round(share, 3) for name, share in plan.busy.items()},
    }


@click.group(help=shown(__doc__))
def main() -> None: ...


@main.command()
@options.numbers("copy", "50", "T_DMA in percent of T_M.")
@output_files(pictures=False)
def paper(copy: list[int], files: tuple[Path, ...]) -> None:
    """Compare plans with the published ones."""
    results = Results("hybrid paper")
    for share in copy:
        for machine, published in PUBLISHED.items():
            for graph, (*_, buffer, epoch) in published.items():
                phases = phases_of(machine, graph, copy=share)
                theirs = hybrid.dual(phases, BATCHES[graph], (buffer, GPU_BUFFER))
                row = {"machine": machine, "graph": graph, "copy_percent": share}
                row |= {
                    "equation_6": round(hybrid.start(phases), 3),
                    "published_x": round(GPU_BUFFER / buffer, 3),
                }
                row |= columns(phases, BATCHES[graph])
                results.rows.append(
                    row | {"published_plan_s": round(theirs.seconds, 3), "published_s": epoch}
                )
    results.write(files)
    what = ("equation_6", "published_x", "x", "epoch_s", "published_plan_s", "published_s")
    results.show("machine", "graph", *what, "speedup", "over_bound")


@main.command()
@options.numbers("cores", "2,4,6,8,10,12,14,16,32", "Cores of the CPU.")
@click.option("--copy", type=click.IntRange(0), default=50, help="T_DMA in percent of T_M.")
@click.option("--batches", type=click.IntRange(0), default=0, help="Run epochs of so many, as `check` does.")
@options.turns(2)
@output_files(pictures=False)
def cores(cores: list[int], copy: int, batches: int, turns: int, files: tuple[Path, ...]) -> None:
    """Compare plans over the number of cores."""
    of_all, number = phases_of("B", "UK", copy=copy), batches or BATCHES["UK"]
    results = Results("hybrid cores", graph="UK", machine="B", copy_percent=copy)
    with small_job("sage", batches) if batches else contextlib.nullcontext() as trainer:
        for count in cores:
            phases = replace(of_all, cpu=(CORES_OF_B - 1) * of_all.cpu, workers=max(1, count - 1))
            row = {"cores": count, **columns(phases, number)}
            with paced(phases) if trainer else contextlib.nullcontext():
                for_run = ("cpu", "device", "hybrid") if trainer else ()
                plans = [hybrid.plans(phases, number)[name] for name in for_run]
                for name, seconds in zip(for_run, raced(trainer, plans, turns), strict=True):
                    row[f"{name}_run_s"] = round(seconds, 3)
            results.rows.append(row)
    results.write(files)
    what = ("plan", "x", "cpu_only_s", "gpu_only_s", "epoch_s", "speedup", "over_bound")
    results.show("cores", *what, *(name for name in results.rows[0] if name.endswith("_run_s")))


@contextlib.contextmanager
def paced(phases: Phases) -> Iterator[None]:
    """Let the operators within ``with`` wait, so that each batch takes these times where it does not take longer."""

    def waiting(operator: Callable[[Any, Any], Any], seconds: float) -> Callable[[Any, Any], Any]:
        def run(work: Any, given: Any) -> Any:
            began = time.perf_counter()
            found = operator(work, given)
            time.sleep(max(0.0, began + seconds - time.perf_counter()))
            return found

        return run

    seconds = {"cpu": phases.cpu, "copy": phases.copy, "direct": phases.device / 4}
    with contextlib.ExitStack() as restored:
        for phase, known in OPERATORS.items():
            restored.callback(known.update, dict(known))
            for hardware, operator in known.items():
                on_device = phases.train if phase == "train" else phases.device * 3 / 4
                known[hardware] = waiting(operator, seconds.get(hardware, on_device))
        yield


@contextlib.contextmanager
def small_job(model: str, batches: int, device: str = "cpu") -> Iterator[Trainer]:
    """Yield the trainer of a job of so many batches."""
    name, shape, fanouts, rows = JOBS[device]
    with tempfile.TemporaryDirectory(prefix="mgg-bench-") as folder:
        graph = labelled(graphs.read(name), shape)
        train = np.arange(graph.nodes) < batches * rows
        writer.write(Path(folder) / "graph.h5", replace(graph, train=train, val=~train))
        tree = {
            "graph": {"file": f"{folder}/graph.h5"},
            "model": {"name": model, "hidden": shape.hidden},
            "train": {"mode": "sampled", "fanouts": fanouts, "batch_size": rows},
            "run": {"threads": 1, "backend": "serial"} if device == "cpu" else {"backend": device},
        }
        if device != "cpu":  # where features lie on a GPU, its CPU only draws batches
            tree["features"] = {"host": "8G"}
        job = build(config.from_tree(tree, "benchmarks/hybrid.py"), mpi.world())
        yield Trainer(job, job.graph())
        job.close()


def executed(trainer: Trainer, plan: Plan) -> float:
    """Return the seconds in which an epoch of a plan was run."""
    sampled = trainer.job.sampled
    assert sampled is not None
    run = Run(sampled.source, sampled.batches, plan, 1)
    with contextlib.closing(run.batches()) as batches:
        for batch in batches:
            trainer.take(batch)
    return run.seconds


def raced(trainer: Trainer, plans: list[Plan], turns: int) -> list[float]:
    """Return the seconds of the fastest of so many epochs of each plan, which are run in turn."""
    runs = {i: partial(executed, trainer, each) for i, each in enumerate(plans)}
    return [min(seconds) for seconds in interleaved(runs, turns).values()]


@main.command()
@options.words("models", ("gcn", "sage"), "Models to train.")
@options.words(
    "settings", SETTINGS, "Machine and graph of the paper whose times operators take without a GPU."
)
@click.option("--device", type=click.Choice([*JOBS]), default="cpu", help="What trains.")
@click.option("--batches", type=click.IntRange(4), default=30, help="Of an epoch.")
@click.option("--fixed", type=click.IntRange(1), default=20, help="Ratios that the plan is compared with.")
@click.option("--slower", type=click.FloatRange(1), default=2.0, help="Factor of the paper's times.")
@options.turns(2)
@output_files(pictures=False)
def check(
    models: list[str],
    settings: list[str],
    device: str,
    batches: int,
    fixed: int,
    slower: float,
    turns: int,
    files: tuple[Path, ...],
) -> None:
    """Compare the simulator with epochs that are run."""
    if device == "cuda":
        module.need_device(module.load())  # before graphs are made
    errors = list[float]()
    results = Results("hybrid check", device=device, batches=batches, slower=slower, epochs_each=turns)
    # Buffers of CPU and device whose ratios are even by their logarithms.
    sizes = np.geomspace(0.1, 10, fixed)
    ratios = [(max(1, round(GPU_BUFFER / max(1, x))), max(1, round(GPU_BUFFER * min(1, x)))) for x in sizes]
    for model in models:
        with small_job(model, batches, device) as trainer:
            for setting in settings if device == "cpu" else ["as it is"]:
                wanted = device == "cpu" and phases_of(*setting.split("-"), slower=slower)
                with paced(wanted) if wanted else contextlib.nullcontext():
                    began = time.perf_counter()
                    measured = measure(trainer.job)
                    found = hybrid.plans(measured.phases, batches)
                    measuring, plan = time.perf_counter() - began, hybrid.choose(found)
                    every = [
                        *found.values(),
                        *(hybrid.dual(measured.phases, batches, each) for each in ratios),
                    ]
                    took = raced(trainer, every, turns)
                off = [abs(seconds / each.seconds - 1) for seconds, each in zip(took, every, strict=True)]
                errors += off
                mine, best = took[every.index(plan)], min(range(len(found), len(every)), key=took.__getitem__)
                results.rows.append(
                    {
                        "model": model,
                        "setting": setting,
                        "x": round(plan.on_device / max(1, plan.on_cpu), 3),
                        "simulated_s": round(plan.seconds, 3),
                        "executed_s": round(mine, 3),
                        "speedup": round(min(took[:2]) / mine, 3),
                        "best_x": round(every[best].on_device / max(1, every[best].on_cpu), 3),
                        "over_best": round(mine / took[best], 3),
                        "median_error": round(statistics.median(off), 4),
                        "largest_error": round(max(off), 4),
                        "variation": round(max(measured.spread.values()), 3),
                        "measuring_epochs": round(measuring / mine, 2),
                    }
                )
    middle, most = statistics.median(errors), max(errors)
    results.notes.append(f"errors of {len(errors)} epochs: median {middle:.1%}, largest {most:.1%}")
    results.write(files)
    results.show()


if __name__ == "__main__":
    run(main)
