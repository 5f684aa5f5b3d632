"""The verbs of `mgg bench`; each names its options and hands them to one ``process_*`` function."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from .verbs import Existing, Output, Verbs, example


@click.group(
    short_help="Compare with other libraries, in turns.",
    cls=Verbs,
    epilog=example("mgg bench aggregate rmat:16", "mgg bench epoch --json epoch.json"),
)
def bench() -> None:
    """Compare this package with its peers: in turns, on the same inputs, threads and pages.

    `make bench-peers` installs the peers; without it, torch and SciPy take part.
    """


def bench_options(command: Any) -> Any:
    """The options that all benchmarks have."""
    pages, threads = click.Choice(["huge", "small"]), click.IntRange(1, 1024)
    for option in (
        click.option("--plot", type=Output, help="Draw the figures into this file (.png, .svg)."),
        click.option("--table", type=Output, help="Write them as Markdown to this file."),
        click.option("--json", type=Output, help="Write them as JSON to this file."),
        click.option("--peers-env", type=Existing, help="Their environment. [default: .venv-peers]"),
        click.option(
            "--pages", type=pages, default="huge", show_default=True, help="2 MiB, or 4 KiB; of all."
        ),
        click.option(
            "--turns", type=click.IntRange(1), default=9, show_default=True, help="Turns of each library."
        ),
        click.option(
            "--threads", type=threads, default=2, show_default=True, help="Threads of each library."
        ),
    ):
        command = option(command)
    return command


@bench.command(
    "aggregate",
    epilog=example(
        "mgg bench aggregate rmat:16:8 my.h5 --widths 64,128 --peers dgl --turns 15",
        "mgg bench aggregate my.npz --orders none,community --dtypes float32,bfloat16",
        "mgg bench aggregate --json a.json --table a.md --plot a.png",
    ),
)
@click.argument("graphs", nargs=-1)
@click.option("--widths", default="16,64,128,256", show_default=True, help="Of rows, separated by commas.")
@click.option(
    "--dtypes", default="float32", show_default=True, help="Of rows: float32, bfloat16, float16; or several."
)
@click.option(
    "--orders", default="none", show_default=True, help="Of rows: none, degree, rcm, community; or several."
)
@click.option("--weighted", is_flag=True, help="Multiply each row by its edge's weight.")
@click.option(
    "--peers",
    help='Which; or "none". [default: dgl,torch,pyg,mkl,scipy; on a GPU cusparse,torch,cupy,pyg,pyg-csr]',
)
@click.option(
    "--transfers",
    default="direct,get,halo",
    help="Of whose kernels sums are timed, with --device cuda. [default: direct,get,halo]",
)
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: one GPU, with neither threads, pages nor another environment.",
)
@bench_options
@click.pass_context
def bench_aggregate(context: click.Context, graphs: tuple[str, ...], **options: Any) -> None:
    """Sum neighbours' rows; and the least that reading them costs.

    GRAPHS are rmat:SCALE[:EDGE_FACTOR], uniform:SCALE[:EDGE_FACTOR], graph files (.h5) or archives (.npz).
    [default: rmat:18:16; on a GPU rmat:20:16 and uniform:20:16]
    """
    from .tools.bench.aggregate.cpu import process_aggregate

    said = click.core.ParameterSource.COMMANDLINE
    given = frozenset(name for name in options if context.get_parameter_source(name) is said)
    process_aggregate(graphs, given=given, **options)


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
@click.option("--model", default="gcn", show_default=True, help="gcn, gin, sage, gat; or several.")
@click.option("--features", type=click.IntRange(1, 2**16), default=128, show_default=True)
@click.option(
    "--hidden",
    type=click.IntRange(1, 2**16),
    help="Units; gat: of each of 8 heads. [default: gcn 16, gin 64, sage 128, gat 8]",
)
@click.option("--classes", type=click.IntRange(1, 2**16), default=32, show_default=True)
@click.option("--dropout", type=click.FloatRange(0, 1, max_open=True), default=0.5, show_default=True)
@click.option("--peers", help='Which; or "none". [default: dgl,pyg,pyg-csr; on a GPU pyg,pyg-csr]')
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: one GPU, with neither threads, pages nor another environment; and each layer by itself.",
)
@bench_options
@click.pass_context
def bench_epoch(context: click.Context, graphs: tuple[str, ...], **options: Any) -> None:
    """Train a model for an epoch: forward, loss, backward, Adam.

    GCN, GraphSAGE (mean) and GAT have two layers, GIN five.

    GRAPHS are as in `mgg bench aggregate`; features and labels are drawn. [default: rmat:17:12; on a GPU
    rmat:20:16]
    """
    from .tools.bench.epoch.cpu import process_epoch

    said = click.core.ParameterSource.COMMANDLINE
    given = frozenset(name for name in options if context.get_parameter_source(name) is said)
    process_epoch(graphs, given=given, **options)


@bench.command(
    "overlap",
    epilog=example(
        "mgg launch -n 2 bench overlap rmat:17 --width 64",
        "mgg bench overlap --device cuda --shares 0.1,0.2,0.3 --plot overlap.svg",
    ),
)
@click.argument("graph", required=False)
@click.option("--width", type=click.IntRange(1, 65536), help="Of rows. [default: 64; on a GPU 128]")
@click.option(
    "--ways",
    help="Of exchanging. [default: halo,bulk,direct,get,all-gather; on a GPU halo,get,bulk,direct,managed]",
)
@click.option("--backend", default="auto", show_default=True, help="As run.backend of a job file.")
@click.option(
    "--threads", type=click.IntRange(0, 1024), default=0, help="Threads of each rank. [default: its share]"
)
@click.option("--turns", type=click.IntRange(1), default=9, show_default=True, help="Turns of each way.")
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="cuda: two PEs on one GPU, the second's rows in the host's memory.",
)
@click.option("--shares", help="Of rows that are far away, with --device cuda. [default: 0 to 0.5]")
@click.option("--json", type=Output, help="Write the figures as JSON to this file.")
@click.option("--table", type=Output, help="Write them as Markdown to this file.")
@click.option("--plot", type=Output, help="Draw them into this file (.png, .svg), with --device cuda.")
def bench_overlap(device: str, **options: Any) -> int:
    """Exchange and sum: how much of the one hides behind the other.

    On CPUs under a launcher, or on one rank; on a GPU by itself. GRAPH is as in `mgg bench aggregate`.
    [default: rmat:17:16; on a GPU uniform:20:16]
    """
    if device == "cuda":
        from .tools.bench.overlap.gpu import run_overlap

        return run_overlap(**options)
    from .tools.bench.overlap.cpu import process_overlap

    return process_overlap(**options)


@bench.command(
    "profile",
    epilog=example(
        "mgg bench profile --device cuda",
        "mgg bench profile my.h5 --device cuda --widths 16,128 --transfers direct,get,halo --json profile.json",
    ),
)
@click.argument("graph", required=False)
@click.option(
    "--device", type=click.Choice(["cuda"]), required=True, help="CPUs have other profilers (perf)."
)
@click.option("--widths", default="16,128", show_default=True, help="Of rows, separated by commas.")
@click.option(
    "--transfers",
    default="local,direct,get,halo,floor",
    show_default=True,
    help="Which kernels; local: all rows on this GPU; floor: rows read and not summed.",
)
@click.option("--json", type=Output, help="Write the figures as JSON to this file.")
@click.option("--table", type=Output, help="Write them as Markdown to this file.")
def bench_profile(device: str, **options: Any) -> int:
    """Ask the GPU's counters what kernels do, beside what they must.

    Needs NVIDIA's Nsight Compute (ncu). GRAPH is as in `mgg bench aggregate`. [default: rmat:20:16]
    """
    from .tools.bench.profile.gpu import run_profile

    return run_profile(**options)


@bench.command(
    "huge",
    epilog=example(
        "mgg bench huge --device cuda --json huge.json",
        "mgg bench huge --device cuda --rows 20000000 --edges 300000000 --distribution skewed",
    ),
)
@click.option(
    "--device", type=click.Choice(["cuda"]), required=True, help="One GPU; with the defaults, of 90 GB."
)
@click.option("--rows", type=click.IntRange(1, 2_000_000_000), default=111_059_956, show_default=True)
@click.option("--edges", type=click.IntRange(1), default=1_615_685_872, show_default=True)
@click.option("--features", type=click.IntRange(1, 65536), default=128, show_default=True, help="Of a row.")
@click.option(
    "--width", type=click.IntRange(1, 65536), default=16, show_default=True, help="After the transform."
)
@click.option(
    "--distribution",
    type=click.Choice(["uniform", "skewed"]),
    default="uniform",
    show_default=True,
    help="Of edges over rows, at both ends; skewed: as rmat's.",
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--turns", type=click.IntRange(1), default=9, show_default=True, help="Turns of each step.")
@click.option("--json", type=Output, help="Write the figures as JSON to this file.")
@click.option("--table", type=Output, help="Write them as Markdown to this file.")
def bench_huge(device: str, **options: Any) -> int:
    """Transform and sum a table as large as ogbn-papers100M's.

    Features and edges are drawn on the GPU. A layer is a matrix product, and sums of its rows over the edges.
    """
    from .tools.bench.huge.gpu import run_huge

    return run_huge(**options)


@bench.command(
    "sweep",
    epilog=example(
        "mgg bench sweep --device cuda --json sweep.json --plot sweep.svg",
        "mgg bench sweep my.h5 --device cuda --width 64 --transfer get --ps 1,2,4,8 --wpb 4,8,16",
        "mgg bench sweep --device cuda --share 0.2 --transfer get,halo --seconds 300",
    ),
)
@click.argument("graph", required=False)
@click.option("--device", type=click.Choice(["cuda"]), required=True, help="CPUs have knobs of their own.")
@click.option("--width", type=click.IntRange(1, 65536), default=128, show_default=True, help="Of rows.")
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    default="float32",
    show_default=True,
    help="Of rows.",
)
@click.option("--transfer", default="direct,get,halo", show_default=True, help="Which kernels.")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, max_open=True),
    default=0.0,
    show_default=True,
    help="Of rows, in the host's memory.",
)
@click.option("--ps", help="Edges of a partition. [default: 1,2,4,8,16,32]")
@click.option("--dist", help="Partitions of a warp. [default: 1,2,4,8,16]")
@click.option("--wpb", help="Warps of a block. [default: 1,2,4,6,8,12,16]")
@click.option(
    "--seconds",
    type=click.FloatRange(0),
    default=120.0,
    show_default=True,
    help="Of measuring; every other value of each knob is measured all the same.",
)
@click.option("--turns", type=click.IntRange(1), default=5, show_default=True, help="Of each setting.")
@click.option("--json", type=Output, help="Write the figures as JSON to this file.")
@click.option("--table", type=Output, help="Write the best of them as Markdown to this file.")
@click.option("--plot", type=Output, help="Draw them as heat maps into this file (.png, .svg).")
def bench_sweep(device: str, **options: Any) -> int:
    """Time our kernels at many settings of MGG's knobs: ps, dist and wpb.

    GRAPH is as in `mgg bench aggregate`. [default: uniform:20:16]
    """
    from .tools.bench.sweep.gpu import run_sweep

    return run_sweep(**options)


@bench.command(
    "start",
    epilog=example(
        "mgg bench start", "mgg bench start rmat:16:16 --ranks 2 --backend cuda --json start.json"
    ),
)
@click.argument("graph", default="rmat:21:26")
@click.option("--ranks", type=click.IntRange(1), default=1, show_default=True)
@click.option("--backend", default="auto", show_default=True, help="As run.backend of a job file.")
@click.option("--turns", type=click.IntRange(1), default=3, show_default=True)
@click.option("--json", type=Output, help="Write the figures as JSON to this file.")
@click.option("--table", type=Output, help="Write them as Markdown to this file.")
def bench_start(**options: Any) -> int:
    """Time what `mgg train` does before it trains, part by part, up to the end of the first epoch.

    GRAPH is as in `mgg bench aggregate`. [default: rmat:21:26, a hundred million edges]
    """
    from .tools.bench.startup import run_start

    return run_start(**options)


@bench.command("draw", epilog=example("mgg bench draw overlap.json overlap.svg"))
@click.argument("document", type=Existing)
@click.argument("picture", type=Output)
def bench_draw(document: Path, picture: Path) -> None:
    """Draw what a benchmark wrote with --json into a picture (.png, .svg): where it ran there may be no matplotlib."""
    from .tools.bench.pictures import draw_again

    draw_again(document, picture)
