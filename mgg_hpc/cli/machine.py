"""Commands of this machine: launch, doctor, clean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click import FloatRange, IntRange, argument, option

from ..errors import InputError
from .options import Choice, Existing, completed, example


class _Launch(click.Command):
    """A command whose arguments are another command, which shells complete as that one."""

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        words = ctx.params["command"]
        return _completed(ctx, None, incomplete) if words else super().shell_complete(ctx, incomplete)


def _completed(ctx: click.Context, _: click.Parameter | None, incomplete: str) -> list[Any]:
    """Return shell completions of ``incomplete``, the next word of the command that `launch` runs."""
    from click.shell_completion import ShellComplete

    from ..runtime.launch import PARALLEL

    words = list(ctx.params["command"] or ())
    if words and words[0] not in PARALLEL:
        return completed(incomplete, "")
    found = ShellComplete(ctx.find_root().command, {}, "mgg", "").get_completions(words, incomplete)
    if words:
        return found
    return completed(incomplete, ".py") + [each for each in found if each.value in PARALLEL]


@click.command(
    cls=_Launch,
    short_help="Run train, predict or a Python program on several ranks.",
    epilog=example(
        "mgg launch -n 4 train inputs/digits.toml",
        "mgg launch -n 2 --mpi system train job.toml",
        "mgg launch -n 2 program.py",
    ),
    context_settings={"allow_interspersed_args": False},
)
@option("-n", "--ranks", type=IntRange(min=1), required=True, help="Ranks to start on this machine.")
@option(
    "--mpi",
    type=Choice(["auto", "system"]),
    default="auto",
    help="The MPI that mpi4py finds first, or the machine's own.",
)
@option(
    "--save-seconds",
    type=FloatRange(min=0),
    default=120.0,
    help="Time for ranks to save what they have, after SIGTERM, SIGUSR1 or Ctrl-C.",
)
@option("--dry-run", is_flag=True, help="Print the command line instead of running it.")
@argument("command", nargs=-1, type=click.UNPROCESSED, required=True, shell_complete=_completed)
def launch(ranks: int, mpi: str, save_seconds: float, dry_run: bool, command: tuple[str, ...]) -> int:
    """Run another command or a Python program on several ranks, with the launcher of the MPI that Python uses.

    The exit code is the job's: 0 done, 1 failed, 2 wrong input, 3 stopped by a signal once it was saved;
    130 after Ctrl-C and 128 + N after signal N where nothing is saved.
    """
    from ..runtime.launch import PARALLEL, process_launch
    from . import jobs

    if not dry_run and command[0] in PARALLEL and (parsed := getattr(jobs, command[0], None)):
        params = parsed.make_context(f"mgg {command[0]}", list(command[1:])).params
        jobs.check_inputs(clicks=command[0] in ("train", "resume"), **params)
    elif command[0].endswith(".py") and not Path(command[0]).is_file():
        raise InputError(f"{command[0]}: no such program")
    return process_launch(ranks, command, mpi, dry_run, save_seconds)


@click.command(
    short_help="Show what this machine has, and lacks.",
    epilog=example("mgg doctor", "mgg doctor --json", "mgg doctor --calibrate"),
)
@option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
@option(
    "--calibrate", is_flag=True, help="Measure this machine for mgg model (some two minutes), and keep it."
)
@option("--ranks", default="1,2,4", help="With --calibrate: numbers of ranks to measure.")
def doctor(as_json: bool, calibrate: bool, ranks: str) -> int:
    """Show what this machine has, what is missing, and how to get it; or measure how fast it is."""
    if calibrate:
        from ..tools.calibrate import process_calibrate

        return process_calibrate(ranks)
    from ..tools.doctor import process_doctor

    return process_doctor(as_json)


@click.command(
    short_help="Remove what killed jobs have left.", epilog=example("mgg clean", "mgg clean runs --dry-run")
)
@argument("folder", type=Existing, required=False)
@option("--dry-run", is_flag=True, help="Only print what would be removed.")
def clean(folder: Path | None, dry_run: bool) -> int:
    """Remove what killed jobs have left: shared memory and, in FOLDER, temporary files."""
    from ..tools.clean import process_clean

    return process_clean(folder, dry_run)
