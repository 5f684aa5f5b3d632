"""The verbs of `mgg study`; each names its options and hands them to one ``run_*`` function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from .bench import AS_A_JOB, AT_LEAST_ONE, DEVICES, SHARE, WIDTH, together, turns
from .options import Output, Verbs, example
from .study_runs import files_of, request_of, run_epochs, run_here


@click.group(
    short_help="Measure what each part of MGG's design is worth, as its papers do.",
    cls=Verbs,
    context_settings={"show_default": True},
    epilog=example(
        "mgg study transfers rmat:17 --ranks 2 --widths 16,64,256",
        "mgg study design-space my.h5 --csv space.csv --plot space.svg",
    ),
)
def study() -> None:
    """Repeat the studies of MGG's papers (OSDI '23, figures 7 to 11 and table 3; arXiv, figure 2 and table 1).

    Each writes a CSV file, a row a measurement, and a plot. The systems that the papers compare with have stand-ins
    here, which run over the same kernels: a bulk exchange and then the sums (ROC, DGCL); loads over pinned rows of the
    host (DGL's zero-copy); managed memory with read-mostly advice (UVM); whole partitions that go round the ranks, or
    an all-gather on CPUs (NCCL). On CPUs a study starts its ranks on this machine, or takes those of a launcher.

    GRAPH is as in `mgg bench aggregate`. [default: rmat:17:16; on a GPU uniform:20:16]
    """


def files(name: str) -> Callable[[Any], Any]:
    """Return the options of the files that a study writes."""
    return together(
        click.option("--csv", type=Output, default=Path(f"{name}.csv"), help="Table to write."),
        click.option("--plot", default=f"{name}.png", help='Picture to write (.png, .svg, .pdf), or "none".'),
    )


def on_ranks(several: bool = False) -> Callable[[Any], Any]:
    """Return the options of the ranks that a study runs on, on CPUs. several: numbers of them, one after another."""
    ranks: Callable[[Any], Any] = click.option(
        "--ranks", type=AT_LEAST_ONE, default=2, help="To start on this machine, where no launcher did."
    )
    threads: dict[str, Any] = {"help": "Threads of each rank. [default: its share]"}
    if several:
        ranks = click.option("--ranks", default="1,2,4", help="Numbers of ranks, separated by commas.")
        threads = {"default": 1, "help": "Threads of each rank, the same on any number of ranks."}
    return together(
        ranks,
        click.option("--threads", type=click.IntRange(1, 1024), **threads),
        click.option("--backend", default="auto", help=AS_A_JOB),
    )


DEVICE = click.option(
    "--device",
    type=DEVICES,
    default="cpu",
    help="cuda: two PEs on one GPU, the second's rows in the host's memory; primitives: or the ranks of a launcher.",
)
SHARES = click.option(
    "--share", type=SHARE, default=0.2, help="Of rows that are far away, with --device cuda."
)


def variants_of(name: str, widths: str, *examples: str) -> Callable[[Any], Any]:
    """Return the options of a study that compares variants, side by side."""
    return together(
        study.command(name, epilog=example(*examples)),
        click.argument("graph", required=False),
        click.option("--widths", default=widths, help="Of rows, separated by commas."),
        on_ranks(),
        turns(9, "variant"),
        DEVICE,
        SHARES,
        files(name),
        click.pass_context,
    )


@variants_of(
    "neighbour-partitioning",
    "64",
    "mgg study neighbour-partitioning rmat:18 --ranks 1 --threads 2",
    "mgg study neighbour-partitioning --device cuda --share 0.2",
)
def neighbour_partitioning(context: click.Context, graph: str | None, device: str, **options: Any) -> int:
    """Split destinations, or sum them whole.

    MGG's neighbour partitioning: OSDI '23, figure 10a.
    """
    return run_here(context, graph, device, options)


@variants_of(
    "interleaving",
    "64",
    "mgg study interleaving rmat:18 --ranks 2 --threads 2",
    "mgg study interleaving --device cuda --share 0.2",
)
def interleaving(context: click.Context, graph: str | None, device: str, **options: Any) -> int:
    """Sum while remote rows move, or later.

    Or local and remote rows at once, on separate threads or warps: OSDI '23, figure 10b.
    """
    return run_here(context, graph, device, options)


@variants_of(
    "primitives",
    "16",
    "mgg study primitives rmat:17 --widths 16,64",
    "mgg study primitives --device cuda --share 0.2",
    "mgg launch -n 2 study primitives --device cuda",
)
def primitives(context: click.Context, graph: str | None, device: str, **options: Any) -> int:
    """Ask for remote rows by other means.

    Loads, gets of few or many rows, all at once; on a GPU by threads, warps and blocks, over several ranks by NVSHMEM's
    calls of these: OSDI '23, figure 10c.
    """
    return run_here(context, graph, device, options)


@variants_of(
    "transfers",
    "16,64,256",
    "mgg study transfers rmat:17 --ranks 2 --widths 16,64,256",
    "mgg study transfers rmat:17 --ranks 2 --epochs",
    "mgg study transfers --device cuda --share 0.2 --widths 16,128",
)
@click.option(
    "--epochs",
    is_flag=True,
    help="Train GCN (2 layers, 16 hidden units) and GIN (5, 64) instead, on CPUs, into epochs.csv and epochs.png.",
)
def transfers(context: click.Context, graph: str | None, device: str, epochs: bool, **options: Any) -> int:
    """Compare transfers, by width of rows or by epochs of training.

    OSDI '23, figures 7 to 9; arXiv, figure 2 and table 1.
    """
    if epochs:
        return run_epochs(context, graph, device, options)
    return run_here(context, graph, device, options)


@study.command(
    "design-space",
    epilog=example(
        "mgg study design-space rmat:18 --width 64 --ranks 1 --threads 2",
        "mgg study design-space --transfer halo --plot space.svg",
        "mgg study design-space --device cuda --transfer get --share 0.2",
    ),
)
@click.argument("graph", required=False)
@click.option("--width", type=WIDTH, default=64, help="Of rows.")
@click.option(
    "--transfer", type=click.Choice(["direct", "get", "halo"]), default="direct", help="Which kernels."
)
@on_ranks()
@turns(5, "setting")
@DEVICE
@SHARES
@files("design-space")
@click.pass_context
def design_space(
    context: click.Context, graph: str | None, device: str, width: int, transfer: str, **options: Any
) -> int:
    """Map the knobs, with the search's path.

    Times over (ps, dist) and (wpb, dist): OSDI '23, figure 11.
    """
    return run_here(context, graph, device, options | {"widths": str(width)}, transfer=transfer)


@study.command(
    "scaling",
    epilog=example(
        "mgg study scaling rmat:18 --ranks 1,2,4 --threads 1 --widths 16,64",
        "mgg study scaling my.h5 --backend shm --plot scaling.svg",
    ),
)
@click.argument("graph", required=False)
@click.option("--widths", default="64", help="Of rows, separated by commas.")
@on_ranks(several=True)
@turns(9, "variant")
@files("scaling")
def scaling(graph: str | None, ranks: str, **options: Any) -> int:
    """Compare transfers, by number of ranks.

    Each number of ranks is started on this machine: OSDI '23, figures 7 to 9.
    """
    from ..tools.bench.harness.options import numbers_of
    from ..tools.study import scaling as study_of_ranks

    return study_of_ranks.run(request_of(graph, options), numbers_of("ranks", ranks))


@study.command(
    "sampling",
    epilog=example(
        "mgg study sampling inputs/pubmed/sage.toml --seeds 10",
        "mgg study sampling a.toml b.toml --fanouts 10,10 --batch-size 64 --set train.epochs=50",
    ),
)
@click.argument("jobs", nargs=-1, type=click.Path(path_type=Path))
@click.option("--seeds", type=AT_LEAST_ONE, default=3, help="Runs of each job and mode.")
@click.option(
    "--fanouts",
    help="Edges to draw of each row, the last layer's first. [default: the job's, else 15,10,5,5,...]",
)
@click.option("--batch-size", type=AT_LEAST_ONE, help="Training rows of a batch. [default: the job's]")
@click.option(
    "--set", "settings", multiple=True, metavar="SECTION.KEY=VALUE", help="Of all runs; repeatable."
)
@click.option("--threads", type=click.IntRange(1, 1024), help="Of each run. [default: the job's]")
@files("sampling")
def sampling(jobs: tuple[Path, ...], fanouts: str | None, batch_size: int | None, **options: Any) -> int:
    """Compare full-graph with sampled training, by accuracy and time.

    The same graphs, splits and epochs, several seeds: OSDI '23, table 3. JOBS are job files. [default: those of inputs/
    whose graphs are there, but for model.input = "learned"]
    """
    from ..tools.bench.harness.options import numbers_of
    from ..tools.study import sampling as study_of_sampling

    request = study_of_sampling.Request(
        jobs=jobs or study_of_sampling.jobs_with_graphs(),
        seeds=options["seeds"],
        fanouts=numbers_of("fanouts", fanouts) if fanouts else (),
        batch_size=batch_size or 0,
        settings=options["settings"],
        threads=options["threads"],
        files=files_of(options),
    )
    return study_of_sampling.run(request)


@study.command(
    "traversal",
    epilog=example(
        "mgg study traversal",
        "mgg study traversal rmat:18 my.h5 --sources 64 --csv requests.csv --plot requests.svg",
        "mgg study traversal rmat:25 --device cuda",
    ),
)
@click.argument("graphs", nargs=-1)
@click.option("--sources", type=AT_LEAST_ONE, default=16, help="Drawn nodes to search from.")
@click.option("--device", type=DEVICES, default="cpu", help="cuda: time searches, by where edges lie.")
@files("traversal")
def traversal(graphs: tuple[str, ...], sources: int, device: str, **options: Any) -> int:
    """Count the requests of a GPU for edges in the host's memory, by how lists are read.

    Searches in breadth first, edges of 4 and 8 bytes; lists read by threads, by warps, and by warps from the start of a
    line: EMOGI, figures 2.6, 2.8 and 2.11 of Min's dissertation. With --device cuda searches are timed, and what they
    read is compared with copies, managed memory and Subway: figures 2.9, 2.10 and 2.13. [default: rmat:16 uniform:16]
    """
    from ..tools.bench.harness import graphs as known

    names = graphs or ("rmat:16", "uniform:16")
    for name in names:
        known.check(name)
    paths = files_of(options)
    read = [known.read(name) for name in names]
    if device == "cuda":
        from ..tools.study.traversal import measured

        return measured.run(read, sources, paths)
    from ..tools.study.traversal import counted

    return counted.run(read, sources, paths)
