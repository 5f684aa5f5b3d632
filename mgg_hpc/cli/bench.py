"""The verbs of `mgg bench`; each names its options and hands them to one ``run_*`` function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
from click.core import ParameterSource

from ..errors import InputError
from .options import Existing, Output, Verbs, example

WIDTH = click.IntRange(1, 65536)
DEVICES = click.Choice(["cpu", "cuda"])
DTYPES = click.Choice(["float32", "bfloat16", "float16"])
SHARE = click.FloatRange(0, 1, max_open=True)
AT_LEAST_ONE = click.IntRange(1)
AS_A_JOB = "As run.backend of a job file."

Decorator = Callable[[Any], Any]


@click.group(
    short_help="Compare with other libraries, in turns.",
    cls=Verbs,
    context_settings={"show_default": True},
    epilog=example("mgg bench aggregate rmat:16", "mgg bench epoch --json epoch.json"),
)
def bench() -> None:
    """Compare this package with other libraries: in turns, on the same inputs, threads and pages.

    `make bench-peers` installs the baselines; without it, torch and SciPy take part.
    """


def together(*options: Decorator) -> Decorator:
    """Return the decorator that adds all options, in this order."""

    def add(command: Any) -> Any:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def outputs(plot: str | None = None) -> Decorator:
    """Return the options of the files that a benchmark writes. plot: help for a picture, where there is one."""
    files = [
        click.option("--json", type=Output, help="Write the figures as JSON to this file."),
        click.option("--table", type=Output, help="Write them as Markdown to this file."),
    ]
    if plot:
        files.append(click.option("--plot", type=Output, help=plot))
    return together(*files)


def turns(default: int, of: str) -> Decorator:
    """Return the option of how often what is compared takes turns."""
    return click.option("--turns", type=AT_LEAST_ONE, default=default, help=f"Turns of each {of}.")


def on_gpu(why: str) -> Decorator:
    """Return the option of benchmarks that run on a GPU only."""
    return click.option("--device", type=click.Choice(["cuda"]), required=True, expose_value=False, help=why)


workers = together(
    click.option("--threads", type=click.IntRange(1, 1024), default=2, help="Threads of each library."),
    turns(9, "library"),
    click.option(
        "--pages", type=click.Choice(["huge", "small"]), default="huge", help="2 MiB, or 4 KiB; of all."
    ),
    click.option("--peers-env", type=Existing, help="Their environment. [default: .venv-peers]"),
    outputs("Draw them into this file (.png, .svg)."),
)


def refuse_given(context: click.Context, device: str, *names: str) -> None:
    """Raise InputError for an option on the command line that has no meaning on this device."""
    for name in names:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            option = f"--{name.replace('_', '-')}"
            only = "a meaning with --device cuda only" if device == "cpu" else "no meaning with --device cuda"
            raise InputError(f"{option} has {only}")


@bench.command(
    "aggregate",
    epilog=example(
        "mgg bench aggregate rmat:16:8 my.h5 --widths 64,128 --peers dgl --turns 15",
        "mgg bench aggregate my.npz --orders none,community --dtypes float32,bfloat16",
        "mgg bench aggregate --json a.json --table a.md --plot a.png",
    ),
)
@click.argument("graphs", nargs=-1)
@click.option(
    "--widths", help="Of rows, separated by commas. [default: 16,64,128,256; on a GPU 128,16,602,64,256]"
)
@click.option("--dtypes", default="float32", help="Of rows: float32, bfloat16, float16; or several.")
@click.option("--orders", default="none", help="Of rows: none, degree, rcm, community; or several.")
@click.option("--weighted", is_flag=True, help="Multiply each row by its edge's weight.")
@click.option(
    "--peers",
    help='Which; or "none". [default: dgl,torch,pyg,mkl,scipy; on a GPU cusparse,torch,cupy,pyg,pyg-csr]',
)
@click.option(
    "--transfers", default="direct,get,halo", help="Of whose kernels sums are timed, with --device cuda."
)
@click.option(
    "--device",
    type=DEVICES,
    default="cpu",
    help="cuda: one GPU, with neither threads, pages nor another environment.",
)
@workers
@click.pass_context
def bench_aggregate(context: click.Context, graphs: tuple[str, ...], device: str, **options: Any) -> None:
    """Sum neighbours' rows; and the least that reading them costs.

    GRAPHS are rmat:SCALE[:EDGE_FACTOR], uniform:SCALE[:EDGE_FACTOR], graph files (.h5) or archives (.npz).
    [default: rmat:18:16; on a GPU rmat:20:16 and uniform:20:16]
    """
    from ..tools.bench.aggregate.run import run_aggregate

    of_cpus = ("orders", "threads", "pages", "peers_env")
    refuse_given(context, device, *(of_cpus if device == "cuda" else ["transfers"]))
    run_aggregate(graphs, device=device, **options)


@bench.command(
    "epoch",
    epilog=example(
        "mgg bench epoch",
        "mgg bench epoch rmat:15 --hidden 64 --peers dgl --plot epoch.png",
        "mgg bench epoch --model gin,sage,gat --dropout 0",
        "mgg bench epoch --device cuda --json epoch.json",
    ),
)
@click.argument("graphs", nargs=-1)
@click.option("--model", default="gcn", help="gcn, gin, sage, gat; or several.")
@click.option("--features", type=WIDTH, default=128)
@click.option(
    "--hidden", type=WIDTH, help="Units; gat: of each of 8 heads. [default: gcn 16, gin 64, sage 128, gat 8]"
)
@click.option("--classes", type=WIDTH, default=32)
@click.option("--dropout", type=SHARE, default=0.5)
@click.option("--peers", help='Which; or "none". [default: dgl,pyg,pyg-csr; on a GPU pyg,pyg-csr]')
@click.option(
    "--device",
    type=DEVICES,
    default="cpu",
    help="cuda: one GPU, with neither threads, pages nor another environment; and each layer by itself.",
)
@workers
@click.pass_context
def bench_epoch(context: click.Context, graphs: tuple[str, ...], device: str, **options: Any) -> None:
    """Train a model for an epoch: forward, loss, backward, Adam.

    GCN, GraphSAGE (mean) and GAT have two layers, GIN five.

    GRAPHS are as in `mgg bench aggregate`; features and labels are drawn. [default: rmat:17:12; on a GPU
    rmat:20:16]
    """
    from ..tools.bench.epoch.run import run_epoch

    if device == "cuda":
        refuse_given(context, device, "threads", "pages", "peers_env")
    run_epoch(graphs, device=device, **options)


@bench.command(
    "overlap",
    epilog=example(
        "mgg launch -n 2 bench overlap rmat:17 --width 64",
        "mgg bench overlap --device cuda --shares 0.1,0.2,0.3 --plot overlap.svg",
    ),
)
@click.argument("graph", required=False)
@click.option("--width", type=WIDTH, help="Of rows. [default: 64; on a GPU 128]")
@click.option(
    "--ways",
    help="Of exchanging. [default: halo,bulk,direct,get,all-gather; on a GPU halo,get,bulk,direct]",
)
@click.option("--backend", default="auto", help=AS_A_JOB)
@click.option("--threads", type=click.IntRange(0, 1024), help="Threads of each rank. [default: its share]")
@turns(9, "way")
@click.option(
    "--device",
    type=DEVICES,
    default="cpu",
    help="cuda: two PEs on one GPU, the second's rows in the host's memory.",
)
@click.option("--shares", help="Of rows that are far away, with --device cuda. [default: 0 to 0.5]")
@outputs("Draw them into this file (.png, .svg), with --device cuda.")
@click.pass_context
def bench_overlap(context: click.Context, device: str, **options: Any) -> int:
    """Exchange and sum: how much of the one hides behind the other.

    On CPUs under a launcher, or on one rank; on a GPU by itself. GRAPH is as in `mgg bench aggregate`.
    [default: rmat:17:16; on a GPU uniform:20:16]
    """
    others = ("threads", "backend") if device == "cuda" else ("shares", "plot")
    refuse_given(context, device, *others)
    kept = {name: value for name, value in options.items() if name not in others}
    if device == "cuda":
        from ..tools.bench.overlap import gpu

        return gpu.run_overlap(**kept)
    from ..tools.bench.overlap import cpu

    return cpu.run_overlap(**kept)


@bench.command(
    "huge",
    epilog=example(
        "mgg bench huge --device cuda --json huge.json",
        "mgg bench huge --device cuda --rows 20000000 --edges 300000000 --distribution skewed",
    ),
)
@on_gpu("One GPU; with papers100M's rows and edges, of 95 GB or more.")
@click.option(
    "--rows",
    type=click.IntRange(1, 2_000_000_000),
    help="[default: papers100M's 111,059,956, or the part of them that fits]",
)
@click.option(
    "--edges", type=AT_LEAST_ONE, help="[default: papers100M's 1,615,685,872, or the same part of them]"
)
@click.option("--features", type=WIDTH, default=128, help="Of a row.")
@click.option("--width", type=WIDTH, default=16, help="After the transform.")
@click.option(
    "--distribution",
    type=click.Choice(["uniform", "skewed"]),
    default="uniform",
    help="Of edges over rows, at both ends; skewed: as rmat's.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0)
@turns(9, "step")
@outputs()
def bench_huge(**options: Any) -> int:
    """Transform and sum a table as large as ogbn-papers100M's.

    Features and edges are drawn on the GPU. A layer is a matrix product, and sums of its rows over the edges.
    """
    from ..tools.bench.huge.gpu import run_huge

    return run_huge(**options)


@bench.command(
    "start",
    epilog=example(
        "mgg bench start", "mgg bench start rmat:16:16 --ranks 2 --backend cuda --json start.json"
    ),
)
@click.argument("graph", default="rmat:21:26")
@click.option("--ranks", type=AT_LEAST_ONE, default=1)
@click.option("--backend", default="auto", help=AS_A_JOB)
@turns(3, "run")
@outputs()
def bench_start(**options: Any) -> int:
    """Time what `mgg train` does before it trains, part by part, up to the end of the first epoch.

    GRAPH is as in `mgg bench aggregate`. [default: rmat:21:26, a hundred million edges]
    """
    from ..tools.bench.startup import run_start

    return run_start(**options)
