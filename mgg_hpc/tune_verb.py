"""`mgg tune`: the options of a search for a job's fastest plan."""

from __future__ import annotations

from pathlib import Path

import click
from click import argument, option

from .verbs import Existing, example, overriding


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
