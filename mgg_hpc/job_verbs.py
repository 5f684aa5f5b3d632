"""The verbs of job files beside training: submit, tune."""

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
    """Train a few epochs with each transfer while ps, dist and wpb are searched, on all ranks of mpirun or srun.

    Nothing of that training is kept. What was found goes to the user's cache folder, where "mgg train" finds it, on as
    many ranks of the same kind of machine; the last lines are for the job file.
    """
    from .runtime import signals

    signals.listen()
    from .training.tuning.offline import process_tune

    return process_tune(job, overrides, transfers)
