"""Run the study of a command line: here, on the ranks of a launcher, on ranks that are started, or on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from .bench import refuse_given


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
    from ..tools.bench.harness import graphs
    from ..tools.bench.harness.options import numbers_of
    from ..tools.study.cpu import Request

    name, paths = graph or "rmat:17:16", files_of(options)
    graphs.check(name)
    widths = numbers_of("widths", options["widths"])
    return Request(name, widths, options["backend"], options["threads"], options["turns"], paths)


def files_of(options: dict[str, Any]) -> Any:
    """Return the files that are asked for. Raises InputError for one that cannot be written."""
    from ..tools.study.table import Files

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
    from ..runtime import mpi

    name = str(context.info_name)
    if device == "cuda":
        refuse_given(context, device, "ranks", "threads", "backend")
        if mpi.launched():
            return run_on_gpus(context, graph, options)
        from ..tools.study import gpu

        return gpu.run(name, graph, files_of(options), transfer=transfer, **options)
    refuse_given(context, device, "share")

    def measure(request: Any) -> int:
        from ..tools.study import cpu, plot, space

        if transfer is not None:
            return space.run(request, transfer)
        return cpu.run(name, request, plot.DRAWN[name])

    return run_on_cpus(context, request_of(graph, options), options["ranks"], measure)


def run_on_cpus(context: click.Context, request: Any, ranks: int, measure: Callable[[Any], int]) -> int:
    """Measure what is asked for on ranks that are there, or start ranks with the same command line."""
    from ..runtime import launch, mpi

    if ranks > 1 and not mpi.launched():
        return launch.process_launch(ranks, ["study", *given_words(context)])
    return measure(request)


def run_epochs(context: click.Context, graph: str | None, device: str, options: dict[str, Any]) -> int:
    """Measure training epochs. Raises InputError for options that are about single aggregations."""
    from ..errors import InputError

    if device == "cuda":
        raise InputError("--epochs is for CPUs; on GPUs mgg train and mgg bench epoch time epochs")
    for name in ("widths", "share"):
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            raise InputError(f"--{name} has no meaning with --epochs")
    for name in ("csv", "plot"):
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            options[name] = Path(str(options[name]).replace("transfers", "epochs"))

    def measure(request: Any) -> int:
        from ..tools.study import epochs

        return epochs.run(request)

    return run_on_cpus(context, request_of(graph, options), options["ranks"], measure)


def run_on_gpus(context: click.Context, graph: str | None, options: dict[str, Any]) -> int:
    """Run a study on the ranks of a launcher, with a GPU each. Raises InputError for one that has no such variants."""
    from ..errors import InputError
    from ..tools.bench.harness import graphs
    from ..tools.bench.harness.options import numbers_of
    from ..tools.study import gpu, gpu_ranks, plot

    name = str(context.info_name)
    if name != gpu_ranks.STUDY:
        raise InputError(f"mgg study {name} --device cuda plays both PEs itself: run it without a launcher")
    if context.get_parameter_source("share") is ParameterSource.COMMANDLINE:
        raise InputError("--share: the ranks of a launcher own rows with as many edges each; leave it out")
    graph, paths = graph or gpu.GRAPH, files_of(options)
    graphs.check(graph)
    widths = numbers_of("widths", options["widths"])
    return gpu_ranks.run(graph, widths, paths, options["turns"], plot.DRAWN[name])
