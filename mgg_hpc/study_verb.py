"""The verbs of `mgg study`; each names its options and hands them to one ``run_*`` function."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .bench_verbs import AS_A_JOB, AT_LEAST_ONE, DEVICES, SHARE, WIDTH, refuse_given, together, turns
from .verbs import Output, Verbs, example


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


def given_words(context: click.Context) -> list[str]:
    """Return the words of this command line, from the verb on, for ranks that run it too."""
    words = [str(context.info_name)]
    for each in context.command.params:
        if context.get_parameter_source(str(each.name)) is ParameterSource.COMMANDLINE:
            value = str(context.params[str(each.name)])
            if not isinstance(each, click.Option):
                words += [value]
            else:
                words += [each.opts[0]] if each.is_flag else [each.opts[0], value]
    return words


def request_of(graph: str | None, options: dict[str, Any]) -> Any:
    """Return what is asked for on CPUs, checked as far as it can be before ranks start. Raises InputError."""
    from .tools.bench.harness import graphs
    from .tools.bench.harness.options import numbers_of
    from .tools.study.cpu import Request

    name, paths = graph or "rmat:17:16", files_of(options)
    graphs.check(name)
    widths = numbers_of("widths", options["widths"])
    return Request(name, widths, options["backend"], options["threads"], options["turns"], paths)


def files_of(options: dict[str, Any]) -> Any:
    """Return the files that are asked for. Raises InputError for one that cannot be written."""
    from .tools.study.table import Files

    paths = Files(options["csv"], None if options["plot"] == "none" else Path(options["plot"]))
    paths.check()
    return paths


def run_here(
    context: click.Context,
    graph: str | None,
    device: str,
    options: dict[str, Any],
    transfer: str | None = None,
) -> int:
    """Run a study on ranks that are there, on a GPU, or on ranks that are started with the same command line."""
    from .runtime import mpi

    name = str(context.info_name)
    if device == "cuda":
        refuse_given(context, device, "ranks", "threads", "backend")
        if mpi.launched():
            return run_on_gpus(context, graph, options)
        from .tools.study import gpu

        return gpu.run(name, graph, files_of(options), transfer=transfer, **options)
    refuse_given(context, device, "share")

    def measure(request: Any) -> int:
        from .tools.study import cpu, plot, space

        if transfer is not None:
            return space.run(request, transfer)
        return cpu.run(name, request, plot.DRAWN[name])

    return run_on_cpus(context, request_of(graph, options), options["ranks"], measure)


def run_on_cpus(context: click.Context, request: Any, ranks: int, measure: Callable[[Any], int]) -> int:
    """Measure what is asked for on ranks that are there, or start ranks with the same command line."""
    from .runtime import launch, mpi

    if ranks > 1 and not mpi.launched():
        return launch.process_launch(ranks, ["study", *given_words(context)])
    return measure(request)


def run_epochs(context: click.Context, graph: str | None, device: str, options: dict[str, Any]) -> int:
    """Measure training epochs. Raises InputError for options that are about single aggregations."""
    from .errors import InputError

    if device == "cuda":
        raise InputError("--epochs is for CPUs; on GPUs mgg train and mgg bench epoch time epochs")
    for name in ("widths", "share"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(f"--{name} has no meaning with --epochs")
    for name in ("csv", "plot"):
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            options[name] = Path(str(options[name]).replace("transfers", "epochs"))

    def measure(request: Any) -> int:
        from .tools.study import epochs

        return epochs.run(request)

    return run_on_cpus(context, request_of(graph, options), options["ranks"], measure)


def run_on_gpus(context: click.Context, graph: str | None, options: dict[str, Any]) -> int:
    """Run a study on the ranks of a launcher, with a GPU each. Raises InputError for one that has no such variants."""
    from .errors import InputError
    from .tools.bench.harness import graphs
    from .tools.bench.harness.options import numbers_of
    from .tools.study import gpu, gpu_ranks, plot

    name = str(context.info_name)
    if name != gpu_ranks.STUDY:
        raise InputError(f"mgg study {name} --device cuda plays both PEs itself: run it without a launcher")
    if context.get_parameter_source("share") is ParameterSource.COMMANDLINE:
        raise InputError("--share: the ranks of a launcher own rows with as many edges each; leave it out")
    graph, paths = graph or gpu.GRAPH, files_of(options)
    graphs.check(graph)
    widths = numbers_of("widths", options["widths"])
    return gpu_ranks.run(graph, widths, paths, options["turns"], plot.DRAWN[name])


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
    from .tools.bench.harness.options import numbers_of
    from .tools.study import scaling as study_of_ranks

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
    from .tools.bench.harness.options import numbers_of
    from .tools.study import sampling as study_of_sampling

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
