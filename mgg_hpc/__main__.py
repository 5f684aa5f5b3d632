"""The command line: each verb names its options and hands them to one ``process_*`` function."""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import click

from . import __version__
from .errors import FAILED, WRONG_INPUT, InputError

Existing = click.Path(path_type=Path)
Output = click.Path(path_type=Path)


class Verbs(click.Group):
    """Lists verbs in the order in which a user meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def example(*lines: str) -> str:
    """An epilog that click prints as it stands, one example a line."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="mgg")
def cli() -> None:
    """Train graph neural networks on whole graphs over many ranks."""


@cli.command(
    epilog=example(
        "mgg train inputs/digits.toml",
        "mgg launch -n 4 train inputs/digits.toml --set train.epochs=50",
        "mgg launch -n 4 train inputs/digits.toml --dry-run",
    )
)
@click.argument("job", type=Existing)
@click.option("--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a key of the job file.")
@click.option("--dry-run", is_flag=True, help="Print the plan and the memory of each rank, and stop.")
@click.option("--progress/--no-progress", "shown", default=None, help="Show a bar; default: on a terminal only.")
def train(job: Path, overrides: tuple[str, ...], dry_run: bool, shown: bool | None) -> int:
    """Train the model of a job file on this rank, or on all ranks of mpirun or srun."""
    from .training.train import process_train

    return process_train(job, overrides, dry_run, shown)


@cli.command(epilog=example("mgg predict runs/digits -o out.h5", "mgg launch -n 2 predict runs/digits/001 -o out.h5"))
@click.argument("run", type=Existing)
@click.option("-o", "--output", type=Output, required=True, help="HDF5 file to write.")
@click.option("--force", is_flag=True, help="Replace the output if it exists.")
def predict(run: Path, output: Path, force: bool) -> int:
    """Write classes, probabilities and embeddings of a trained run, in the user's numbering of nodes."""
    from .training.predict import process_predict

    return process_predict(run, output, force)


@cli.command(
    epilog=example("mgg launch -n 4 train inputs/digits.toml", "mgg launch -n 2 --mpi system train job.toml"),
    context_settings={"allow_interspersed_args": False},
)
@click.option(
    "-n", "--ranks", type=click.IntRange(min=1), required=True, help="Ranks to start on this machine."
)
@click.option(
    "--mpi",
    type=click.Choice(["auto", "system"]),
    default="auto",
    show_default=True,
    help="The MPI that mpi4py finds first, or the machine's own.",
)
@click.option("--dry-run", is_flag=True, help="Print the command line instead of running it.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED, required=True)
def launch(ranks: int, mpi: str, dry_run: bool, command: tuple[str, ...]) -> int:
    """Run another command on several ranks, with the launcher of the MPI that Python uses.

    The exit code is the job's: 0 done, 2 wrong input, 3 stopped after a checkpoint, 1 failed,
    130 after Ctrl-C, 128 + N after signal N.
    """
    from .runtime.launch import process_launch

    return process_launch(ranks, command, mpi, dry_run)


def _fail(message: str, code: int) -> int:
    """Print one error line (from rank 0 only, where ranks agreed on it), and record the job's code."""
    from .runtime import exit_code

    exit_code.report(f"mgg: error: {message}", code)
    return code


def main(arguments: list[str] | None = None) -> int:
    """Run one command and return its exit code (0 done, 1 failed, 2 wrong input)."""
    try:
        result = cli.main(args=arguments, prog_name="mgg", standalone_mode=False)
    except InputError as error:
        return _fail(str(error), WRONG_INPUT)
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "mgg"
        return _fail(f"{error.format_message()} (see '{where} --help')", WRONG_INPUT)
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _fail("interrupted", FAILED)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return _fail(f"no space left on the device for {error.filename or 'the output'}", WRONG_INPUT)
        raise
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
