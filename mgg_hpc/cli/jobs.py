"""Commands of job files and their runs: train, resume, predict, submit, report, tune, model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from click import FloatRange, IntRange, argument, option

from ..errors import InputError
from .options import Choice, Existing, Memory, Output, example, overriding, to_file, together


def check_inputs(
    *,
    job: Path | None = None,
    run: Path | None = None,
    graph: Path | None = None,
    overrides: tuple[str, ...] = (),
    clicks: bool = False,
    **_: Any,
) -> None:
    """Raise InputError for a job, run or graph file that is missing or wrong, before torch and MPI are loaded.

    It does nothing on ranks of a launcher, which check the files later and raise the error together. graph: a
    graph to use instead of the job's. clicks: as for `config.load`.
    """
    from .. import config
    from ..data.clicks.store import open_clicks
    from ..data.store import open_graph
    from ..runtime.exit_code import RANK_VARIABLES
    from ..training import run_folder

    path = run_folder.find(run) / run_folder.JOB if run is not None else job
    if path is not None and not any(name in os.environ for name in RANK_VARIABLES):
        settings = config.load(path, overrides, of_run=run is not None, clicks=clicks)
        if settings.dlrm.data:
            with open_clicks(Path(settings.dlrm.data)):
                return
        with open_graph(graph or Path(settings.graph.file)):
            pass


@click.command(
    short_help="Write a job file for a graph.",
    epilog=example("mgg new my.h5", "mgg new my.h5 -o jobs/my.toml"),
)
@argument("graph", type=Existing)
@option("-o", "--output", type=Output, help="Job file to write. [default: the graph's name, .toml, here]")
@option("--force", is_flag=True, help="Replace the output if it exists.")
def new(graph: Path, output: Path | None, force: bool) -> None:
    """Write a job file that trains a model on a graph, with what its keys mean."""
    from ..tools.new import process_new

    process_new(graph, output, force=force)


_shown = together(  # what a training shows
    option(
        "--verbose", "-v", is_flag=True, help="Print what was chosen, and why, memory, times and traffic."
    ),
    option(
        "--progress/--no-progress",
        default=None,
        help="Show a bar, or nothing. [default: a bar on a terminal, else a line every 30 s]",
    ),
)


@click.command(
    short_help="Train the model of a job file.",
    epilog=example(
        "mgg train inputs/digits.toml",
        "mgg launch -n 4 train inputs/digits.toml --set train.epochs=50",
        "mgg launch -n 4 train inputs/digits.toml --dry-run",
        "mgg train inputs/digits.toml --dry-run --as-ranks 64",
        "mgg launch -n 2 train inputs/digits.toml --profile",
        "mgg train inputs/digits.toml --seeds 10",
    ),
)
@argument("job", type=Existing)
@overriding("Override a key of the job file.")
@option(
    "--share-gpu", is_flag=True, help="Let several ranks drive one GPU: for tests, since kernels take turns."
)
@option("--dry-run", is_flag=True, help="Print the plan and the memory of each rank, and stop.")
@option("--as-ranks", type=IntRange(1, 65536), help="With --dry-run, alone: rehearse so many ranks.")
@option(
    "--profile",
    is_flag=True,
    help="Trace a few epochs: the times of each layer, and the hidden part of transfers.",
)
@option(
    "--seeds",
    type=IntRange(1, 10000),
    help="Train with so many seeds, from train.seed on, and print the mean and the deviation of their scores.",
)
@_shown
def train(
    job: Path,
    overrides: tuple[str, ...],
    share_gpu: bool,
    as_ranks: int | None,
    seeds: int | None,
    progress: bool | None,
    **shown: Any,
) -> int:
    """Train the model of a job file on this rank, or on all ranks of mpirun or srun.

    With --seeds K the job is trained with the seeds train.seed, train.seed + 1 and so on; runs of seed N are in
    the folder seed-N below the job's run.folder. The same command continues after an interruption, and with a
    larger K it trains the seeds that are missing. mgg resume continues the run of one seed.
    """
    from ..runtime import signals

    if seeds and (shown["dry_run"] or shown["profile"] or as_ranks):
        raise InputError("--seeds trains; it does not go with --dry-run, --as-ranks and --profile")

    signals.listen()
    check_inputs(job=job, overrides=overrides, clicks=True)
    if as_ranks:
        from ..tools.rehearse import process_rehearse

        return process_rehearse(job, overrides, as_ranks, dry_run=shown["dry_run"])
    if share_gpu:
        overrides = (*overrides, "run.share_gpu=true")
    from ..training.screen import Screen

    with Screen(progress) as screen:
        screen.doing("loading PyTorch")
        from ..training.seeds import process_seeds
        from ..training.train import Shown, process_train

        options = Shown(screen, **shown)
        return (
            process_seeds(job, overrides, seeds, options) if seeds else process_train(job, overrides, options)
        )


@click.command(
    short_help="Go on with a run that was stopped.",
    epilog=example(
        "mgg resume runs/digits",
        "mgg launch -n 4 resume runs/digits/002",
        "mgg resume runs/digits --set train.epochs=400",
    ),
)
@argument("run", type=Existing)
@overriding(
    "Override a key of the run's job that may change: in [run], [checkpoint], [plan], or train.epochs."
)
@_shown
def resume(run: Path, overrides: tuple[str, ...], progress: bool | None, verbose: bool) -> int:
    """Continue a run from its newest undamaged checkpoint, on this rank, or on all ranks of mpirun or srun.

    On as many ranks as before, and with the same threads, torch and processor, all results are bitwise equal to
    those of a run that was never stopped; on another number of ranks, they are equal up to rounding.
    """
    from ..runtime import signals

    signals.listen()
    check_inputs(run=run, overrides=overrides, clicks=True)
    from ..training.screen import Screen

    with Screen(progress) as screen:
        screen.doing("loading PyTorch")
        from ..training.train import Shown, process_resume

        return process_resume(run, overrides, Shown(screen, verbose))


@click.command(
    short_help="Write classes, probabilities and embeddings.",
    epilog=example(
        "mgg predict runs/digits -o out.h5",
        "mgg launch -n 2 predict runs/digits/001 -o out.h5",
        "mgg predict runs/digits -o hidden.npy --what embedding --layer 1",
        "mgg predict runs/digits -o new.h5 --graph grown.h5",
        "mgg predict runs/digits -o out.h5 --set run.backend=serial",
        "mgg predict --model net.safetensors --module net.py:Net --arguments '{hidden = 64}' --graph g.h5 -o out.h5",
    ),
)
@argument("run", type=Existing, required=False)
@to_file("File to write: .h5, .npy, .csv or .parquet.")
@option("--graph", type=Existing, help="Another graph with the same features. [default: that of the run]")
@option(
    "--model",
    type=Existing,
    help="In place of a run, the state_dict of a model trained elsewhere: .safetensors, or torch.save's.",
)
@option("--module", default="", metavar="FILE.py:CLASS", help="With --model, its class, which is imported.")
@option("--arguments", default="{}", metavar="TABLE", help="With --model, the class's arguments, in TOML.")
@option(
    "--layer",
    "layers",
    multiple=True,
    metavar="NUMBER|all",
    help="Write this layer's output, from 1 on. [default: the last hidden layer's]",
)
@option("--what", default="class,probability,embedding", help="Which of these to write, separated by commas.")
@overriding("Override a key of the run's job.")
def predict(run: Path | None, output: Path, **options: Any) -> int:
    """Write classes, probabilities and embeddings that a trained model predicts, in the user's order of nodes.

    A table (.csv, .parquet) has the columns id, class, probability_0 and so on. With the ending .npy one array
    is written to one file; several are written to out.class.npy and so on.
    """
    given = [bool(options[name]) for name in ("model", "module", "graph")]
    if not all(given) if run is None else any(given[:2]):
        raise InputError("name a run, or a model trained elsewhere by --model, --module and --graph")
    check_inputs(run=run, **options)
    from ..training.predict import process_predict

    return process_predict(run, output, **options)


@click.command(
    short_help="Submit job files to Slurm.",
    epilog=example(
        "mgg submit job.toml --ranks 4 --threads 8 --time 1:00:00",
        "mgg submit job.toml --nodes 2 --gpus 4 --time 1:00:00",
        "mgg submit job.toml --gpus 4 --time 4:00:00 --requeue",
        "mgg submit jobs/*.toml --ranks 2 --at-once 4 --set train.epochs=50",
        "mgg submit job.toml --nodes 2 --gpus 4 --dry-run",
    ),
)
@argument("jobs", nargs=-1, required=True, type=Existing)
@option("--nodes", type=IntRange(1, 65536), default=1)
@option("--gpus", type=IntRange(1, 1024), help="GPUs of each node; a rank drives one.")
@option("--ranks", type=IntRange(1, 4096), help="Ranks of each node, on CPUs. [default: 1]")
@option("--threads", type=IntRange(1, 1024), default=1, help="Threads of a rank.")
@option(
    "--time",
    metavar="TIME",
    help="Time limit as Slurm writes it: 1:30:00, 90 (minutes) or 1-12 (days-hours).",
)
@option("--requeue", is_flag=True, help="Save before the time limit, go back into the queue, and go on.")
@option(
    "--save-seconds",
    type=IntRange(10, 3600),
    default=120,
    help="With --requeue: time before the limit for ranks to save what they have.",
)
@option(
    "--memory",
    type=Memory,
    help="Memory of each node. [default: what the tables of DLRM jobs need; the site's for other jobs]",
)
@option("--at-once", type=IntRange(1), help="Of several job files, how many run side by side. [default: all]")
@option("--name", help="The job's name. [default: that of the job file]")
@option("--partition", help="[default: the site's]")
@option("--account", help="[default: the site's]")
@overriding("Override a key of the job files.")
@option("--dry-run", is_flag=True, help="Print the command instead of running it.")
def submit(jobs: tuple[Path, ...], overrides: tuple[str, ...], dry_run: bool, **options: Any) -> int:
    """Check job files and submit them to Slurm: one as a job, several as an array.

    The scripts are those of the checkout that mgg was installed from, or of the folder in MGG_SLURM; the site's
    settings are in site.env.sh there.
    """
    from ..tools.submit import Request, process_submit

    return process_submit(jobs, overrides, Request(**options), dry_run)


@click.command(
    short_help="Search for a job's fastest transfers, ps, dist and wpb.",
    epilog=example(
        "mgg tune job.toml",
        "mgg launch -n 4 tune job.toml",
        "mgg launch -n 4 tune job.toml --transfers direct,halo",
    ),
)
@argument("job", type=Existing)
@overriding("Override a key of the job file.")
@option("--transfers", default="all", help="Which to try, separated by commas. [default: all that run here]")
def tune(job: Path, overrides: tuple[str, ...], transfers: str) -> int:
    """Search for the fastest transfers, ps, dist and wpb while training a few epochs with each transfer.

    Runs on this rank, or on all ranks of mpirun or srun. The trained model is discarded. The settings that were
    found are stored in the user's cache folder, where "mgg train" finds them if it runs on as many ranks of the
    same kind of machine; the last lines printed can be copied to the job file.
    """
    from ..runtime import signals

    signals.listen()
    check_inputs(job=job, overrides=overrides)
    from ..training.tuning.offline import process_tune

    return process_tune(job, overrides, transfers)


@click.command(
    short_help="List the runs of a folder with their scores.",
    epilog=example("mgg runs", "mgg runs runs/digits"),
)
@argument("folder", type=Existing, default="runs")
def runs(folder: Path) -> None:
    """List the runs below FOLDER, each with its model, graph, scores and time. [default: runs]"""
    from ..tools.runs import process_runs

    process_runs(folder)


@click.command(
    short_help="Write a page about one run or several.",
    epilog=example(
        "mgg report runs/digits",
        "mgg report runs/digits/001 runs/digits/002 -o compared.html",
        "mgg report runs/large/003 --no-least",
    ),
)
@argument("runs", nargs=-1, required=True, type=Existing)
@option(
    "-o",
    "--output",
    type=Output,
    help="HTML file to write. [default: report.html in the run's folder, or here for several runs]",
)
@option("--force", is_flag=True, help="Replace the output if it exists.")
@option(
    "--least/--no-least",
    default=True,
    help="Find the least rows that must cross, which reads the graph and matches its remote edges.",
)
def report(runs: tuple[Path, ...], output: Path | None, force: bool, least: bool) -> None:
    """Write one page of HTML about a run, or about several side by side.

    The page needs no network and no scripts. RUNS are folders that `mgg train` made, or the folders above them,
    which stand for their latest run. A run that has not ended is shown up to its last epoch. The timeline needs
    a run with --profile. This command needs matplotlib.
    """
    from ..tools.report.page import process_report

    process_report(runs, output, force=force, least=least)


@click.command(
    short_help="Predict traffic and times of many ranks.",
    epilog=example(
        "mgg model graph.h5 --ranks 8,16,64 --system dgx-a100",
        "mgg model graph.h5 --ranks 1,2,4 --system this",
        "mgg model graph.h5 --ranks 64 --system cluster.toml --model sage --hidden 256 --layers 3",
        "mgg model graph.h5 --ranks 8 --system dgx-h100 --json model.json",
    ),
)
@argument("graph", type=Existing)
@option("--ranks", default="1,2,4,8", help="Numbers of ranks, separated by commas.")
@option(
    "--system", default="this", help="dgx-a100, dgx-h100, this (mgg doctor --calibrate), or a file NAME.toml."
)
@option("--model", "name", type=Choice(["gcn", "gin", "sage", "gat"]), default="gcn")
@option("--hidden", type=IntRange(1, 2**20), default=16, help="Columns of a hidden layer; gat: of each head.")
@option("--layers", type=IntRange(1, 1024), default=2)
@option("--dropout", type=FloatRange(0, 1, max_open=True), default=0.5)
@option("--features", type=IntRange(1), help="Columns of the input. [default: the graph's]")
@option("--classes", type=IntRange(1), help="Columns of the output. [default: the graph's, or 16]")
@option("--json", "json_path", type=Output, help="Write JSON to this file.")
@option("--force", is_flag=True, help="Replace the JSON file if it exists.")
def model(graph: Path, **options: Any) -> None:
    """Count the rows and bytes that many ranks would move with each transfer, and predict an epoch's time.

    The graph is divided as a job divides it, and one rank's nodes are read at a time, so that a laptop suffices
    for any cluster.
    """
    from ..tools.estimate import process_model

    process_model(graph, **options)
