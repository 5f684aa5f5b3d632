"""`mgg report`: a page about runs."""

from __future__ import annotations

from pathlib import Path

import click

from .options import Existing, Output, example


@click.command(
    short_help="Write a page about one run or several.",
    epilog=example(
        "mgg report runs/digits",
        "mgg report runs/digits/001 runs/digits/002 -o compared.html",
        "mgg report runs/large/003 --no-least",
    ),
)
@click.argument("runs", nargs=-1, required=True, type=Existing)
@click.option(
    "-o",
    "--output",
    type=Output,
    help="HTML file to write. [default: report.html in the run's folder, or here for several runs]",
)
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
@click.option(
    "--least/--no-least",
    default=True,
    help="Find the least rows that must cross, which reads the graph and matches its remote edges.",
)
def report(runs: tuple[Path, ...], output: Path | None, force: bool, least: bool) -> None:
    """Write one page of HTML about a run, or about several side by side. It needs no network, and has no scripts.

    RUNS are folders that `mgg train` made, or the folders above them, which stand for the latest run. A run that has
    not ended is shown as far as it has come. A timeline needs a run with --profile. It needs matplotlib.
    """
    from ..tools.report.page import process_report

    process_report(runs, output, force=force, least=least)
