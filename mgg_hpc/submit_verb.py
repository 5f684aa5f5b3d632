"""`mgg submit`: the options of jobs that go to Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click import IntRange, argument, option

from .verbs import Existing, example, overriding


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
    from .tools.submit import Request, process_submit

    return process_submit(jobs, overrides, Request(**options), dry_run)
